"""The commands, one file per family: changes of the state, the rules that accept or reject them, and their codes.

``ringlog.kernel.registry`` lists the families. Values that a command brings and the state keeps are in
``ringlog.kernel.values``, because the state does not import the commands.
"""

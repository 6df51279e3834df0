"""The commands, a file for each family: what may change the state, the rules that decide whether it does, their codes.

``ringlog.kernel.registry`` lists the families. Values that a command brings and the state keeps are in
``ringlog.kernel.values``: the state is below the commands.
"""

"""The commands: what may change the state (``model``), and the rules that decide whether it does (one module a family).

This package imports none of its modules: the state is made of values of ``model``, so a package that imported the
rules would close a circle. The way from a command to its rule is ``ringlog.kernel.decide``.
"""

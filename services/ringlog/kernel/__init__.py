"""The kernel: a pure, deterministic fold of the metadata log.

The state at epoch n is the fold of the first n applied entries, and nothing else. No code in this package does I/O,
reads a clock, draws a random number or logs. So the same log gives the same bytes of state on every machine.
"""

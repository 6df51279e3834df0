"""The machine: a pure, deterministic fold of the metadata log.

State at epoch n is the fold of the first n applied entries, and nothing else. Nothing in this package does I/O, reads a
clock, draws a random number or logs; the same log gives the same bytes of state on every machine.
"""

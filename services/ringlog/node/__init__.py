"""The reference data node: a process that stores rows of the ranges that it replicates and acknowledges epochs.

It demonstrates the duties of a store that embeds Ringlog. The tests and the demo run it.
"""

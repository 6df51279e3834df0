"""The reference data node: a real process that keeps rows of the ranges it replicates and acknowledges epochs.

It stands for the store that embeds Ringlog: it shows what a node has to do, and the tests and the demo use it.
"""

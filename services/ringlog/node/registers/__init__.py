"""Registers of a node, in memory and on disk."""

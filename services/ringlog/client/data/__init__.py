"""Reads and writes on data nodes: plans, coordinators, connections."""

"""Reads and writes on nodes: plans, coordinators, connections."""

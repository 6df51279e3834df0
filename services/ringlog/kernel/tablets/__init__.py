"""Tablets: a table cut into pieces of its own, each with replicas on shards, each moved by itself."""

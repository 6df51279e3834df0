"""Tablets: ranges of one table. Each has its own replicas on shards and moves independently."""

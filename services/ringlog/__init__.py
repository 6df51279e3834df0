"""Ringlog: the metadata of a partitioned data store as one totally ordered log."""

__version__ = "0.1.0"

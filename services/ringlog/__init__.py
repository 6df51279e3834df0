"""Ringlog: the metadata of a partitioned data store as one totally ordered log."""

__version__ = "0.1.0.dev0"

FEATURES: tuple[str, ...] = ("tablets",)
"""Features that this release adds; its nodes announce them (``kernel.commands.cluster.features``)."""

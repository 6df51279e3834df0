"""Ringlog: the metadata of a partitioned data store as one totally ordered log."""

__version__ = "0.1.0.dev0"

FEATURES: tuple[str, ...] = ("tablets",)
"""What this release can do that earlier ones could not; its nodes announce them (``kernel.commands.cluster.features``).
"""

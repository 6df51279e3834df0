"""Why a node ends."""

from __future__ import annotations


class NodeFailed(Exception):
    """The node can't go on; the text says why and what to do."""

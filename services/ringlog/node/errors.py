"""Errors that end a node. Each has a stable code."""

from __future__ import annotations


class NodeFailed(Exception):
    """The node cannot continue. The message states the reason and the remedy."""

    code = "node_failed"


class RowsDamaged(NodeFailed):
    """The file of rows is corrupt, or the disk failed to read or write it."""

    code = "rows_damaged"


class RowsForeign(NodeFailed):
    """The file of rows belongs to another node, cluster or mutations topic, or is not a file of rows."""

    code = "rows_foreign"


class RegistersForeign(NodeFailed):
    """The folder of registers belongs to another node."""

    code = "registers_foreign"


COPY = "it is a copy; give this node its own folder back"
"""The remedy that messages give for a folder or file of another node."""


class RowsMixed(NodeFailed):
    """The file of rows and its write-ahead log are from different times: the file was restored without its log."""

    code = "rows_mixed"


class RowsNewer(NodeFailed):
    """A later release wrote the file of rows."""

    code = "rows_newer"


class RowsBehind(NodeFailed):
    """The file of rows is older than the node's last acknowledgement: it was replaced by an old copy."""

    code = "rows_behind"

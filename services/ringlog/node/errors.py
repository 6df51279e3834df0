"""Errors that end a node. Each class has a stable code, and ``docs/reference/codes.md`` shows its docstring."""

from __future__ import annotations


class NodeFailed(Exception):
    """The node can't go on; the text says why and what to do."""

    code = "node_failed"


class RowsDamaged(NodeFailed):
    """The file of a node's rows is not what it was, or the disk refuses it."""

    code = "rows_damaged"


class RowsForeign(NodeFailed):
    """The file of rows is of another node, of another cluster, or of a mutations topic that was made anew."""

    code = "rows_foreign"


class RegistersForeign(NodeFailed):
    """The folder of registers belongs to another node."""

    code = "registers_foreign"


COPY = "it is a copy; give this node its own folder back"
"""The remedy that messages give for a folder or file of another node."""


class RowsMixed(NodeFailed):
    """The file of rows and the write-ahead log beside it are of different times: the file was restored from a copy."""

    code = "rows_mixed"


class RowsNewer(NodeFailed):
    """The file of rows was written by a later release."""

    code = "rows_newer"


class RowsBehind(NodeFailed):
    """The file of rows is older than what the node has acknowledged: somebody put an old copy in its place."""

    code = "rows_behind"

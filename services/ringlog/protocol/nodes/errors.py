"""Errors that end a node. Each class has a stable code, and ``docs/reference/codes.md`` shows its docstring."""

from __future__ import annotations

from ringlog.errors import RinglogError


class NodeFailed(RinglogError):
    """The node cannot continue. The message has the reason and the next step."""

    code = "node_failed"


class RowsDamaged(NodeFailed):
    """The row file of the node is damaged, or the disk rejects access."""

    code = "rows_damaged"


class RowsForeign(NodeFailed):
    """The row file belongs to another node, another cluster, or a deleted mutations topic."""

    code = "rows_foreign"


class RegistersForeign(NodeFailed):
    """The folder of registers belongs to another node."""

    code = "registers_foreign"


COPY = "it is a copy; give this node its own folder"
"""The remedy that messages give for a folder or file of another node."""


class RowsMixed(NodeFailed):
    """The row file and its write-ahead log do not belong together: the file was restored from a copy."""

    code = "rows_mixed"


class RowsNewer(NodeFailed):
    """A later release wrote the row file."""

    code = "rows_newer"


class RowsBehind(NodeFailed):
    """The row file is older than the acknowledged writes of the node: it was replaced by an old copy."""

    code = "rows_behind"

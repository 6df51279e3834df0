"""The kinds of operations: **each is one row**. Code that distinguishes kinds reads the row.

A kind is a row, not a string: ``operation.kind == JOIN`` does not pass the type checker, and no other module compares
``Operation.kind`` (``tests/tidy``). The import of this module asserts the invariants of the rows.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from ringlog.kernel.model.state import NODE_STATES, Operation
from ringlog.kernel.operations.stages import (
    COMMIT_CDC_GENERATION,
    FINISHED,
    JOIN_STAGES,
    PREPARED,
    PUBLISH_CDC_GENERATION,
    REQUESTED,
    STAGES,
    STREAMING,
    SWAP_STAGES,
    WRITE_BOTH_READ_NEW,
    is_ended,
)
from ringlog.kernel.values import Value


class Changes(Enum):
    """The effect of an operation on readers and writers: it changes token owners, a keyspace's setting, or
    only rows.
    """

    TOKENS = "tokens"
    SETTING = "setting"
    ROWS = "rows"


class NodeStanding(Value):
    """The state of a node while an operation is in flight, after it finished, and after it was cancelled."""

    during: str
    finished: str
    cancelled: str


JOINING: Final = NodeStanding("joining", "normal", "none")
MOVING: Final = NodeStanding("moving", "normal", "normal")
LEAVING: Final = NodeStanding("leaving", "left", "normal")


class OperationKind(Value):
    """One kind of operation.

    ``node``: the states of its node; None: no node changes its state. ``replaced``: the states of the node whose tokens
    it takes over; None: there is none. ``node_gains``: its node gets rows even if the plan has none for it.
    ``is_exclusive``: no other operation may be in flight. ``must_fit``: the nodes that stay must be able to hold every
    replica. ``admits_loss``: it is admitted although rows may be lost. ``reorders``: its node is a member of groups
    before and after, at another position. ``shown``: the state of its node during the operation in views
    (``node_states``); empty: the operation has no node.
    """

    name: str
    stages: tuple[str, ...]
    changes: Changes
    node: NodeStanding | None = None
    replaced: NodeStanding | None = None
    node_gains: bool = False
    is_exclusive: bool = False
    must_fit: bool = False
    admits_loss: bool = False
    reorders: bool = False
    shown: str = ""

    @property
    def makes_generation(self) -> bool:
        """True if it adds tokens, so that a CDC generation must be made."""
        return COMMIT_CDC_GENERATION in self.stages

    @property
    def is_at_once(self) -> bool:
        """True if the entry that requests it also finishes it."""
        return self.stages == (FINISHED,)

    @property
    def brings_node(self) -> bool:
        """True if its node owns nothing before. The node gets new tokens or those of the node that it replaces."""
        return self.node is JOINING

    @property
    def parts(self) -> bool:
        """True if its node owns nothing afterwards."""
        return self.node is LEAVING


_TOKENS: Final = Changes.TOKENS

REPLACE: Final = OperationKind(
    "replace", SWAP_STAGES, _TOKENS, JOINING, replaced=LEAVING, node_gains=True, shown="replacing"
)
JOIN: Final = OperationKind("join", JOIN_STAGES, _TOKENS, JOINING, node_gains=True, shown="bootstrapping")
REMOVE: Final = OperationKind("remove", SWAP_STAGES, _TOKENS, LEAVING, must_fit=True, shown="removing")
LEAVE: Final = OperationKind("leave", SWAP_STAGES, _TOKENS, LEAVING, must_fit=True, shown="decommissioning")
MOVE: Final = OperationKind("move", JOIN_STAGES, _TOKENS, MOVING, reorders=True, shown="moving")
ALTER: Final = OperationKind("alter", SWAP_STAGES, Changes.SETTING, is_exclusive=True)
REBUILD: Final = OperationKind(
    "rebuild", (REQUESTED, STREAMING, FINISHED), Changes.ROWS, node_gains=True, shown="rebuilding"
)
ASSASSINATE: Final = OperationKind("assassinate", (FINISHED,), _TOKENS, LEAVING, admits_loss=True, shown="removing")

KINDS: Final[dict[str, OperationKind]] = {
    kind.name: kind for kind in (REPLACE, JOIN, REMOVE, LEAVE, MOVE, ALTER, REBUILD, ASSASSINATE)
}
"""The kinds by name, in order of priority among waiting operations."""


def kind_of(operation: Operation) -> OperationKind:
    """Return the row of an operation's kind."""
    return KINDS[operation.kind]


def next_stage(operation: Operation) -> str | None:
    """Return the stage after the present one, None for an ended operation."""
    if is_ended(operation):
        return None
    stages = kind_of(operation).stages
    return stages[stages.index(operation.stage) + 1]


def check_row(kind: OperationKind) -> None:
    """Assert the invariants of a row that the kernel relies on."""
    places = [STAGES.index(stage) for stage in kind.stages]
    assert places == sorted(set(places)), "stages ascend"
    assert kind.stages[-1] == FINISHED, "every operation can finish"
    assert kind.is_at_once or kind.stages[0] == REQUESTED, "an operation with stages starts in the queue"
    assert kind.is_at_once or (WRITE_BOTH_READ_NEW in kind.stages) == (kind.changes is not Changes.ROWS)
    assert not kind.makes_generation or PREPARED in kind.stages, "ranges are split before their streams are created"
    assert kind.makes_generation == (PUBLISH_CDC_GENERATION in kind.stages), "a generation is committed, then published"
    assert (STREAMING in kind.stages) == (kind.changes is Changes.ROWS), (
        "other kinds stream while both groups are written"
    )
    assert kind.is_exclusive or kind.changes is not Changes.SETTING, "a private placement needs exclusivity"
    assert kind.replaced in (None, LEAVING), "a replaced node leaves"
    assert bool(kind.shown) == (kind.changes is not Changes.SETTING), "each change of a node has a name"
    assert (kind.node is not None) == (kind.changes is Changes.TOKENS), (
        "a node that owns tokens changes state with them"
    )
    assert not kind.makes_generation or (kind.node is not None and kind.node.finished == "normal")
    assert kind.replaced is None or (kind.brings_node and not kind.makes_generation), (
        "a replacement creates no generation"
    )
    assert not kind.brings_node or kind.node_gains, "a node without tokens has no rows"
    assert not kind.must_fit or kind.parts, "only a node that leaves reduces the number of nodes"
    assert not kind.reorders or not (kind.brings_node or kind.parts), "a reordered node is a member before and after"
    assert not kind.admits_loss or kind.is_at_once, "only an immediate operation may lose rows"
    for standing in (kind.node, kind.replaced):
        assert standing is None or standing.during not in (standing.finished, standing.cancelled), (
            "the state during an operation differs from the states after it"
        )
        assert standing is None or {standing.during, standing.finished, standing.cancelled} <= set(NODE_STATES)


for _kind in KINDS.values():
    check_row(_kind)

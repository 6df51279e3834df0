"""The kinds of operations: **each is one row**, and code that must distinguish kinds asks the row.

A kind is a row, not a string: ``operation.kind == JOIN`` does not pass the type checker, and no other module compares
``Operation.kind`` (``tests/tidy``). What the rows promise of each other is asserted when this module is imported.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from ringlog.kernel.model.state import NODE_STATES, Operation
from ringlog.kernel.operations.stages import (
    COMMIT_CDC_GENERATION,
    FINISHED,
    JOIN_STAGES,
    PREPARED,
    REQUESTED,
    STAGES,
    STREAMING,
    SWAP_STAGES,
    WRITE_BOTH_READ_NEW,
    is_ended,
)


class Changes(Enum):
    """What an operation changes for readers and writers: who owns tokens, a keyspace's setting, or only rows."""

    TOKENS = "tokens"
    SETTING = "setting"
    ROWS = "rows"


@dataclass(frozen=True, slots=True)
class NodeStanding:
    """The state of a node while an operation is in flight, when it has finished, when it was cancelled."""

    during: str
    finished: str
    cancelled: str


JOINING: Final = NodeStanding("joining", "normal", "none")
MOVING: Final = NodeStanding("moving", "normal", "normal")
LEAVING: Final = NodeStanding("leaving", "left", "normal")


@dataclass(frozen=True, slots=True)
class OperationKind:
    """One kind of operation.

    ``node``: what its node is meanwhile and afterwards; None: there is no node, or it stays what it is. ``replaced``:
    the same of the node whose tokens it takes over; None: of nobody. ``node_gains``: its node gets rows whatever the
    plan says. ``is_exclusive``: no other operation may be in flight. ``must_fit``: those who stay must be able to hold
    every replica. ``admits_loss``: it is admitted though rows may be lost by it. ``reorders``: its node is a member of
    groups before and after, and stands elsewhere in them. ``shown``: the state of its node meanwhile as views have it
    (``node_states``); empty: there is no node.
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
        """True if new tokens appear by it, so that a CDC generation must be made."""
        return COMMIT_CDC_GENERATION in self.stages

    @property
    def is_at_once(self) -> bool:
        """True if it is over with the entry that asks for it."""
        return self.stages == (FINISHED,)

    @property
    def brings_node(self) -> bool:
        """True if its node owns nothing before: with tokens of its own, or with those of whom it replaces."""
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
"""By name, in the order of their priority when several wait."""


def kind_of(operation: Operation) -> OperationKind:
    """The row of an operation's kind."""
    return KINDS[operation.kind]


def next_stage(operation: Operation) -> str | None:
    """The stage after the present one, None for an ended operation."""
    if is_ended(operation):
        return None
    stages = kind_of(operation).stages
    return stages[stages.index(operation.stage) + 1]


def check_row(kind: OperationKind) -> None:
    """What the rest of the kernel takes for granted of a row."""
    places = [STAGES.index(stage) for stage in kind.stages]
    assert places == sorted(set(places)), "stages go forward"
    assert kind.stages[-1] == FINISHED, "every operation can finish"
    assert kind.is_at_once or kind.stages[0] == REQUESTED, "an operation that takes time waits for its turn"
    assert kind.is_at_once or (WRITE_BOTH_READ_NEW in kind.stages) == (kind.changes is not Changes.ROWS)
    assert not kind.makes_generation or PREPARED in kind.stages, "ranges are cut before streams are made for them"
    assert bool(kind.shown) == (kind.changes is not Changes.SETTING), "each change of a node has a name"
    assert (kind.node is not None) == (kind.changes is Changes.TOKENS), "who owns tokens changes state with them"
    assert not kind.makes_generation or (kind.node is not None and kind.node.finished == "normal")
    assert kind.replaced is None or (kind.brings_node and not kind.makes_generation), "tokens taken over are not new"
    assert not kind.brings_node or kind.node_gains, "who owns nothing has no rows"
    assert not kind.must_fit or kind.parts, "only who leaves makes the rest fewer"
    assert not kind.reorders or not (kind.brings_node or kind.parts), "who is reordered is there before and after"
    assert not kind.admits_loss or kind.is_at_once, "an operation that waits for others waits until every row is known"
    for standing in (kind.node, kind.replaced):
        assert standing is None or {standing.during, standing.finished, standing.cancelled} <= set(NODE_STATES)


for _kind in KINDS.values():
    check_row(_kind)

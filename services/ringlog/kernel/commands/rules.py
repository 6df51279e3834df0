"""The shape of a field rule: what a command's own fields must obey, whatever the state; and whom it may leave out.

Values have the right Python type already (the schema of the record sees to that); these rules are about their range.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

from ringlog.kernel.columns.ack_columns import AckColumns
from ringlog.kernel.model.outcome import Rejected
from ringlog.kernel.model.state import ClusterState, Node
from ringlog.kernel.values import Epoch, NodeId, Witness

T = TypeVar("T")

Check = tuple[bool, str, str]
"""Whether it holds, the field, and the rule in words."""


def broken_field(*checks: Check) -> Rejected | None:
    """``bad_field`` for the first check that does not hold, naming field and rule; None if all hold."""
    for holds, field, rule in checks:
        if not holds:
            return Rejected("bad_field", f"{field}: {rule}")
    return None


NAME_RULE = "must be 1 to 100 letters, digits or _ . - and begin with a letter or digit"
IDENTIFIER_RULE = "must be a letter followed by up to 47 letters, digits or _"
UUID_RULE = "must be a canonical lower-case UUID"
REASON_LENGTH_MAX = 500
SEED_BYTES = 16


def reason_rule(reason: str, least: int = 1) -> Check:
    """An operator's words, of which there are ``least`` at least."""
    rule = f"must have {least} to {REASON_LENGTH_MAX} characters"
    return least <= len(reason) <= REASON_LENGTH_MAX, "reason", rule


def seed_rule(seed: bytes) -> Check:
    """What the random bits of stream ids are made of."""
    return len(seed) == SEED_BYTES, "seed", f"must be {SEED_BYTES} bytes"


def cause_rule(state: ClusterState, cause: Epoch) -> Check:
    """What asks for it is in the log."""
    return 1 <= cause <= state.epoch, "cause", f"must be an epoch from 1 to {state.epoch}"


def made_of(kind: type[T], command: Any, **own: Any) -> T:
    """What a command makes: its fields by their names, but for ``own`` ones."""
    names = [one.name for one in fields(kind) if hasattr(command, one.name)]  # type: ignore[arg-type]
    return kind(**{name: getattr(command, name) for name in names} | own)


def registered(state: ClusterState, name: NodeId, field: str = "node") -> Node | Rejected:
    """The node of this id, which ``field`` of a command names."""
    return state.nodes.get(name) or Rejected("unknown_node", f"{field}: {name} is not registered")


def to_ignore(
    state: ClusterState, names: tuple[NodeId, ...], not_these: tuple[NodeId, ...]
) -> tuple[NodeId, ...] | Rejected:
    """The nodes to ignore, sorted: registered, declared down, not those that the operation is about."""
    for name in names:
        node = registered(state, name, "ignore_nodes")
        if isinstance(node, Rejected):
            return node
        if not node.down:
            return Rejected("wrong_node_state", f"ignore_nodes: {node.name} was not declared down")
        if name in not_these:
            return Rejected("bad_field", f"ignore_nodes: {node.name} is what the operation is about")
    return tuple(sorted(set(names)))


def bad_witnesses(state: ClusterState, witnesses: tuple[Witness, ...] | AckColumns) -> Rejected | None:
    """Witnesses are registered nodes and cannot know the future; a repeated one counts once."""
    if isinstance(witnesses, AckColumns) and _are_all_valid(state, witnesses):
        return None
    for witness in witnesses:
        node = registered(state, witness.node, "witnesses")
        if isinstance(node, Rejected):
            return node
        if not (0 <= witness.applied <= state.epoch and 0 <= witness.drained <= state.epoch):
            return Rejected("bad_field", f"witnesses: epochs of {node.name} must lie between 0 and {state.epoch}")
    return None


def _are_all_valid(state: ClusterState, witnesses: AckColumns) -> bool:
    return witnesses.lie_within(state.epoch) and witnesses.are_in(state.nodes)

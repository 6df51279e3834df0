"""Field rules: conditions on a command's own fields in any state, and on the nodes that a command names.

Values already have the right Python type, which the schema of the record guarantees; these rules check their range.
"""

from __future__ import annotations

from typing import Any, TypeVar

from ringlog.kernel.columns.ack_columns import AckColumns
from ringlog.kernel.model.outcome import Rejected
from ringlog.kernel.model.state import ClusterState, Node
from ringlog.kernel.values import Epoch, NodeId, Value, Witness

T = TypeVar("T", bound=Value)

Check = tuple[bool, str, str]
"""Whether the rule holds, the field, and the rule in words."""


def broken_field(*checks: Check) -> Rejected | None:
    """Return ``bad_field`` with field and rule for the first check that does not hold; None if all hold."""
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
    """Return the check of an operator's reason, which must have at least ``least`` characters."""
    rule = f"must have {least} to {REASON_LENGTH_MAX} characters"
    return least <= len(reason) <= REASON_LENGTH_MAX, "reason", rule


def seed_rule(seed: bytes) -> Check:
    """Return the check of the random bytes for stream ids."""
    return len(seed) == SEED_BYTES, "seed", f"must be {SEED_BYTES} bytes"


def cause_rule(state: ClusterState, cause: Epoch) -> Check:
    """Return the check that a cause is an epoch of the log."""
    return 1 <= cause <= state.epoch, "cause", f"must be an epoch from 1 to {state.epoch}"


def made_of(kind: type[T], command: Any, **own: Any) -> T:
    """Return an object from the command's fields of the same names, except for ``own`` ones."""
    names = [name for name in kind.__struct_fields__ if hasattr(command, name)]
    return kind(**{name: getattr(command, name) for name in names} | own)


def registered(state: ClusterState, name: NodeId, field: str = "node") -> Node | Rejected:
    """Return the node with this id, or the rejection for the ``field`` that names it."""
    return state.nodes.get(name) or Rejected("unknown_node", f"{field}: {name} is not registered")


def to_ignore(
    state: ClusterState, names: tuple[NodeId, ...], not_these: tuple[NodeId, ...]
) -> tuple[NodeId, ...] | Rejected:
    """Return the nodes to ignore, sorted: registered, declared down, and not subjects of the operation."""
    for name in names:
        node = registered(state, name, "ignore_nodes")
        if isinstance(node, Rejected):
            return node
        if not node.down:
            return Rejected("wrong_node_state", f"ignore_nodes: {node.name} was not declared down")
        if name in not_these:
            return Rejected("bad_field", f"ignore_nodes: {node.name} is a node of the operation itself")
    return tuple(sorted(set(names)))


def bad_witnesses(state: ClusterState, witnesses: tuple[Witness, ...] | AckColumns) -> Rejected | None:
    """Reject witnesses that are not registered or claim epochs of the future. A repeated witness counts once."""
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

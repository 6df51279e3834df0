"""Modes of the cluster: features, pauses, roles, the metadata service, recoveries, snapshots and bounds of the log.

These are frozen dataclasses; the next state shares every unchanged part. ``kernel.invariants`` declares and checks the
invariants of every state.
"""

from __future__ import annotations

from typing import Annotated, Final

from ringlog.kernel.model.state_section import StateSection
from ringlog.kernel.values import Epoch, Micros, NodeId, Value


class Feature(Value):
    """A feature that every new member must support. Once it is enabled, all members support it."""

    name: Annotated[str, "Name of the feature."]
    required: Annotated[Epoch, "Epoch since which a node must support the feature to register, join or return."]
    enabled: Annotated[Epoch | None, "Epoch since which all members support the feature. Null: not enabled."]


class Pause(Value):
    """A pause of changes of ``scope`` since epoch ``since``, by operators. ``of``: a keyspace or table; empty:
    everywhere.
    """

    scope: str
    of: str
    reason: str
    since: Epoch


ALL: Final = "all"
BALANCING: Final = "balancing"
SPLITS: Final = "splits"
REPAIRS: Final = "repairs"
SCHEMA: Final = "schema"
TOPOLOGY: Final = "topology"
ZONES: Final = "zones"
SERVICE: Final = "service"
SETTING_CHANGES: Final = "settings"
CDC: Final = "cdc"
REGISTRATIONS: Final = "registrations"


def pause_text(scope: str, of: str = "") -> str:
    """Return in words which changes are paused."""
    if scope == ALL:
        return "all changes are paused"
    return f"{scope}{of and ' of '}{of} {'are' if scope.endswith('s') else 'is'} paused"


UNPAUSED: Final = ""
"""``PAUSED_BY`` of commands that no pause blocks."""
SCOPES: Final = (
    ALL,
    SCHEMA,
    TOPOLOGY,
    ZONES,
    SERVICE,
    SETTING_CHANGES,
    CDC,
    REGISTRATIONS,
    BALANCING,
    REPAIRS,
    SPLITS,
)
LIMITED: Final = (BALANCING, REPAIRS, SPLITS)
"""Scopes that can be limited to a keyspace or a table."""

assert len({*SCOPES}) == len(SCOPES), "scopes are unique"
assert {*LIMITED} < {*SCOPES}, "each name is a scope"
assert UNPAUSED not in SCOPES, "no pause blocks these commands"


def pause_key(scope: str, of: str) -> str:
    """Return the key of a pause in the state."""
    return f"{scope}/{of}"


class Term(Value):
    """The active instance of a role, and the epoch since which it is active."""

    role: str
    instance: str
    term: int
    since: Epoch


class ServiceMember(Value):
    """A node in a group of the metadata service."""

    node: Annotated[NodeId, "Id of the node."]
    stage: Annotated[str, "joining or leaving (in the write group), or member (in the write group and the read group)."]
    since: Annotated[Epoch, "Epoch that started the stage."]


class ServiceGoal(Value):
    """The wanted members of the metadata service, as set by operators.

    ``size``: the number of members, unless ``automatic``: then it follows from the number of nodes. ``by_hand``:
    operators named the members one by one, so none is exchanged for a better spread. ``excluded``: ids of nodes that
    must not be members, sorted.
    """

    size: int = 0
    automatic: bool = False
    by_hand: bool = False
    excluded: tuple[NodeId, ...] = ()


class Recovery(Value):
    """A recovery: a period when operators could override the rules of the log. The record is permanent."""

    entered: Annotated[Epoch, "Epoch that started the recovery."]
    at: Annotated[Micros, "State time of that epoch, in microseconds since 1970 UTC."]
    operator: Annotated[str, "Name of the operator who started the recovery."]
    reason: Annotated[str, "Reason, in free text."]
    forced: Annotated[tuple[Epoch, ...], "Epochs that replaced sections of the state, at most the last 100."]
    left: Annotated[Epoch | None, "Epoch that ended the recovery. Null: active."]
    left_by: Annotated[str, "Name of the operator who ended the recovery. Empty: active."]


RECOVERIES: Final = StateSection(
    "recoveries",
    Recovery,
    "service",
    prefix="recovery/",
    key="epoch that began it",
    most=(1_000, "recoveries, ended too"),
)


class TakenSnapshot(Value):
    """A mark: readers may begin with the state of ``epoch`` if it was stored and confirmed. ``at``: state time.

    Once it is confirmed: ``position``, the offset after the entry that made the epoch; ``digest`` of the state;
    ``witnesses``, the roles that reached the same state by their own folds.
    """

    epoch: Epoch
    at: Micros
    position: int = 0
    digest: str = ""
    witnesses: tuple[str, ...] = ()


class LogBound(Value):
    """A bound of the archive or of truncation: up to ``epoch``, before the offset ``position``.

    ``digest``: the digest of the archive's last segment, if the bound is the archive's.
    """

    epoch: Epoch
    position: int
    digest: str = ""

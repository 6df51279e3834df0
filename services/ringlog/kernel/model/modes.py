"""How the cluster is run: features, pauses, roles, the metadata service, recoveries, snapshots and bounds of the log.

Frozen dataclasses, of which the next state shares everything that did not change. ``kernel.invariants`` declares and
checks what holds in every state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from ringlog.kernel.values import Epoch, Micros, NodeId


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature that every new member must support; once it is enabled, every member supports it."""

    name: Annotated[str, "Its name."]
    required: Annotated[Epoch, "The epoch since which a node must support it to register, join or return."]
    enabled: Annotated[Epoch | None, "The epoch since which every member supports it; null: not enabled yet."]


@dataclass(frozen=True, slots=True)
class Pause:
    """Operators hold up changes of ``scope`` since epoch ``since``; ``of``: a keyspace or table, empty: everywhere."""

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
UNPAUSED: Final = ""
"""``PAUSED_BY`` of commands that no pause holds up."""
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
"""Scopes that can be those of a keyspace or a table."""


def pause_key(scope: str, of: str) -> str:
    """Under what a pause is kept."""
    return f"{scope}/{of}"


@dataclass(frozen=True, slots=True)
class Term:
    """Who acts in a role, since which epoch."""

    role: str
    instance: str
    term: int
    since: Epoch


@dataclass(frozen=True, slots=True)
class ServiceMember:
    """A node that is in a group of the metadata service."""

    node: Annotated[NodeId, "Id of the node."]
    stage: Annotated[str, "joining or leaving: in the write group; member: in the write group and the read group."]
    since: Annotated[Epoch, "The epoch at which the stage began."]


@dataclass(frozen=True, slots=True)
class ServiceGoal:
    """What operators want of the metadata service.

    ``size``: how many members, unless ``automatic``: then the number follows from that of the nodes. ``by_hand``: the
    members were named one by one, so none is exchanged for a better spread. ``excluded``: ids of nodes that are to be
    no members, sorted.
    """

    size: int = 0
    automatic: bool = False
    by_hand: bool = False
    excluded: tuple[NodeId, ...] = ()


@dataclass(frozen=True, slots=True)
class Recovery:
    """A time in which operators overrode the rules of the log; it is remembered for ever."""

    entered: Annotated[Epoch, "The epoch that began it."]
    at: Annotated[Micros, "The state time then."]
    operator: Annotated[str, "The operator who began it."]
    reason: Annotated[str, "Why."]
    forced: Annotated[tuple[Epoch, ...], "The epochs with which parts of the state were replaced, the last 100."]
    left: Annotated[Epoch | None, "The epoch that ended it; null: it goes on."]
    left_by: Annotated[str, "The operator who ended it; empty: it goes on."]


@dataclass(frozen=True, slots=True)
class TakenSnapshot:
    """The state of ``epoch`` is one that readers may begin with, if it was stored and confirmed. ``at``: state time.

    Once it is confirmed: ``position``, the offset behind the entry that made the epoch; ``digest`` of the state;
    ``witnesses``, the roles that have it by their own folds.
    """

    epoch: Epoch
    at: Micros
    position: int = 0
    digest: str = ""
    witnesses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LogBound:
    """How far something goes that was done with the log's entries: up to ``epoch``, before the offset ``position``.

    ``digest``: of the archive's last segment, where it is the archive's.
    """

    epoch: Epoch
    position: int
    digest: str = ""

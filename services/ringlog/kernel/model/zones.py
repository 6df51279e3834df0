"""Zones and their partitions, as parts of the state.

A zone says how many partitions it has, on which nodes they may be (its *data nodes*) and how many replicas each of them
has. Of each partition the state has what Ignite 3 keeps under keys of a metastore, here as fields of one record:

=========  =========================================================================================================
stable     who has the partition; None until a partition that came later has been moved to its first nodes
pending    where it is going: a queue of steps, the last of which is the target; empty: nowhere
planned    where it goes next, once what is pending is stable
cancel     what is pending shall be undone: from which step to which
reduce     nodes to take out, because their replica must be made anew
append     nodes that were taken out, to be put back
change     the epoch of the change that was last acted on: what is not newer has been seen. Only a trigger acts on a
           change; a restart does so where the partition is at its target already
chain      who had the partition before the last forced changes (mode ``high_availability``)
=========  =========================================================================================================

A key's *revision* is the epoch of its last change, its removal included, so a guard on a revision also says that a key
is still absent. ``reached`` is the last configuration that the group is known to have applied: stable, or a step on
the way.

Source: Apache Ignite 3, IEP-104 and its rebalance; decision 68 says where this differs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from ringlog.kernel.model.state_section import part
from ringlog.kernel.values import Epoch


@dataclass(frozen=True, slots=True)
class ZoneMode:
    """How the partitions of a zone are kept.

    ``resets_itself``: one that has lost its majority begins anew from who is left, with what that may lose; so a chain
    says who had it. ``asks_the_living``: a node that is down does not come newly, so targets follow who is alive.
    """

    name: str
    resets_itself: bool = False
    asks_the_living: bool = False


STRONG: Final = "strong"
HIGH_AVAILABILITY: Final = "high_availability"
MODES: Final[dict[str, ZoneMode]] = {
    mode.name: mode
    for mode in (ZoneMode(STRONG), ZoneMode(HIGH_AVAILABILITY, resets_itself=True, asks_the_living=True))
}
"""By name; code that must distinguish modes asks the row."""

PARTITIONS_MAX: Final = 65_000
REPLICAS_MAX: Final = 64
"""The most nodes of a configuration, the survivors of a reset included."""

NEVER: Final = 2**31 - 1
"""Seconds of a timer that never fires."""

EVERY_NODE: Final = "$..*"
"""The filter that every node passes."""


@dataclass(frozen=True, slots=True)
class Zone:
    """A zone: what its partitions have in common."""

    name: Annotated[str, "Its name."]
    partitions: Annotated[int, "Number of its partitions."]
    replicas: Annotated[int, "Replicas of each partition."]
    quorum: Annotated[int, "How many voting replicas must be alive; 2 x quorum - 1 replicas vote."]
    filter: Annotated[str, "JSONPath over the list of nodes: which may be data nodes."]
    profiles: Annotated[tuple[str, ...], "Features that a data node has."]
    scale_up: Annotated[int, "Seconds until nodes that came become data nodes; 2147483647: never."]
    scale_down: Annotated[int, "Seconds until nodes that went are no data nodes; 2147483647: never."]
    mode: Annotated[str, "strong, or high_availability: a lost majority is replaced by who is left."]
    nodes: Annotated[tuple[str, ...], "Ids of the data nodes, ascending."]
    cause: Annotated[Epoch, "The epoch of the change that the data nodes follow from; 0: of the zone itself."]
    changed: Annotated[Epoch, "The epoch that last changed what the assignments follow from."]
    moving: Annotated[int, "How many of its partitions have something pending."]
    liveness: Annotated[Epoch, "In high_availability: the epoch that last declared a data node down or up."] = 0


def mode_of(zone: Zone) -> ZoneMode:
    """The row of a zone's mode."""
    return MODES[zone.mode]


@dataclass(frozen=True, slots=True)
class ZoneStep:
    """A configuration of the group that has a partition."""

    peers: Annotated[tuple[str, ...], "Ids of the nodes that vote, ascending."]
    learners: Annotated[tuple[str, ...], "Ids of the nodes that follow without a vote, ascending."] = ()
    forced: Annotated[bool, "Whether it begins without a majority of the one before."] = False
    from_reset: Annotated[bool, "Whether it is the second phase of a reset."] = False

    @property
    def nodes(self) -> tuple[str, ...]:
        """All of its nodes."""
        return tuple(sorted((*self.peers, *self.learners)))


@dataclass(frozen=True, slots=True)
class ZoneCancel:
    """The intent to undo a step."""

    old: Annotated[ZoneStep, "The configuration to return to."]
    new: Annotated[ZoneStep, "The one that was begun."]
    revision: Annotated[Epoch, "The revision of pending that it cancels."]


@dataclass(frozen=True, slots=True)
class ZoneLink:
    """A configuration that a group had, since an epoch."""

    nodes: Annotated[tuple[str, ...], "Ids of its nodes."]
    epoch: Annotated[Epoch, "The epoch at which it became stable."]


@dataclass(frozen=True, slots=True)
class ZoneRevisions:
    """The epochs at which the keys of a partition last changed; 0: never."""

    stable: Annotated[Epoch, "Of stable."] = 0
    pending: Annotated[Epoch, "Of pending."] = 0
    planned: Annotated[Epoch, "Of planned."] = 0
    reduce: Annotated[Epoch, "Of reduce."] = 0
    append: Annotated[Epoch, "Of append."] = 0


@dataclass(frozen=True, slots=True)
class ZonePartition:
    """A partition of a zone: who has it, and where it goes."""

    zone: Annotated[str, "Name of the zone."]
    number: Annotated[int, "Its number, from 0."]
    stable: Annotated[ZoneStep | None, "Who has it."] = None
    reached: Annotated[ZoneStep | None, "The configuration that its group last applied."] = None
    pending: Annotated[tuple[ZoneStep, ...], "The steps to its target; empty if it goes nowhere."] = ()
    planned: Annotated[ZoneStep | None, "Its target after that."] = None
    cancel: Annotated[ZoneCancel | None, "What is to be undone."] = None
    reduce: Annotated[tuple[str, ...], "Ids of nodes to be taken out."] = ()
    append: Annotated[tuple[str, ...], "Ids of nodes to be put back."] = ()
    chain: Annotated[tuple[ZoneLink, ...], "Configurations since the last change that was not forced."] = ()
    change: Annotated[Epoch, "The epoch of the change that was last acted on."] = 0
    revisions: Annotated[ZoneRevisions, "Epochs at which the keys last changed."] = ZoneRevisions()
    status: Annotated[str, "What the last decision about it came to."] = ""
    reason: Annotated[str, "Why its last step was cancelled; empty if it was not."] = ""
    reset_cause: Annotated[Epoch, "The cause of the last restart or reset of its replicas; 0: there was none."] = 0


def partition_key(zone: str, number: int) -> str:
    """Under what a partition is kept."""
    return f"{zone}/{number}"


ZONES: Final = part(Zone, "zones", prefix="zone/", key="name", most=(10_000, "zones"))
ZONE_PARTITIONS: Final = part(
    ZonePartition, "zones", prefix="partition/", key="zone `/` number", most=(250_000, "partitions of zones")
)
"""The metadata of the two fields of the state."""

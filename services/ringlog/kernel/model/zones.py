"""Zones and their partitions, as sections of the state.

A zone has a number of partitions, the nodes that may hold them (its *data nodes*) and the number of replicas of each.
The state of a partition has the values that Ignite 3 stores under keys of a metastore, here as fields of one record:

=========  =========================================================================================================
stable     the current replicas; None until a partition that was added later has been moved to its first nodes
pending    the current move: a queue of steps, the last of which is the target; empty: none
planned    the next target, once pending is stable
cancel     the request to undo pending: from which step to which
reduce     nodes to remove, because their replica must be recreated
append     removed nodes to add back
change     the epoch of the last change that was acted on; changes that are not newer have been handled. Only a trigger
           acts on a change; a restart does so if the partition is at its target already
chain      the replicas before the last forced changes (mode ``high_availability``)
=========  =========================================================================================================

A key's *revision* is the epoch of its last change or removal, so a guard on a revision also guarantees that a key is
still absent. ``reached`` is the last configuration that the group is known to have applied: stable, or an intermediate
step.

Source: Apache Ignite 3, IEP-104 and its rebalance; decision 68 lists the differences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from ringlog.kernel.model.state_section import part
from ringlog.kernel.values import Epoch


@dataclass(frozen=True, slots=True)
class ZoneMode:
    """How the partitions of a zone are kept.

    ``resets_itself``: a partition that has lost its majority is reset to the remaining nodes, with possible data loss;
    a chain therefore records its earlier replicas. ``asks_the_living``: a node that is down does not become a replica,
    so targets depend on the liveness of nodes.
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
"""Modes by name; code that must distinguish modes uses the fields of this row."""

PARTITIONS_MAX: Final = 65_000
REPLICAS_MAX: Final = 64
"""The maximum number of nodes of a configuration, including the survivors of a reset."""

NEVER: Final = 2**31 - 1
"""Seconds of a timer that never fires."""

EVERY_NODE: Final = "$..*"
"""The filter that every node passes."""


@dataclass(frozen=True, slots=True)
class Zone:
    """A zone: what its partitions have in common."""

    name: Annotated[str, "Its name."]
    partitions: Annotated[int, "Number of its partitions."]
    replicas: Annotated[int, "Number of replicas of each partition."]
    quorum: Annotated[int, "How many voting replicas must be alive; 2 x quorum - 1 replicas vote."]
    filter: Annotated[str, "JSONPath over the list of nodes: which may be data nodes."]
    profiles: Annotated[tuple[str, ...], "Features that a data node has."]
    scale_up: Annotated[int, "Seconds until new matching nodes become data nodes. 2147483647: never."]
    scale_down: Annotated[
        int, "Seconds until nodes that are down or stop matching are removed from the data nodes. 2147483647: never."
    ]
    mode: Annotated[str, "strong, or high_availability: a lost majority is replaced by who is left."]
    nodes: Annotated[tuple[str, ...], "Ids of the data nodes, ascending."]
    cause: Annotated[Epoch, "The epoch of the change that the data nodes follow from; 0: of the zone itself."]
    changed: Annotated[Epoch, "The epoch that last changed what the assignments follow from."]
    moving: Annotated[int, "How many of its partitions have something pending."]
    liveness: Annotated[Epoch, "In high_availability: the epoch that last declared a data node down or up."] = 0


def mode_of(zone: Zone) -> ZoneMode:
    """Return the mode of a zone."""
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
        """Return all of its nodes."""
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
    """Revisions of a partition's keys: the epochs of their last changes. 0: never changed."""

    stable: Annotated[Epoch, "Revision of stable."] = 0
    pending: Annotated[Epoch, "Revision of pending."] = 0
    planned: Annotated[Epoch, "Revision of planned."] = 0
    reduce: Annotated[Epoch, "Revision of reduce."] = 0
    append: Annotated[Epoch, "Revision of append."] = 0


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
    """Return the key of a partition in the state."""
    return f"{zone}/{number}"


ZONES: Final = part(Zone, "zones", prefix="zone/", key="name", most=(10_000, "zones"))
ZONE_PARTITIONS: Final = part(
    ZonePartition, "zones", prefix="partition/", key="zone `/` number", most=(250_000, "partitions of zones")
)
"""The metadata of the two fields of the state."""

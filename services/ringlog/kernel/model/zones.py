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

from typing import Annotated, Final

from ringlog.kernel.model.state_section import StateSection
from ringlog.kernel.values import Epoch, Value


class ZoneMode(Value):
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


class Zone(Value):
    """A zone: the common settings of its partitions."""

    name: Annotated[str, "Name of the zone."]
    partitions: Annotated[int, "Number of partitions."]
    replicas: Annotated[int, "Number of replicas of each partition."]
    quorum: Annotated[int, "Number of voting replicas that must be alive. At most 2 x quorum - 1 replicas vote."]
    filter: Annotated[str, "JSONPath filter over the list of nodes, which selects the data nodes."]
    profiles: Annotated[tuple[str, ...], "Storage profiles: features that each data node must have."]
    scale_up: Annotated[int, "Seconds until new matching nodes become data nodes. 2147483647: never."]
    scale_down: Annotated[int, "Seconds until nodes that no longer match are removed. 2147483647: never."]
    mode: Annotated[str, "strong, or high_availability (resets partitions that lose their majority)."]
    nodes: Annotated[tuple[str, ...], "Ids of the data nodes, ascending."]
    cause: Annotated[Epoch, "Cause (an epoch) of the last SetDataNodes. 0: none."]
    changed: Annotated[Epoch, "Epoch of the last change that affects the targets of partitions."]
    moving: Annotated[int, "Number of partitions with pending steps."]
    liveness: Annotated[Epoch, "Epoch that last declared a data node down or up. Only for high_availability."] = 0


def mode_of(zone: Zone) -> ZoneMode:
    """Return the mode of a zone."""
    return MODES[zone.mode]


class ZoneStep(Value):
    """A configuration of the group of a partition."""

    peers: Annotated[tuple[str, ...], "Ids of the voting nodes, ascending."]
    learners: Annotated[tuple[str, ...], "Ids of the nodes without a vote, ascending."] = ()
    forced: Annotated[bool, "Whether the step starts without a majority of the previous configuration."] = False
    from_reset: Annotated[bool, "Whether the step is the second phase of a reset."] = False

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return all of its nodes."""
        return tuple(sorted((*self.peers, *self.learners)))


class ZoneCancel(Value):
    """A request to undo a step."""

    old: Annotated[ZoneStep, "Configuration to return to."]
    new: Annotated[ZoneStep, "Configuration of the step to undo."]
    revision: Annotated[Epoch, "Revision of pending that the cancel applies to."]


class ZoneLink(Value):
    """A configuration of a group and its first epoch."""

    nodes: Annotated[tuple[str, ...], "Ids of the nodes."]
    epoch: Annotated[Epoch, "Epoch that made the configuration stable."]


class ZoneRevisions(Value):
    """Revisions of a partition's keys: the epochs of their last changes. 0: never changed."""

    stable: Annotated[Epoch, "Revision of stable."] = 0
    pending: Annotated[Epoch, "Revision of pending."] = 0
    planned: Annotated[Epoch, "Revision of planned."] = 0
    reduce: Annotated[Epoch, "Revision of reduce."] = 0
    append: Annotated[Epoch, "Revision of append."] = 0


class ZonePartition(Value):
    """A partition of a zone: its present replicas and its pending steps."""

    zone: Annotated[str, "Name of the zone."]
    number: Annotated[int, "Number of the partition, from 0."]
    stable: Annotated[ZoneStep | None, "Present replicas. Null: the partition has none yet."] = None
    reached: Annotated[ZoneStep | None, "Last applied configuration: stable or an intermediate step."] = None
    pending: Annotated[tuple[ZoneStep, ...], "Steps of the move; the last is the target. Empty: no move."] = ()
    planned: Annotated[ZoneStep | None, "Next target, once pending is applied. Null: none."] = None
    cancel: Annotated[ZoneCancel | None, "Request to undo the pending step. Null: none."] = None
    reduce: Annotated[tuple[str, ...], "Ids of nodes to remove, because their replicas are rebuilt."] = ()
    append: Annotated[tuple[str, ...], "Ids of removed nodes to add back."] = ()
    chain: Annotated[tuple[ZoneLink, ...], "Configurations since the last unforced change, in high_availability."] = ()
    change: Annotated[Epoch, "Epoch of the last change that was acted on."] = 0
    revisions: Annotated[ZoneRevisions, "Revisions of the keys."] = ZoneRevisions()
    status: Annotated[str, "Result of the last decision on the partition, e.g. pending_updated or idle."] = ""
    reason: Annotated[str, "Reason of the cancel of the last step. Empty: not cancelled."] = ""
    reset_cause: Annotated[Epoch, "Cause (an epoch) of the last restart or reset of replicas. 0: none."] = 0


def partition_key(zone: str, number: int) -> str:
    """Return the key of a partition in the state."""
    return f"{zone}/{number}"


ZONES: Final = StateSection("zones", Zone, "zones", prefix="zone/", key="name", most=(10_000, "zones"))
ZONE_PARTITIONS: Final = StateSection(
    "zone_partitions",
    ZonePartition,
    "zones",
    prefix="partition/",
    key="zone `/` number",
    most=(250_000, "partitions of zones"),
)
"""The two sections of the state."""

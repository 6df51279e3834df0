"""The planner's input and answer: plain values. One module makes them from the state.

A *place* is a shard of a node. A *host* is a node that has tablets or may get some; a node that has not joined the
cluster is not a host. A *draining* host must give away all its tablets. A host that is not *alive* can neither send nor
receive, so its tablets are rebuilt from other replicas.

A plan is an **increment**: at most one migration of each tablet. The balancer asks for plans until one is empty, and
counts running migrations as finished.

Source: ScyllaDB, ``service/tablet_allocator.cc`` and ``docs/dev/topology-over-raft.md``, "Load balancing".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ringlog.kernel.tablets import stages
from ringlog.kernel.tablets.streaming import StreamUse
from ringlog.kernel.values import NodeId, Value, field

Place = tuple[NodeId, int]
"""Node and shard."""

NOWHERE: Final[Place] = ("", 0)
"""The source of an added replica, and the target of a removed one."""

GIB: Final = 1 << 30

MIGRATION: Final = stages.MIGRATION.name
INTRANODE: Final = stages.INTRANODE.name
REBUILD: Final = stages.REBUILD.name


class BalancedHost(Value):
    """A node that has tablets or may get some.

    ``weight``: set by operators, relative to other nodes. ``capacity``: its shards times its weight; it counts while no
    node measures bytes. ``gone``: the node has left, and the rows that only it had are lost.
    """

    id: NodeId
    datacenter: str
    rack: str
    shards: int
    capacity: int = 1
    draining: bool = False
    alive: bool = True
    gone: bool = False
    weight: int = 1

    def __post_init__(self) -> None:
        assert self.draining or not self.gone, "a node that has left is drained"
        assert not (self.gone and self.alive), "a node that has left does not stream"

    @property
    def serving(self) -> bool:
        """Whether it may get tablets."""
        return self.alive and not self.draining


class TabletGroup(Value, eq=False):
    """The tablets of a table and of its co-located tables, which have the same places.

    ``tablet``, ``node``, ``shard``: one row for each settled replica, by tablet; ``node`` is an index into ``nodes``,
    which are all hosts. ``together``: the co-located tables, without ``table``. ``racks``: per datacenter the racks
    that the replication names; none: any rack. ``merging``: tablets 2i and 2i + 1 are to come together. ``paused``: its
    tablets do not move. ``anywhere``: its replication names no datacenters, so its replicas count as one group.
    ``moving``: the tablets in transition, with their places afterwards.
    """

    table: str
    count: int
    nodes: tuple[NodeId, ...]
    tablet: NDArray[np.int64]
    node: NDArray[np.int64]
    shard: NDArray[np.int64]
    together: tuple[str, ...] = ()
    racks: Mapping[str, frozenset[str]] = field(default_factory=dict)
    moving: Mapping[int, tuple[Place, ...]] = field(default_factory=dict)
    merging: bool = False
    paused: bool = False
    anywhere: bool = False

    def __post_init__(self) -> None:
        assert len(self.tablet) == len(self.node) == len(self.shard), "columns have the same length"

    @property
    def tables(self) -> tuple[str, ...]:
        """All tables that move together."""
        return (self.table, *self.together)

    def places(self, number: int) -> tuple[Place, ...]:
        """Return the settled places of a tablet."""
        first, last = np.searchsorted(self.tablet, (number, number + 1)).tolist()
        rows = zip(self.node[first:last].tolist(), self.shard[first:last].tolist(), strict=True)
        return tuple([(self.nodes[node], shard) for node, shard in rows])


BYTES: Final = "bytes"
READS: Final = "reads"
WRITES: Final = "writes"
CPU: Final = "cpu"
TRAFFIC: Final = (READS, WRITES, CPU)
"""The traffic of a tablet, as averages per second: reads, writes, microseconds of processor time."""
LOADS: Final = (BYTES, *TRAFFIC)
"""The loads that a node may report of each tablet."""

Reported = Mapping[str, Mapping[str, Mapping[int, int]]]
"""Kind of load, table, tablet: amount."""


class MeasuredLoads(Value):
    """The last report of a node.

    ``capacity``: in bytes, including all free space; None if it is not measured. ``loads``: the loads of its tablets.
    ``earlier``: loads of tables, converted from a report before a split or merge. Only the sizing uses them.
    """

    capacity: int | None
    loads: Reported
    earlier: Reported = field(default_factory=dict)

    def of_table(self, kind: str, table: str) -> Mapping[int, int]:
        """Return the amounts of a table by tablet, from the report or else from before a split or merge."""
        return self.loads.get(kind, {}).get(table) or self.earlier.get(kind, {}).get(table, {})


class Limits(Value):
    """The settings in force. Streams are limited per shard, per node and in the cluster; 0 for a node: no limit."""

    reads_per_shard: int = 2
    writes_per_shard: int = 2
    reads_per_node: int = 0
    writes_per_node: int = 0
    per_cluster: int = 1_000
    threshold_permille: int = 10
    target_bytes: int = 5 * GIB
    table_slack_percent: int = 25
    tablets_per_shard_goal: int = 100
    tablets_per_shard_least: int = 10
    resizes_per_plan: int = 10
    tablets_most: int = 1 << 20
    reads_percent: int = 0
    writes_percent: int = 0
    cpu_percent: int = 0
    target_reads: int = 0
    target_writes: int = 0
    target_cpu: int = 0

    @property
    def traffic_targets(self) -> dict[str, int]:
        """The traffic per second of one tablet by kind. A kind without a target does not split tables."""
        targets = {READS: self.target_reads, WRITES: self.target_writes, CPU: self.target_cpu}
        return {kind: target for kind, target in targets.items() if target}

    @property
    def least_bytes(self) -> int:
        """The least size that a tablet counts with."""
        return max(1, self.target_bytes // 100)


class BalanceInput(Value):
    """The complete input of a plan. ``seed`` breaks ties between hosts; ``busy``: the reason why nothing may start now.

    ``refused``: (table, tablet) of moves that the state refuses, with code and detail; these tablets stay. ``streams``:
    the transitions that count in the streaming limits now, including tables that the balancer does not move.
    """

    hosts: Sequence[BalancedHost]
    tables: Sequence[TabletGroup]
    measured: Mapping[NodeId, MeasuredLoads] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    seed: int = 0
    busy: str = ""
    refused: Mapping[tuple[str, int], tuple[str, str]] = field(default_factory=dict)
    streams: Sequence[StreamUse] = ()


# ------------------------------------------------------------------------------------------------------- answers


DRAIN: Final = "drain"
REBUILDS: Final = "rebuild_lost"
BALANCE: Final = "balance"
SHARDS: Final = "balance_shards"
TABLE_LIMIT: Final = "table_limit"
CO_LOCATE: Final = "co_locate"
MORE: Final = "replica_wanted"
FEWER: Final = "replica_too_many"

WHY: Final[Mapping[str, str]] = {
    DRAIN: "its node is drained",
    REBUILDS: "its node is gone: the replica is rebuilt from the others",
    BALANCE: "its node has more load than the target, before and after the move",
    SHARDS: "its shard has more load than another shard of the node",
    TABLE_LIMIT: "its node has more tablets of the table than its share allows",
    CO_LOCATE: "its sibling is there, and both are to be merged",
    MORE: "the replication requires one more replica",
    FEWER: "the replication requires one replica less",
}
"""The reasons why a tablet moves."""

CANNOT_MEET: Final = "cannot_meet"
STATISTICS_MISSING: Final = "statistics_missing"

STOPS: Final[Mapping[str, str]] = {
    "balanced": "the loads differ by less than the threshold",
    "load_inversion": "each move would leave the source with less load than the target",
    "no_candidates": "the placement rules forbid every move",
    "limits": "the maximum number of streams is in progress",
    "skip_limit": "too many targets were rejected: the search continues with other sources",
    "statistics_missing": "the node has not reported the sizes of its tablets",
    "dead": "the node is down: its tablets move when it is removed",
    "draining": "the node is drained and receives no tablets",
    "drain_first": "a node of the datacenter is drained first",
    "drain_impossible": "no other shard can take a replica of the drained node",
    "too_few_replicas": "too few replicas are alive to rebuild the lost one",
    "in_transition": "the tablet is migrating",
    "paused": "an operator paused it",
    "node_request": "a node operation waits for migrating tablets",
    "holds_replica": "the node has a replica of the tablet",
    "other_datacenter": "a replica must stay in its datacenter",
    "rack_pinned": "the replication names the rack",
    "rack_full": "the target rack would have more replicas of the tablet than the source rack",
    "table_limit": "the node has its maximum share of the tablets of the table",
    "refused": "the validator would reject the move",
    "cannot_meet": "siblings of a merge cannot move together: nodes of other replicas are down, drained or unknown",
    "nothing_to_do": "there are no tablets, or only one node",
}
"""The reasons why a datacenter, node or tablet does not change."""


class Migration(Value):
    """One tablet of one table moves from ``source`` to ``target``.

    ``loads``: of source and target before, of source and target after, in millionths of the capacity; None if loads did
    not decide.
    """

    table: str
    tablet: int
    source: Place
    target: Place
    kind: str
    why: str
    loads: tuple[int, int, int, int] | None = None

    def __post_init__(self) -> None:
        assert self.why in WHY, self.why
        assert stages.KINDS[self.kind].exchanges, "a plan contains moves only, no repairs"
        assert (self.loads is None) == (self.why != BALANCE), "only balance between hosts compares loads"


class BalanceStop(Value):
    """The reason why ``what`` (a datacenter, node or ``table/tablet``) does not change: a code of ``STOPS``, and
    details.
    """

    what: str
    code: str
    detail: str = ""

    def __post_init__(self) -> None:
        assert self.code in STOPS, self.code


class Obstacle(Value):
    """A drain that cannot succeed: the replica of ``table``'s ``tablet`` on ``node`` has no target."""

    node: NodeId
    table: str
    tablet: int
    datacenter: str
    rack: str
    code: str
    detail: str


class BalancePlan(Value):
    """The next migrations, the reasons why other tablets stay, and the drains that cannot succeed."""

    migrations: tuple[Migration, ...] = ()
    stops: tuple[BalanceStop, ...] = ()
    obstacles: tuple[Obstacle, ...] = ()

"""A producer of base-table writes: mutations keyed by (table, partition key), like an application's.

No production code is re-implemented here. The writes are the load of a run, and sending is the Kafka client's task.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ringlog.kernel.ring.murmur3 import compose
from ringlog.kernel.values import Micros
from ringlog.runtime.draw import draw_uuid
from ringlog.wire.records import Cell, Mutation, encode_mutation, mutation_key, mutation_partition
from ringlog_sim.actors.nodes.row_reads import WRITTEN, AcknowledgedWrite
from ringlog_sim.devices.broker import MUTATIONS
from ringlog_sim.devices.world import MS, Chance, SimHost, Unanswered
from ringlog_sim.replica import Step
from ringlog_sim.stories.moving_tablets import KEYSPACE as IN_TABLETS

if TYPE_CHECKING:
    from ringlog_sim.actors.nodes.node import SimNode
    from ringlog_sim.simulation import Simulation

KEYSPACE, TABLE = "ks", "t"
IMAGED = ("i", "j")
"""Tables with images, in runs that have them. Their columns are those of the load's table and one more."""
RESPELLED = "respelled"
"""The table whose columns are dropped and renamed, in runs that have it."""
REUSED = "reused"
"""The keyspace that is dropped and created again with the same name, in runs that have it. It has only registers."""
KEYS = 12
"""Number of base partition keys. It is small, so several writes share a partition."""
OVERWRITTEN_KEYS = 4
"""The same for runs that store rows on disk."""
BURST_GAP_US: Micros = 30 * MS
OTHER_KEY = "another key"
"""A record key that no write has."""
CELLS_OF_REST = {7: Cell("nosuch", b"x"), 17: Cell("v", b"\xff")}
"""Timestamp modulo 40 to the cell of a rejected write: an unknown column, and invalid text."""
KEY_REST = 27
"""The same for a write with another record key."""


class SimProducer:
    """A sender of bursts of writes. It repeats each record until it is acknowledged; copies of a write count as one
    write.
    """

    def __init__(self, sim: Simulation, host: SimHost) -> None:
        self.sim = sim
        self.host = host
        self._chance = Chance(sim.world.seed, f"producer/{host.name}")
        self.unfinished = 0
        self._misplaced: set[str | None] = set()

    def burst(self, count: int, late: bool = False) -> None:
        """Start to send ``count`` writes. ``late`` writes have timestamps just before the last generation."""
        self._start(lambda: self._draw(late), count)

    def imaged_burst(self, number: int, count: int) -> None:
        """Start to send ``count`` writes to tables with images. ``number``: action number, the seed of the writes."""
        chance = Chance(self.sim.world.seed, f"imaged/{number}")
        self._start(lambda: self._draw_imaged(chance), count)

    def tablet_burst(self, number: int, count: int, keyspace: str = IN_TABLETS) -> None:
        """Start to send ``count`` writes to the table in tablets or in a zone.

        ``number``: action number, the seed of the writes.
        """
        chance = Chance(self.sim.world.seed, f"tablet_burst/{number}")
        self._start(lambda: self._draw_tablet(chance, keyspace), count)

    def columns_burst(self, number: int, count: int) -> None:
        """Start to send ``count`` writes to the table with changing columns.

        ``number``: action number, the seed of the writes.
        """
        chance = Chance(self.sim.world.seed, f"columns_burst/{number}")
        self._start(lambda: self._draw_respelled(chance), count)

    def read_all(self, node: SimNode) -> None:
        """Read every key from one node, now."""
        for key in range(KEYS):
            node.read(f"{KEYSPACE}.{TABLE}", compose([b"key-%d" % key]))

    def _ended(self, _: str) -> None:
        self.unfinished -= 1

    def _start(self, draw: Callable[[], Mutation | None], count: int) -> None:
        self.unfinished += 1
        self.sim.world.spawn(self.host, "producer.burst", self._send_all(draw, count), self._ended)

    def _send_all(self, draw: Callable[[], Mutation | None], count: int) -> Step:
        for _ in range(count):
            mutation = draw()
            if mutation is None:
                yield BURST_GAP_US
                continue
            key = mutation_key(mutation.keyspace, mutation.table, mutation.partition_key[0] or b"").decode()
            partition = mutation_partition(key.encode(), len(self.sim.broker.topics[MUTATIONS]))
            if mutation.mutation_id in self._misplaced:
                key = OTHER_KEY
            data = encode_mutation(mutation)
            for check in self.sim.on_mutation:
                check.mutation(key, mutation)
            for _attempt in range(5):
                try:
                    end = yield from self.sim.broker.append(self.host, MUTATIONS, [(key, data)], partition)
                    self._acknowledged(mutation, partition, end)
                    break
                except Unanswered:
                    continue
            yield BURST_GAP_US

    def _acknowledged(self, mutation: Mutation, partition: int, end: int) -> None:
        if (mutation.keyspace, mutation.table) == (KEYSPACE, TABLE):
            key = compose([part for part in mutation.partition_key if part is not None])
            self.sim.shared[WRITTEN].append(AcknowledgedWrite(f"{KEYSPACE}.{TABLE}", key, partition, end))

    def _draw_tablet(self, chance: Chance, keyspace: str) -> Mutation:
        """Return a write with one of many keys, so that each tablet gets some. Some timestamps are after a generation's
        start.
        """
        shift = chance.weighted([(0, 6), (-400 * MS, 2), (1_800 * MS, 2)])
        return Mutation(
            mutation_id=draw_uuid(chance),
            cluster_id=self.sim.cluster_id,
            keyspace=keyspace,
            table=TABLE,
            timestamp=self.sim.world.clock(self.host) + shift + chance.below(1_000),
            ttl=None,
            operation="INSERT",
            partition_key=(b"key-%d" % chance.below(64),),
            clustering_key=(chance.below(4).to_bytes(4, "big"),),
            cells=(Cell("v", b"x"),),
        )

    def _draw_respelled(self, chance: Chance) -> Mutation | None:
        """Return a write by one of the latest versions. Each value names its version and column.

        Return None before the table exists and its versions apply to writes.
        """
        state = self.sim.log.state
        table = state.tables.get(f"{KEYSPACE}.{RESPELLED}")
        if table is None or not state.settled.until:
            return None
        versions = state.table_lives.get(table.full_name, ())
        table = chance.pick([one.table for one in versions[-1].versions[-3:]] if versions else [table])
        names = [column.name for column in table.columns if column.name not in ("k", "c") and chance.happens(0.7)]
        return Mutation(
            mutation_id=draw_uuid(chance),
            cluster_id=self.sim.cluster_id,
            keyspace=KEYSPACE,
            table=RESPELLED,
            timestamp=self.sim.world.clock(self.host) + chance.pick([0, 0, -100 * MS]) + chance.below(1_000),
            ttl=None,
            operation=chance.pick(["INSERT", "UPDATE"]) if names else "INSERT",
            partition_key=(b"own-%d" % chance.below(3),),
            clustering_key=(chance.below(2).to_bytes(4, "big"),),
            cells=tuple(Cell(name, f"{table.version}/{name}".encode()) for name in names),
            table_id=table.id,
            table_version=table.version,
        )

    def _draw_imaged(self, chance: Chance) -> Mutation:
        """Return a write to one of few rows, so that writes overlap. It covers all operations, nulls, TTLs and late
        times.
        """
        operation = chance.weighted([("INSERT", 5), ("UPDATE", 5), ("ROW_DELETE", 2), ("PARTITION_DELETE", 1)])
        cells: list[Cell] = []
        if not operation.endswith("DELETE"):
            values = (b"a", b"b", b"c", None)
            cells = [Cell(name, chance.pick(values)) for name in ("v", "w") if chance.happens(0.6)]
        shift = chance.weighted(
            [(0, 8), (-100 * MS, 3), (-400 * MS, 2), (-1_400 * MS, 1), (800 * MS, 1), (1_800 * MS, 1)]
        )
        return Mutation(
            mutation_id=draw_uuid(chance),
            cluster_id=self.sim.cluster_id,
            keyspace=KEYSPACE,
            table=chance.weighted([(IMAGED[0], 3), (IMAGED[1], 1)]),
            timestamp=self.sim.world.clock(self.host) + shift + chance.below(1_000),
            ttl=1 if cells and chance.happens(0.15) else None,
            operation=operation,
            partition_key=(b"key-%d" % chance.below(3),),
            clustering_key=() if operation == "PARTITION_DELETE" else (chance.below(2).to_bytes(4, "big"),),
            cells=tuple(cells),
        )

    def _draw_overwrite(self, timestamp: Micros) -> Mutation:
        """Return a write or a delete of one of few rows, so that many versions are redundant."""
        chance = self._chance
        operation = chance.weighted([("INSERT", 6), ("UPDATE", 6), ("ROW_DELETE", 3), ("PARTITION_DELETE", 1)])
        is_delete = operation.endswith("DELETE")
        return Mutation(
            mutation_id=draw_uuid(chance),
            cluster_id=self.sim.cluster_id,
            keyspace=KEYSPACE,
            table=TABLE,
            timestamp=timestamp,
            ttl=None,
            operation=operation,
            partition_key=(b"key-%d" % chance.below(OVERWRITTEN_KEYS),),
            clustering_key=() if operation == "PARTITION_DELETE" else (chance.below(2).to_bytes(4, "big"),),
            cells=(Cell("v", chance.pick([b"x", b"y"])),) if not is_delete and chance.happens(0.7) else (),
        )

    def _draw(self, late: bool) -> Mutation:
        chance, now = self._chance, self.sim.world.clock(self.host)
        # Most writes have the current time. Some are near the edges of the acceptance window, or beyond.
        shift = chance.weighted(
            [(0, 12), (-200 * MS, 3), (-800 * MS, 2), (-1400 * MS, 1), (800 * MS, 2), (1800 * MS, 1)]
        )
        generations = self.sim.log.state.generations
        timestamp = now + shift + chance.below(1000)
        if late and generations:
            timestamp = generations[-1].timestamp - 1 - chance.below(1000)
        if self.sim.shared["keeps_rows"]:
            return self._draw_overwrite(timestamp)
        name, rest = draw_uuid(chance), timestamp % 40
        if rest == KEY_REST:
            self._misplaced.add(name)
        return Mutation(
            mutation_id=name,
            cluster_id=self.sim.cluster_id,
            keyspace=KEYSPACE,
            table=TABLE,
            timestamp=timestamp,
            ttl=None,
            operation="INSERT",
            partition_key=(b"key-%d" % chance.below(KEYS),),
            clustering_key=(chance.below(4).to_bytes(4, "big"),),
            cells=(CELLS_OF_REST.get(rest, Cell("v", b"x")),) if timestamp % 2 else (),
        )

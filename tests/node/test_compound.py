"""Writes of every kind during a join: all replicas match a brute-force model."""

from __future__ import annotations

from collections import Counter
from random import Random

from ringlog.client.data.row_merge import merged
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.schema.tables import CreateTable
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.operations.stages import FINISHED
from ringlog.kernel.ownership.placements import group_at, nodes_of
from ringlog.kernel.ring.murmur3 import token_of
from ringlog.kernel.rows.reading import SeenRow
from ringlog.kernel.values import CdcOptions, Column, Replication, replace
from ringlog.node.rows.replica import RowReplica
from ringlog.wire.records import decode_mutation, encode_mutation
from tests.kernel.entries import applied, founded, uuid
from tests.kernel.rows.histories import KINDS, SECOND, TYPES, Statement, draw, model, mutation_of, viewed
from tests.node.streams import received, source_rows
from tests.node.world import begin_join, joined, name_of, step
from tests.record_keys import record_key

TABLE = "ks.t"
KEYS = tuple(f"k{number}".encode() for number in range(12))


class World:
    """Replicas of four nodes; the fourth one joins. ``written``: the statements of each key."""

    def __init__(self, dice: Random) -> None:
        self.dice = dice
        state = founded()
        for number in range(1, 4):
            state = joined(state, number, tuple(dice.randrange(-(2**63) + 1, 2**63) for _ in range(3)))
        columns = tuple(Column(name, kind, name == "s") for name, kind in TYPES.items())
        table = CreateTable("ks", "t", uuid(1, space=9), columns, ("p",), ("c", "d"), CdcOptions())
        self.state: ClusterState = applied(state, CreateKeyspace("ks", Replication("simple", 2)), table)
        self.holders = {name_of(number): RowReplica(name_of(number)) for number in range(1, 5)}
        self.written: dict[bytes, list[Statement]] = {key: [] for key in KEYS}
        self.met: Counter[str] = Counter()
        self.offset = 0
        for row_replica in self.holders.values():
            row_replica.positions[0] = 0
            row_replica.caught_up = True
            row_replica.adopt(self.state)

    def write(self, count: int) -> None:
        for _ in range(count):
            key = self.dice.choice(KEYS)
            statements = [draw(self.dice, 5) for _ in range(self.dice.randint(1, 4))]
            self.met.update(one.kind for one in statements)
            self.written[key] += statements
            mutation = replace(mutation_of(statements), partition_key=(key,))
            self.offset += 1
            for row_replica in self.holders.values():
                assert row_replica.validate_record(encode_mutation(mutation), 0, record_key(mutation)) in (
                    "kept",
                    "not_mine",
                )
                row_replica.advance_position(0, self.offset)

    def join(self) -> None:
        tokens = tuple(self.dice.randrange(-(2**63) + 1, 2**63) for _ in range(3))
        self.state, operation = begin_join(self.state, 4, tokens)
        joiner = self.holders[name_of(4)]
        while self.state.operations[operation].stage != FINISHED:
            fetches = joiner.adopt(self.state)
            self.write(5)  # before the sources adopt it
            for row_replica in self.holders.values():
                row_replica.adopt(self.state)
            for fetch in fetches:
                source = self.holders[fetch.source]
                snapshot = source_rows(source, fetch)
                assert received(joiner, fetch, snapshot)
            self.write(5)
            self.state = step(self.state, operation, tuple(joiner.reports.values()))
        for row_replica in self.holders.values():
            row_replica.adopt(self.state)

    def check(self) -> None:
        (placement,) = self.state.placements.values()
        for key, statements in self.written.items():
            for name in nodes_of(group_at(placement, token_of(key)).read):
                _, versions = self.holders[name].read(TABLE, key)
                shape = self.holders[name].shape(TABLE)
                for now in (0, 4 * SECOND, 60 * SECOND):
                    live = merged((decode_mutation(version.value) for version in versions), shape, now)
                    static = {cell.column: cell.value for cell in live.static}
                    rows = [SeenRow(r.clustering_key, {c.column: c.value for c in r.cells}, static) for r in live.rows]
                    got = tuple(rows) or ((SeenRow(None, {}, static),) if static else ())
                    assert viewed(got) == model(statements, now), (key, name, now)


def test_replicas_match_the_model_after_a_join_under_load() -> None:
    met: Counter[str] = Counter()
    streamed = 0
    for seed in range(5):
        world = World(Random(seed))
        world.write(60)
        world.check()
        world.join()
        world.check()
        met += world.met
        streamed += sum(report.rows for op in world.state.operations.values() for report in op.reports)
    assert set(met) == set(KINDS)
    assert streamed > 50

"""Rows of tables in tablets: their replicas follow the tablet map through all stages."""

from __future__ import annotations

import pytest

from ringlog.kernel.balance.model import CPU, READS, WRITES
from ringlog.kernel.commands.placement.tablets import (
    AdvanceTablets,
    MigrateTablets,
    RevertTablets,
    Shard,
    TabletAdvance,
    TabletMigration,
    TabletRevert,
)
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.schema.tables import CreateTable
from ringlog.kernel.model.tablet_map import Tablet
from ringlog.kernel.ring.murmur3 import token_of
from ringlog.kernel.ring.ranges import in_range
from ringlog.kernel.tablets.stages import STREAMING, next_stage, nodes_of, session, writers
from ringlog.kernel.values import CdcOptions, Column, Replication, TabletOptions, Witness, replace
from ringlog.node.registers.served import ServedRequests
from ringlog.node.rows.replica import NotServed, RowFetch, RowReplica
from ringlog.node.rows.row_reads import answered
from ringlog.protocol.balancer.load_reports import SELDOM_US, own_tablets
from ringlog.wire.data import ReadRowsRequest
from ringlog.wire.records import Mutation, encode_mutation
from tests.kernel.entries import applied, uuid
from tests.node.streams import received, source_rows
from tests.node.world import APPENDED, cluster, name_of, write
from tests.record_keys import record_key

TABLE = "tab.orders"


class Rows:
    """Four nodes that follow log and topic at once; pending streams are in ``fetches``."""

    def __init__(self) -> None:
        state = cluster((-(2**62),), (0,), (2**61,), (2**62,))
        columns = (Column("customer", "text"), Column("number", "bigint"), Column("note", "text"))
        self.state = applied(
            state,
            CreateKeyspace("tab", Replication("tablets", 2)),
            CreateTable(
                "tab",
                "orders",
                uuid(2, space=9),
                columns,
                ("customer",),
                ("number",),
                CdcOptions(),
                tablets=TabletOptions(4),
            ),
        )
        self.holders = {name_of(number): RowReplica(name_of(number)) for number in range(1, 5)}
        for row_replica in self.holders.values():
            row_replica.positions[0] = 0
            row_replica.caught_up = True
        self.topic: list[Mutation] = []
        self.fetches: list[tuple[RowReplica, RowFetch]] = []
        self.write(60)

    def write(self, count: int) -> None:
        """Write more rows; every node reads them."""
        for number in range(len(self.topic), len(self.topic) + count):
            self.topic.append(write(f"c{number}", number, APPENDED + number, keyspace="tab", table="orders"))
        self.take()

    def take(self) -> None:
        for row_replica in self.holders.values():
            self.fetches += [(row_replica, fetch) for fetch in row_replica.adopt(self.state)]
            for offset in range(row_replica.positions[0], len(self.topic)):
                row_replica.validate_record(
                    encode_mutation(self.topic[offset]), APPENDED, record_key(self.topic[offset])
                )
                row_replica.advance_position(0, offset + 1)

    def stream(self) -> int:
        """Deliver the pending streams and return the number of rows."""
        rows = 0
        for row_replica, fetch in self.fetches:
            source = self.holders[fetch.source]
            found = source_rows(source, fetch)
            assert received(row_replica, fetch, found)
            assert not received(row_replica, fetch, found), "each row arrives once"
            rows += len(found)
        self.fetches.clear()
        return rows

    def tablet(self, index: int = 1) -> Tablet:
        return self.state.tablets[TABLE].tablet(index)

    def advance(self) -> None:
        """Advance tablet 1 after all nodes have acknowledged and reported."""
        transition = self.tablet().transition
        assert transition is not None
        name = session(TABLE, 1, transition)
        reports = tuple(
            row_replica.reports[name] for row_replica in self.holders.values() if name in row_replica.reports
        )
        step = TabletAdvance(TABLE, 1, next_stage(transition), (), reports)
        witnesses = tuple(Witness(node, self.state.epoch, self.state.epoch) for node in sorted(self.holders))
        self.state = applied(self.state, AdvanceTablets((step,), witnesses))
        self.take()

    def check(self) -> None:
        """Check that each node stores exactly the rows of the tablets that it is a write replica of."""
        for node, row_replica in self.holders.items():
            mine = [one for one in self.state.tablets[TABLE] if node in nodes_of(writers(one))]
            wanted = {
                encode_mutation(row)
                for row in self.topic
                if any(in_range(token_of(row.partition_key[0] or b""), one.start, one.end) for one in mine)
            }
            held = {version.value for version in row_replica.store.versions(((0, 0),)) if version.table == TABLE}
            assert held == wanted


@pytest.fixture
def rows() -> Rows:
    made = Rows()
    made.check()
    source = made.tablet().replicas[0]
    there = {replica.node for replica in made.tablet().replicas}
    rack = made.state.nodes[source.node].rack
    target = next(one for one in made.holders if one not in there and made.state.nodes[one].rack == rack)
    one = TabletMigration(TABLE, 1, "migration", Shard(source.node, source.shard), Shard(target, 1))
    made.state = applied(made.state, MigrateTablets((one,)))
    made.take()
    return made


def test_rows_are_streamed_in_their_stage_and_removed_by_former_replicas(rows: Rows) -> None:
    streamed = 0
    while (transition := rows.tablet().transition) is not None:
        rows.write(8)
        assert bool(rows.fetches) == (transition.stage == STREAMING)
        streamed += rows.stream()
        if transition.stage == STREAMING:
            rows.check()
            name = session(TABLE, 1, transition)
            assert [
                row_replica.reports[name].rows for row_replica in rows.holders.values() if name in row_replica.reports
            ] == [streamed]
        rows.advance()
    assert streamed
    rows.write(8)
    rows.check()


def test_a_closed_session_sends_and_accepts_nothing(rows: Rows) -> None:
    while not rows.fetches:
        rows.advance()
    ((row_replica, fetch),) = rows.fetches
    source = rows.holders[fetch.source]
    found = source_rows(source, fetch)
    with pytest.raises(NotServed):
        source_rows(source, replace(fetch, ranges=((5, 6),)))
    rows.state = applied(rows.state, RevertTablets((TabletRevert(TABLE, 1, "no"),)))
    rows.take()
    assert not received(row_replica, fetch, found)
    while rows.tablet().transition is not None:
        rows.advance()
    rows.check()


@pytest.mark.parametrize("kind", [WRITES, READS, "reads of a peer"])
def test_each_request_is_measured_for_its_tablet(kind: str) -> None:
    rows = Rows()
    node, row_replica = next(iter(rows.holders.items()))
    row_replica.served = ServedRequests()
    own = own_tablets(rows.state, node)
    row_replica.served.rates(rows.state, own, 0)
    if kind == WRITES:
        rows.write(200)
    for row in rows.topic if kind != WRITES else ():
        key = row.partition_key[0] or b""
        if row_replica.has(TABLE, token_of(key), is_write=False):
            if kind == READS:
                row_replica.read(TABLE, key)
            else:
                table_id = rows.state.tables[TABLE].id
                request = ReadRowsRequest("", node, rows.state.epoch, "", TABLE, table_id, key, (), False, False)
                assert answered(row_replica, request).refused == ""
    found = row_replica.served.rates(rows.state, own, SELDOM_US)
    counted = WRITES if kind == WRITES else READS
    assert set(found[counted][TABLE].values()) == {1}, "few per second, rounded up"
    assert all(amount > 0 for amount in found[CPU][TABLE].values())

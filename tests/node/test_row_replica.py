"""Random interleavings of writes, join epochs and streams that arrive late, twice or never.

The model: at the end each node stores exactly the writes of which it is a write replica, each once.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlog.client.data.row_merge import merged
from ringlog.kernel.commands.schema.tables import AlterTable, CreateTable, DropTable
from ringlog.kernel.commands.topology.operations import CancelOperation
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.operations.stages import FINISHED, WRITE_BOTH_READ_OLD
from ringlog.kernel.ring.murmur3 import token_of
from ringlog.kernel.values import CdcOptions, Column, ColumnRename, StreamReport, replace
from ringlog.node.rows.memory_rows import MemoryRows
from ringlog.node.rows.replica import NotReady, NotServed, RowFetch, RowReplica
from ringlog.wire.data import Rows, RowVersion
from ringlog.wire.records import Cell, Mutation, decode_mutation, encode_mutation
from tests.kernel.entries import applied, uuid
from tests.node.streams import received, source_rows
from tests.node.world import APPENDED, TABLE, begin_join, cluster, name_of, replicas, step, write
from tests.record_keys import record_key

PARTITIONS = 2
WHOLE_RING = ((0, 0),)
JOINER = name_of(4)


class Node:
    """A row replica that reads a shared topic and log at its own speed; streams wait in ``fetches``."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.fetches: list[tuple[RowFetch, Rows | None]] = []
        self.restart()

    def restart(self, lost: int | None = None) -> None:
        """Restart without the last commits, or without any rows to read the topic from its start."""
        if lost is None:
            self.store = MemoryRows()
        else:
            self.store.crash(lost)
        self.row_replica = RowReplica(self.name, self.store)
        for partition in range(PARTITIONS):
            self.row_replica.positions.setdefault(partition, 0)
        self.fetches = []

    def adopt(self, state: ClusterState) -> None:
        self.fetches += [(fetch, None) for fetch in self.row_replica.adopt(state)]

    def take(self, topic: list[list[Mutation]], partition: int, count: int) -> None:
        begin = self.row_replica.positions[partition]
        for offset, mutation in enumerate(topic[partition][begin : begin + count], start=begin):
            value = encode_mutation(mutation)
            self.row_replica.validate_record(value, APPENDED, record_key(value))
            self.row_replica.advance_position(partition, offset + 1)


class World:
    """Three nodes and a joining fourth one; each action is drawn from ``dice``."""

    def __init__(self, dice: random.Random, factor: int) -> None:
        self.dice = dice
        own = [self.tokens(3) for _ in range(3)]
        self.states = [cluster(*own, factor=factor)]
        self.nodes = {name_of(number): Node(name_of(number)) for number in range(1, 5)}
        self.topic: list[list[Mutation]] = [[] for _ in range(PARTITIONS)]
        self.is_calm = False
        self.operation = ""
        self.written = 0
        for _ in range(30):
            self.write()
        for node in self.nodes.values():
            node.adopt(self.states[0])

    @property
    def state(self) -> ClusterState:
        return self.states[-1]

    def tokens(self, count: int) -> tuple[int, ...]:
        return tuple(self.dice.randrange(-(2**63) + 1, 2**63) for _ in range(count))

    def write(self) -> None:
        key = f"c{self.dice.randrange(25)}"
        mutation = write(key, self.dice.randrange(4), APPENDED + self.written)
        self.written += 1
        self.topic[len(key) % PARTITIONS].append(mutation)
        if self.dice.random() < 0.1:
            self.topic[len(key) % PARTITIONS].append(mutation)

    def consume(self) -> None:
        node = self.dice.choice(list(self.nodes.values()))
        node.adopt(self.dice.choice(self.states))
        node.adopt(self.state)  # The read barrier before records are judged.
        node.take(self.topic, self.dice.randrange(PARTITIONS), self.dice.randrange(6))

    def learn(self) -> None:
        self.dice.choice(list(self.nodes.values())).adopt(self.dice.choice(self.states))

    def restart(self) -> None:
        if self.dice.random() < 0.3:
            node = self.dice.choice(list(self.nodes.values()))
            node.restart(self.dice.randrange(node.store.unsynced + 1) if self.dice.random() < 0.7 else None)

    def commit(self) -> None:
        self.dice.choice(list(self.nodes.values())).row_replica.commit(sync=self.dice.random() < 0.3)

    def stream(self) -> None:
        """Request a snapshot, or deliver one that was delayed in transit."""
        joiner = self.nodes[JOINER]
        if not joiner.fetches:
            return
        index = self.dice.randrange(len(joiner.fetches))
        fetch, snapshot = joiner.fetches[index]
        if snapshot is None:
            try:
                source = self.nodes[fetch.source].row_replica
                found = source_rows(source, fetch)
            except NotReady:
                return
            joiner.fetches[index] = (fetch, found)
        else:
            received(joiner.row_replica, fetch, snapshot)
            if self.dice.random() < 0.7:
                joiner.fetches.pop(index)  # Otherwise the stream arrives twice, and the node refuses it.

    def step(self) -> None:
        """Start the join, advance it if its gate is open, or cancel it."""
        if not self.operation:
            state, self.operation = begin_join(self.state, 4, self.tokens(2))
            self.states.append(state)
            return
        found = self.state.operations[self.operation]
        if found.stage == FINISHED:
            return
        if found.stage != "write_both_read_new" and not self.is_calm and self.dice.random() < 0.12:
            self.states.append(applied(self.state, CancelOperation(self.operation, "no")))
            self.operation = ""
            return
        for node in self.nodes.values():
            node.adopt(self.dice.choice(self.states[-2:]))
        if all(node.row_replica.state.epoch >= found.stage_epoch for node in self.nodes.values()):
            for node in self.nodes.values():
                node.row_replica.commit(sync=True)  # As before each acknowledgement.
            reports: tuple[StreamReport, ...] = ()
            if found.stage == WRITE_BOTH_READ_OLD:
                report = self.nodes[JOINER].row_replica.reports.get(self.operation)
                if report is None:
                    return
                reports = (report,)
            self.states.append(step(self.state, self.operation, reports))

    def settle(self) -> None:
        """Deliver all messages and complete the join."""
        self.is_calm = True
        for _ in range(60):
            for node in self.nodes.values():
                node.adopt(self.state)
                for partition in range(PARTITIONS):
                    node.take(self.topic, partition, len(self.topic[partition]))
            for _ in range(8):
                self.stream()
            self.step()
            if self.operation and self.state.operations[self.operation].stage == FINISHED:
                break
        for node in self.nodes.values():
            node.adopt(self.state)

    def expected(self, name: str) -> set[bytes]:
        every = [mutation for partition in self.topic for mutation in partition]
        return {encode_mutation(m) for m in every if name in replicas(self.state, (m.partition_key[0] or b"").decode())}


@settings(deadline=None)
@given(st.integers(0, 2**64), st.sampled_from([1, 2, 3]))
def test_every_node_ends_with_the_rows_of_a_plain_model(seed: int, factor: int) -> None:
    world = World(random.Random(seed), factor)
    moves: list[Callable[[], None]] = [
        *(world.write, world.write, world.consume, world.commit),
        *(world.learn, world.step, world.stream),
    ]
    for _ in range(150):
        world.dice.choice([*moves, world.restart])()
    world.settle()
    assert world.state.operations[world.operation].stage == FINISHED
    for name, node in world.nodes.items():
        held = [version.value for version in node.row_replica.store.versions(WHOLE_RING)]
        assert len(held) == len(set(held))
        assert set(held) == world.expected(name)


def loaded(state: ClusterState, keys: int = 60) -> dict[str, Node]:
    """Return nodes 1 to 4 with ``keys`` writes applied under ``state``."""
    topic = [[write(f"c{number}", number, APPENDED + number) for number in range(keys)], []]
    nodes = {name_of(number): Node(name_of(number)) for number in range(1, 5)}
    for node in nodes.values():
        node.adopt(state)
        node.take(topic, 0, keys)
        node.row_replica.caught_up = True
    return nodes


QUARTERS = ((-(2**62),), (0,), (2**62,))


def streaming_join() -> tuple[ClusterState, dict[str, Node], str]:
    """Return a join that has just entered write_both_read_old; no node has adopted that stage yet."""
    state = cluster(*QUARTERS)
    nodes = loaded(state)
    state, operation = begin_join(state, 4, (2**61, -(2**61)))
    while state.operations[operation].stage != WRITE_BOTH_READ_OLD:
        state = step(state, operation)
    return state, nodes, operation


def answer(node: Node, fetch: RowFetch) -> Rows:
    return source_rows(node.row_replica, fetch)


def test_a_source_waits_for_the_epoch_and_for_the_receivers_positions() -> None:
    state, nodes, operation = streaming_join()
    (fetch, *_) = nodes[JOINER].row_replica.adopt(state)
    source = nodes[fetch.source]
    with pytest.raises(NotReady, match=operation):
        answer(source, fetch)
    source.adopt(state)
    assert answer(source, fetch)
    source.restart()
    source.adopt(state)
    with pytest.raises(NotReady, match="positions"):
        answer(source, fetch)


def test_a_source_may_know_other_partitions_than_the_receiver() -> None:
    """A receiver reads all records of a partition that was added after it stored its positions."""
    state, nodes, _ = streaming_join()
    (fetch, *_) = nodes[JOINER].row_replica.adopt(state)
    source = nodes[fetch.source]
    source.adopt(state)
    added = max(source.row_replica.positions) + 1
    with pytest.raises(NotReady, match="positions"):
        answer(source, replace(fetch, positions=(*fetch.positions, (added, 0))))
    source.row_replica.advance_position(added, 0)
    assert answer(source, fetch) == answer(source, replace(fetch, positions=(*fetch.positions, (added, 0))))


def test_a_source_serves_only_the_planned_ranges() -> None:
    state, nodes, _ = streaming_join()
    (fetch, *_) = nodes[JOINER].row_replica.adopt(state)
    for node in nodes.values():
        node.adopt(state)
    others = [node for name, node in nodes.items() if name not in (fetch.source, JOINER)]
    with pytest.raises(NotServed, match="source"):
        answer(others[0], fetch)
    source = nodes[fetch.source].row_replica
    with pytest.raises(NotServed, match="source"):
        source_rows(source, replace(fetch, ranges=WHOLE_RING))


def test_a_cancelled_join_drops_streamed_rows_and_refuses_late_streams() -> None:
    state, nodes, operation = streaming_join()
    joiner = nodes[JOINER]
    first, *rest = joiner.row_replica.adopt(state)
    for node in nodes.values():
        node.adopt(state)
    snapshots = [(fetch, answer(nodes[fetch.source], fetch)) for fetch in (first, *rest)]
    assert rest
    assert received(joiner.row_replica, *snapshots[0])
    assert not received(joiner.row_replica, *snapshots[0]), "the same stream counts once"
    assert len(joiner.row_replica.store) > 0
    assert not joiner.row_replica.reports
    joiner.adopt(applied(state, CancelOperation(operation, "no")))
    assert len(joiner.row_replica.store) == 0
    assert not received(joiner.row_replica, *snapshots[1])
    assert not joiner.row_replica.wants(rest[0])


def test_the_report_counts_received_rows_and_needs_every_source() -> None:
    state, nodes, operation = streaming_join()
    joiner = nodes[JOINER].row_replica
    fetches = joiner.adopt(state)
    rows = 0
    for fetch in fetches:
        assert operation not in joiner.reports
        nodes[fetch.source].adopt(state)
        snapshot = answer(nodes[fetch.source], fetch)
        assert received(joiner, fetch, snapshot)
        rows += len(snapshot)
    assert joiner.reports[operation].rows == rows == len(joiner.store)


def test_a_restarted_stream_is_reported_once() -> None:
    state, nodes, operation = streaming_join()
    joiner = nodes[JOINER].row_replica
    first, waiting, *_ = joiner.adopt(state)
    nodes[first.source].adopt(state)
    assert received(joiner, first, answer(nodes[first.source], first))
    running = state.operations[operation]
    sources = tuple(
        replace(one, source=first.source) if one.source == waiting.source else one for one in running.plan.sources
    )
    moved = replace(running, plan=replace(running.plan, sources=sources))
    state = replace(state, epoch=state.epoch + 1, operations=state.operations.set(operation, moved))
    rows = 0
    for fetch in joiner.adopt(state):
        nodes[fetch.source].adopt(state)
        pages = answer(nodes[fetch.source], fetch)
        assert received(joiner, fetch, pages)
        rows += len(pages)
    assert rows
    assert joiner.reports[operation].rows == rows


def test_reads_are_answered_by_read_replicas_only_and_not_before_the_node_is_ready() -> None:
    state, nodes, operation = streaming_join()
    joiner = nodes[JOINER].row_replica
    for fetch in joiner.adopt(state):
        nodes[fetch.source].adopt(state)
        received(joiner, fetch, answer(nodes[fetch.source], fetch))
    held: RowVersion = joiner.store.versions(WHOLE_RING)[0]
    with pytest.raises(NotServed, match="read replica"):
        joiner.read(TABLE, held.partition_key)
    loser = next(
        n.row_replica for n in nodes.values() if n.name != JOINER and n.row_replica.store.partition(*_place(held))
    )
    assert loser.read(TABLE, held.partition_key)[1]
    while state.operations[operation].stage != FINISHED:
        state = step(state, operation, tuple(joiner.reports.values()))
        joiner.adopt(state)
    assert joiner.read(TABLE, held.partition_key)[1] == [held]
    joiner.caught_up = False
    with pytest.raises(NotReady):
        joiner.read(TABLE, held.partition_key)
    with pytest.raises(NotReady):
        RowReplica(JOINER).read(TABLE, b"")
    joiner.caught_up = True
    with pytest.raises(NotServed, match="no table"):
        joiner.read("shop.none", held.partition_key)


def _place(version: RowVersion) -> tuple[str, int, bytes]:
    return version.table, version.token, version.partition_key


def test_the_table_id_of_a_record_decides_the_place_of_its_row() -> None:
    state = cluster(*QUARTERS)
    nodes = loaded(state, keys=0)
    for number in range(20):
        mutation = write(f"k{number}", number)
        value = encode_mutation(mutation)
        for name, node in nodes.items():
            mine = name in replicas(state, f"k{number}")
            assert node.row_replica.validate_record(value, APPENDED, record_key(value)) == (
                "kept" if mine else "not_mine"
            )
            assert node.row_replica.admit(decode_mutation(value), APPENDED, value) == ("kept" if mine else "not_mine")
    unknown = encode_mutation(write("k", 1, table="none"))
    assert nodes[name_of(1)].row_replica.validate_record(unknown, APPENDED, record_key(unknown)) == "unknown_table", (
        "the row is not skipped"
    )


def test_deletes_and_refusals() -> None:
    row_replica = RowReplica(name_of(1))
    row_replica.adopt(cluster(*QUARTERS, factor=3))
    for mutation, verdict in (
        (write("k", 1, operation="ROW_DELETE", cells=()), "kept"),
        (write("k", 1, operation="PARTITION_DELETE", clustering_key=(), cells=()), "kept"),
        (write("k", 1, operation="PARTITION_DELETE", cells=()), "bad_key"),
        (write("k", 1, clustering_key=(None,)), "bad_key"),
        (write("k", 1, partition_key=(b"k", b"k")), "bad_key"),
        (write(None, 1), "null_partition_key"),
        (write("k", 1, operation="UNKNOWN"), "unknown_operation"),
        (write("k", 1, table="none"), "unknown_table"),
        (write("k", 1, cluster_id="00000000-0000-7000-8000-00000000dead"), "foreign_cluster"),
    ):
        assert row_replica.validate_record(encode_mutation(mutation), APPENDED, record_key(mutation)) == verdict
    assert row_replica.validate_record(b"", APPENDED, record_key(b"")) == "unreadable"
    assert len(row_replica.store) == 2


def test_cells_are_validated_if_the_table_has_a_rule() -> None:
    row_replica = RowReplica(name_of(1))
    columns = (Column("customer", "text"), Column("number", "bigint"), Column("tags", "set<text>"))
    table = CreateTable("shop", "tagged", uuid(3, space=9), columns, ("customer",), ("number",), CdcOptions())
    row_replica.adopt(applied(cluster((0,), factor=1), table))
    for tags, verdict in ((None, "kept"), (b"no set", "bad_value_type")):
        mutation = write("k", 1, table="tagged", cells=(Cell("tags", tags),))
        assert row_replica.validate_record(encode_mutation(mutation), APPENDED, record_key(mutation)) == verdict


def test_cells_stay_with_a_renamed_column() -> None:
    state, row_replica = cluster((0,), factor=1), RowReplica(name_of(1))

    def put(number: int, at: int, operation: str = "UPDATE", **cells: bytes) -> str:
        row_replica.adopt(state)
        named = tuple(Cell(name, value) for name, value in cells.items())
        write_ = write("k", number, APPENDED + at, operation=operation, cells=named)
        return row_replica.validate_record(encode_mutation(write_), APPENDED, record_key(write_))

    def seen() -> dict[int, dict[str, bytes]]:
        row_replica.adopt(state)
        versions = row_replica.store.partition(TABLE, token_of(b"k"), b"k")
        live = merged([decode_mutation(one.value) for one in versions], row_replica.shape(TABLE), APPENDED)
        return {
            int.from_bytes(row.clustering_key[0] or b""): {cell.column: cell.value for cell in row.cells}
            for row in live.rows
        }

    assert put(1, 1, note=b"1", other=b"1") == put(2, 1, other=b"1") == put(3, 1, "INSERT", other=b"1") == "kept"
    renamed = (ColumnRename("note", "text"),)
    state = applied(state, AlterTable("shop", "orders", drop_columns=("other",), rename_columns=renamed))
    assert seen() == {1: {"text": b"1"}, 3: {}}, "a row with only cells of a dropped column does not exist"
    assert put(1, 2, note=b"2") == "unknown_column"
    assert put(2, 2, text=b"2") == "kept"
    again = (Column("other", "text"), Column("note", "text"))
    state = applied(state, AlterTable("shop", "orders", again))
    assert seen() == {1: {"text": b"1"}, 2: {"text": b"2"}, 3: {}}
    assert put(3, 3, other=b"3", note=b"3", text=b"3") == "kept"
    assert seen()[3] == {"other": b"3", "note": b"3", "text": b"3"}


def test_a_dropped_table_loses_its_rows_even_if_recreated_at_once() -> None:
    state = cluster((0,), factor=1)
    row_replica = RowReplica(name_of(1))
    row_replica.adopt(state)
    held = write("k", 1)
    assert row_replica.admit(held, APPENDED, encode_mutation(held)) == "kept"
    table = state.tables[TABLE]
    again = CreateTable(
        "shop", "orders", uuid(2, space=9), table.columns, table.partition_key, table.clustering_key, CdcOptions()
    )
    row_replica.adopt(applied(state, DropTable("shop", "orders"), again))
    assert len(row_replica.store) == 0


def test_late_rows_of_a_dropped_table_do_not_enter_the_recreated_one() -> None:
    state, nodes, _ = streaming_join()
    joiner = nodes[JOINER].row_replica
    fetches = joiner.adopt(state)
    gone = applied(state, DropTable("shop", "orders"))
    joiner.adopt(gone)
    held = len(joiner.store)
    for fetch in fetches:
        nodes[fetch.source].adopt(state)
        assert received(joiner, fetch, answer(nodes[fetch.source], fetch))
    assert len(joiner.store) == held
    table = state.tables[TABLE]
    again = CreateTable(
        "shop", "orders", uuid(2, space=9), table.columns, table.partition_key, table.clustering_key, CdcOptions()
    )
    joiner.adopt(applied(gone, again))
    assert len(joiner.store) == held

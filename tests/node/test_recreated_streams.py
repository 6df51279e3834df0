"""A stream never copies data of a dropped table or keyspace into its recreated namesake."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace, DropKeyspace
from ringlog.kernel.commands.schema.tables import CreateTable, DropTable
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.operations.stages import FINISHED, WRITE_BOTH_READ_OLD
from ringlog.kernel.values import CdcOptions, Column, Replication, TabletOptions
from ringlog.node.protocol.registers import DurableRegisters
from ringlog.node.registers import registers
from ringlog.node.registers.cells import CellSnapshot
from ringlog.node.registers.image import Image
from ringlog.node.registers.registers import NOT_MEMBER, Behind, Reply
from ringlog.node.rows.replica import RowReplica, SourceBehind
from ringlog.wire.data import Cells, JournalRecord, ReadRequest, RegisterCell, Rows, WriteRequest, key_of
from ringlog.wire.records import encode_mutation
from tests.kernel.entries import applied, founded, uuid
from tests.kernel.operations.driver import report_of
from tests.node.streams import received, source_rows
from tests.node.world import APPENDED, TABLE, begin_join, cluster, joined, name_of, step, write
from tests.record_keys import record_key

SIMPLE = Replication("simple", 1)
JOINING_TOKENS = (2**62, -(2**62), 1)
COLUMNS = (Column("customer", "text"), Column("number", "bigint"), Column("note", "text"))


def streaming(state: ClusterState) -> tuple[ClusterState, str]:
    """Return a state with a join of node 4 that streams rows."""
    state, operation = begin_join(state, 4, JOINING_TOKENS)
    while state.operations[operation].stage != WRITE_BOTH_READ_OLD:
        state = step(state, operation)
    return state, operation


def finished(state: ClusterState, operation: str, report: bool = True) -> ClusterState:
    while (found := state.operations[operation]).stage != FINISHED:
        reports = (report_of(found),) if report and found.stage == WRITE_BOTH_READ_OLD else ()
        state = step(state, operation, reports)
    return state


def recreated(state: ClusterState) -> ClusterState:
    """Return a state with another table of the same name."""
    table = CreateTable(
        "shop", "orders", uuid(2, space=9), COLUMNS, ("customer",), ("number",), CdcOptions(enabled=False)
    )
    return applied(state, DropTable("shop", "orders"), table)


def kept(row_replica: RowReplica, count: int) -> None:
    for offset in range(count):
        value = encode_mutation(write(f"c{offset}", 1, APPENDED + offset))
        assert row_replica.validate_record(value, APPENDED + offset, record_key(value)) == "kept"
        row_replica.advance_position(0, offset + 1)


# ---------------------------------------------------------------------------------------------------------- rows


def test_rows_of_a_dropped_table_do_not_enter_the_recreated_one() -> None:
    state = cluster((0,), factor=1)
    source, joiner = RowReplica(name_of(1)), RowReplica(name_of(4))
    source.positions[0], joiner.positions[0] = 0, 20
    source.adopt(state)
    kept(source, 20)
    state, operation = streaming(state)
    source.adopt(state)
    after = recreated(state)
    fetches = joiner.adopt(after)
    assert fetches
    for fetch in fetches:
        with pytest.raises(SourceBehind):
            source_rows(source, fetch, after.epoch)
        page = source_rows(source, fetch)  # The request asks the source for no further epoch.
        assert page
        assert received(joiner, fetch, page)
    assert len(joiner.store) == 0
    done = finished(after, operation)
    joiner.caught_up = True
    joiner.adopt(done)
    assert not any(joiner.read(TABLE, b"c%d" % number)[1] for number in range(20) if owns(joiner, b"c%d" % number))


def owns(row_replica: RowReplica, key: bytes) -> bool:
    return row_replica.has(TABLE, key_of("", key).token, is_write=False)


def test_a_source_with_the_recreated_table_sends_nothing_to_a_lagging_receiver() -> None:
    state, _ = streaming(cluster((0,), factor=1))
    source, joiner = RowReplica(name_of(1)), RowReplica(name_of(4))
    source.positions[0], joiner.positions[0] = 0, 0
    fetches = joiner.adopt(state)
    source.adopt(recreated(state))
    kept(source, 20)
    for fetch in fetches:
        page = source_rows(source, fetch, state.epoch)
        assert page
        assert received(joiner, fetch, page)
    assert len(joiner.store) == 0, "the receiver reads all writes to the recreated table from the topic"


def test_a_page_without_table_ids_is_ignored() -> None:
    state = cluster((0,), factor=1)
    source, joiner = RowReplica(name_of(1)), RowReplica(name_of(4))
    source.positions[0] = joiner.positions[0] = 0
    source.adopt(state)
    kept(source, 20)
    state, _ = streaming(state)
    source.adopt(state)
    for fetch in joiner.adopt(state):
        assert received(joiner, fetch, Rows(source_rows(source, fetch).rows))
    assert len(joiner.store) == 0


# ----------------------------------------------------------------------------------------------------- registers


class AtOnce:
    """A journal with records that are durable at once."""

    def append(self, _: JournalRecord, done: Callable[[], None]) -> None:
        done()


def registers_of(number: int) -> DurableRegisters:
    return DurableRegisters(name_of(number), Image(), AtOnce(), lambda _: None)


def adopt(replica: DurableRegisters, state: ClusterState) -> None:
    lost = replica.lost_under(state)
    assert lost is not None
    replica.adopt(state, lost, lambda: None)


def put(replica: DurableRegisters, state: ClusterState, space: str, count: int) -> None:
    for number in range(count):
        key, cell = key_of(space, b"k%d" % number), RegisterCell(1, b"old")
        request = WriteRequest(state.cluster_id, replica.node, state.epoch, state.state_id, key, cell)
        assert isinstance(replica.admit(request), int)


def found(replica: DurableRegisters, state: ClusterState, space: str, count: int) -> list[bytes]:
    """Return the answers to reads at the state."""
    values = []
    for number in range(count):
        key = key_of(space, b"k%d" % number)
        reply = replica.admit(ReadRequest(state.cluster_id, replica.node, state.epoch, state.state_id, key, False))
        if isinstance(reply, Reply) and reply.cell is not None:
            values.append(reply.cell.value)
    return values


def test_registers_of_a_dropped_keyspace_do_not_enter_the_recreated_one() -> None:
    state = joined(founded(), 1, (0,))
    state = applied(state, CreateKeyspace("ks", SIMPLE), CreateKeyspace("other", SIMPLE))
    source, joiner = registers_of(1), registers_of(4)
    adopt(source, state)
    put(source, state, "ks", 20)
    put(source, state, "other", 20)
    state, operation = streaming(state)
    adopt(source, state)
    after = applied(state, DropKeyspace("ks"), CreateKeyspace("ks", SIMPLE))
    adopt(joiner, after)
    for fetch in joiner.value.fetching:
        assert registers.snapshot(source.value, fetch, after.epoch) == Behind(after.epoch)
        page = page_of(source, fetch)
        assert {key.keyspace for key, _ in page.cells} == {"ks", "other"}
        assert not joiner.receive_page(fetch, page, lambda: None)
    adopt(source, after)
    for fetch in joiner.value.fetching:
        assert joiner.receive_page(fetch, page_of(source, fetch, after.epoch), lambda: None)
        assert joiner.receive_end(fetch)
    done = finished(after, operation)
    adopt(joiner, done)
    assert found(joiner, done, "ks", 20) == []
    assert set(found(joiner, done, "other", 20)) == {b"old"}


def page_of(source: DurableRegisters, fetch: registers.RegisterFetch, newest: int = 0) -> Cells:
    excerpt = registers.snapshot(source.value, fetch, newest)
    assert isinstance(excerpt, CellSnapshot)
    return excerpt.page(excerpt.after())


# -------------------------------------------------------------------------------------- tables that share tablets

SHARED = "shop.lines"


def shared_table(number: int, base: str = "orders") -> CreateTable:
    options = TabletOptions(base=base) if base else TabletOptions(count=4)
    name = "lines" if base else "orders"
    cdc = CdcOptions(enabled=False)
    return CreateTable("shop", name, uuid(number, space=9), COLUMNS, ("customer",), ("number",), cdc, tablets=options)


def with_shared_table() -> ClusterState:
    """Return a state with a table ``lines`` that shares the tablets of ``orders``."""
    state = joined(founded(), 1, (0,))
    tablets = Replication("tablets", 1)
    return applied(state, CreateKeyspace("shop", tablets), shared_table(1, ""), shared_table(2))


def test_registers_of_a_dropped_table_do_not_enter_the_recreated_one_in_the_same_tablets() -> None:
    state = with_shared_table()
    node = registers_of(1)
    adopt(node, state)
    put(node, state, SHARED, 20)
    put(node, state, TABLE, 20)
    after = applied(state, DropTable("shop", "lines"), shared_table(3))
    restarted = DurableRegisters(name_of(1), node.image(), AtOnce(), lambda _: None)
    for one in (node, restarted):
        adopt(one, after)
        assert found(one, after, SHARED, 20) == []
        assert len(found(one, after, TABLE, 20)) == 20
        late = WriteRequest(
            state.cluster_id, one.node, state.epoch, state.state_id, key_of(SHARED, b"k1"), RegisterCell(2, b"late")
        )
        reply = one.admit(late)
        assert isinstance(reply, Reply)
        assert reply.refused == NOT_MEMBER

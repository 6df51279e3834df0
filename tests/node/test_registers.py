"""Decisions of a register replica at each step of a join: requests that it answers, cells that it keeps, ranges that it
streams.
"""

from __future__ import annotations

from itertools import islice

import pytest

from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.commands.schema.keyspaces import DropKeyspace
from ringlog.kernel.commands.schema.tables import DropTable
from ringlog.kernel.commands.topology.operations import CancelOperation
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.operations.stages import FINISHED, WRITE_BOTH_READ_NEW, WRITE_BOTH_READ_OLD
from ringlog.kernel.ownership.placements import group_at, placement_of_keyspace
from ringlog.kernel.values import replace
from ringlog.node.registers import cells as cells_module
from ringlog.node.registers import registers
from ringlog.node.registers.cells import CellMap, CellSnapshot
from ringlog.node.registers.registers import Behind, Durable, RegisterReplica, Reply
from ringlog.wire.data import Key, RegisterCell, key_of, newest
from tests.kernel.entries import applied
from tests.kernel.operations.driver import report_of
from tests.node.world import begin_join, cluster, name_of, step

KEY = Key("shop", 100, b"k")
OLD, JOINER, OTHER = name_of(1), name_of(9), name_of(2)


def states() -> dict[str, ClusterState]:
    """Return the states before a join that moves the key away from node 1, and at each relevant stage."""
    state = cluster((1_000,), (2_000,), factor=1)
    found = {"before": state}
    state, operation = begin_join(state, 9, (100,))
    while state.operations[operation].stage != FINISHED:
        now = state.operations[operation]
        state = step(state, operation, (report_of(now),) if now.stage == WRITE_BOTH_READ_OLD else ())
        found[state.operations[operation].stage] = state
    return found


STATES = states()
BEFORE, BOTH_OLD = STATES["before"], STATES[WRITE_BOTH_READ_OLD]
BOTH_NEW, DONE = STATES[WRITE_BOTH_READ_NEW], STATES[FINISHED]


def at(node: str, *through: ClusterState, durable: Durable | None = None) -> RegisterReplica:
    replica = registers.restarted(node, durable or Durable())
    for state in through:
        replica, _ = registers.adopt(replica, state)
    return replica


def written(replica: RegisterReplica, number: int, timestamp: int) -> RegisterReplica:
    """Write a register; the write was planned at the replica's own epoch."""
    replica, verdict = registers.admit_write(replica, number, KEY, RegisterCell(timestamp, b"v"), replica.state.epoch)
    assert verdict is None
    replica, replies = registers.apply(replica, number)
    assert replies == (Reply(number, replica.state.epoch),)
    return replica


def test_the_greater_timestamp_wins_in_any_order() -> None:
    replica = written(written(at(OLD, BEFORE), 1, 7), 2, 5)
    assert replica.durable.cells[KEY] == RegisterCell(7, b"v")
    assert newest(RegisterCell(7, b"a"), RegisterCell(7, b"b")) == RegisterCell(7, b"b")


def test_a_message_with_a_newer_epoch_waits_and_an_older_one_gets_the_own_epoch() -> None:
    replica = at(OLD, BEFORE)
    assert registers.admit_read(replica, 1, KEY, BOTH_OLD.epoch) == (replica, Behind(BOTH_OLD.epoch))
    replica = at(OLD, BEFORE, BOTH_OLD)
    replica, verdict = registers.admit_write(replica, 1, KEY, RegisterCell(1, b"v"), BEFORE.epoch)
    assert verdict is None
    assert registers.apply(replica, 1)[1] == (Reply(1, BOTH_OLD.epoch),)


def test_a_node_outside_the_group_refuses() -> None:
    for replica in (at(OTHER, BEFORE), at(OLD, BEFORE, DONE), at(JOINER, BEFORE)):
        _, verdict = registers.admit_write(replica, 1, KEY, RegisterCell(1, b"v"), BEFORE.epoch)
        assert verdict == Reply(1, replica.state.epoch, refused=registers.NOT_MEMBER)
    _, verdict = registers.admit_read(at(JOINER, BEFORE, BOTH_OLD), 1, KEY, BEFORE.epoch)
    assert isinstance(verdict, Reply)
    assert verdict.refused == registers.NOT_MEMBER


def test_an_epoch_is_acknowledged_when_older_writes_are_on_disk() -> None:
    replica, _ = registers.admit_write(at(OLD, BEFORE), 1, KEY, RegisterCell(1, b"v"), BEFORE.epoch)
    replica, _ = registers.adopt(replica, BOTH_OLD)
    assert registers.acknowledgeable(replica) == BEFORE.epoch
    replica, replies = registers.apply(replica, 1)
    assert replies == (Reply(1, BEFORE.epoch),)
    assert registers.acknowledgeable(replica) == BOTH_OLD.epoch


def test_a_restart_keeps_durable_cells_and_serves_no_older_epoch() -> None:
    replica = written(at(OLD, BEFORE, BOTH_OLD), 1, 3)
    again = at(OLD, BEFORE, durable=replica.durable)
    assert not registers.is_ready(again)
    assert registers.acknowledgeable(again) == 0
    _, verdict = registers.admit_read(again, 2, KEY, BEFORE.epoch)
    assert isinstance(verdict, Reply)
    assert verdict.refused == registers.NOT_READY
    again, _ = registers.adopt(again, BOTH_OLD)
    again, verdict = registers.admit_read(again, 2, KEY, BOTH_OLD.epoch)
    assert verdict is None
    assert registers.answer_read(again, 2)[1] == (Reply(2, BOTH_OLD.epoch, RegisterCell(3, b"v")),)


def test_a_source_gives_its_cells_when_it_has_drained() -> None:
    joiner = at(JOINER, BEFORE, BOTH_OLD)
    (fetch,) = joiner.fetching
    assert fetch.source == OLD
    source, _ = registers.admit_write(at(OLD, BEFORE), 1, KEY, RegisterCell(1, b"v"), BEFORE.epoch)
    assert registers.snapshot(source, fetch) == Behind(BOTH_OLD.epoch)
    source, _ = registers.adopt(source, BOTH_OLD)
    assert registers.snapshot(source, fetch) == Behind(BOTH_OLD.epoch)
    source, _ = registers.apply(source, 1)
    found = registers.snapshot(source, fetch)
    assert isinstance(found, CellSnapshot)
    cells = dict(found.after())
    assert cells == {KEY: RegisterCell(1, b"v")}
    after = registers.receive(written(joiner, 2, 2), fetch, cells)
    assert after is not None
    assert after.durable.cells[KEY] == RegisterCell(2, b"v")
    assert after.received == (fetch.operation,)
    assert registers.receive(after, fetch, cells) is None
    assert registers.snapshot(at(OTHER, BOTH_OLD), fetch) == registers.BAD_STREAM


def test_a_cancel_drops_streamed_cells_and_refuses_late_pages() -> None:
    joiner = written(at(JOINER, BEFORE, BOTH_OLD), 1, 1)
    (fetch,) = joiner.fetching
    joiner, _ = registers.adopt(joiner, applied(BOTH_OLD, CancelOperation(fetch.operation, "not now")))
    assert not joiner.durable.cells
    assert registers.receive(joiner, fetch, {KEY: RegisterCell(1, b"v")}) is None


def test_a_returning_node_starts_empty_even_if_it_missed_its_removal() -> None:
    joiner = written(at(JOINER, BEFORE, BOTH_OLD), 1, 1)
    (fetch,) = joiner.fetching
    state, operation = begin_join(applied(BOTH_OLD, CancelOperation(fetch.operation, "not now")), 9, (100,))
    while state.operations[operation].stage != WRITE_BOTH_READ_OLD:
        state = step(state, operation)
    joiner, _ = registers.adopt(joiner, state)
    assert not joiner.durable.cells
    assert [fetch.operation for fetch in joiner.fetching] == [operation]


def test_a_node_that_loses_a_range_serves_reads_refuses_writes_and_then_removes_cells() -> None:
    replica = written(at(OLD, BEFORE, BOTH_OLD), 1, 1)
    replica, _ = registers.admit_read(replica, 2, KEY, BOTH_OLD.epoch)
    replica, _ = registers.admit_write(replica, 3, KEY, RegisterCell(2, b"v"), BOTH_OLD.epoch)
    replica, none = registers.adopt(replica, BOTH_NEW)
    assert none == ()
    assert registers.acknowledgeable(replica) == BOTH_OLD.epoch
    replica, replies = registers.adopt(replica, DONE)
    assert replies == (
        Reply(2, BOTH_NEW.epoch, RegisterCell(1, b"v")),
        Reply(3, DONE.epoch, refused=registers.NOT_MEMBER),
    )
    assert not replica.durable.cells
    assert registers.acknowledgeable(replica) == DONE.epoch
    assert registers.apply(replica, 3) == (replica, ())


def test_an_epoch_without_moves_does_not_scan_the_cells() -> None:
    replica = written(at(OLD, BEFORE), 1, 1)
    after, replies = registers.adopt(replica, applied(BEFORE, Noop()))
    assert after.durable.cells is replica.durable.cells
    assert (after.durable.epoch, replies) == (BEFORE.epoch + 1, ())


def expected_keys(held: set[Key], state: ClusterState, node: str, before: int) -> set[Key]:
    """Compute the kept registers: the node has been their write replica since its previous epoch."""
    kept = set()
    for key in held:
        placement = placement_of_keyspace(state, key.keyspace)
        members = () if placement is None else group_at(placement, key.token).write
        if any(member.node == node and member.since <= before for member in members):
            kept.add(key)
    return kept


@pytest.mark.parametrize("node", [OLD, OTHER, JOINER])
def test_an_epoch_removes_exactly_the_lost_registers(node: str) -> None:
    """Only changed groups are checked, and none is missed, after skipped epochs and after a restart."""
    names = [
        Key("shop", token, b"k") for token in (-(2**63) + 1, -5, 99, 100, 101, 999, 1_000, 1_001, 2_001, 2**63 - 1)
    ]
    cancelled = applied(BOTH_OLD, CancelOperation(at(JOINER, BOTH_OLD).fetching[0].operation, "not now"))
    gone = applied(DONE, DropTable("shop", "orders"), DropKeyspace("shop"))
    for log in ([*STATES.values(), gone], [BEFORE, BOTH_OLD, cancelled]):
        for mask in range(2 ** len(log)):
            replica = at(node, log[0])
            for number, state in enumerate(log[1:], start=1):
                if not mask >> number & 1:
                    continue
                before = replica.state.epoch
                mine = {key for key in names if key in expected_keys({key}, replica.state, node, before)}
                cells = CellMap().with_newest((key, RegisterCell(1, b"v")) for key in mine)
                replica = replace(replica, durable=replace(replica.durable, cells=cells))
                again, _ = registers.adopt(registers.restarted(node, replica.durable), state)
                replica, _ = registers.adopt(replica, state)
                assert set(replica.durable.cells) == expected_keys(mine, state, node, before)
                assert again.durable == replica.durable, "the result after a restart is the same"


def test_an_epoch_scans_no_cells_and_a_page_only_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    held = CellMap().with_newest(
        (key_of("shop", b"k%d" % number), RegisterCell(number, b"v")) for number in range(2_000)
    )
    looked_at: list[bytes] = []

    def noted(data: bytes) -> Key:
        looked_at.append(data)
        return cells_module.Key("shop", 0, data)

    replica = at(OLD, BEFORE)
    replica = replace(replica, durable=replace(replica.durable, cells=held))
    monkeypatch.setattr(cells_module, "key_of", noted)
    replica, _ = registers.adopt(replica, BOTH_OLD)
    found = registers.snapshot(replica, at(JOINER, BEFORE, BOTH_OLD).fetching[0])
    assert isinstance(found, CellSnapshot)
    assert len(list(islice(found.after(), 10))) == 10
    assert len(looked_at) == 10
    looked_at.clear()
    for state in (BOTH_NEW, DONE):
        replica, _ = registers.adopt(replica, state)
    assert len(replica.durable.cells) == 0
    assert looked_at == []

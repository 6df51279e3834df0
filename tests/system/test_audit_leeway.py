"""The audit and the leeway of each epoch: read from the metadata log, as it leads to what is published."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import replace

import pytest
from confluent_kafka import Message
from tests.system.audit_world import HOUR_US, LEEWAY, Out, World
from tests.system.test_audit import _letters, failed

from ringlog.audit import history
from ringlog.audit.topics import AuditError
from ringlog.kernel.changes import EPOCHS, SCHEMA, ChangeRecord, EpochChange, project
from ringlog.kernel.commands.cluster import ChangeSettings, InitializeCluster, Noop
from ringlog.kernel.commands.schema import AlterTable, CreateTable
from ringlog.kernel.values import Column, Command
from ringlog.stack import StackInfo
from ringlog.wire.entries import author_entry
from ringlog.wire.records import DeadLetter, decode_mutation

pytestmark = pytest.mark.system

CLUSTER_ID = "00000000-0000-7000-8000-000000000001"


@pytest.fixture
def world(stack: StackInfo, cluster_name: str) -> World:
    return World(stack, cluster_name)


def raise_leeway(world: World) -> None:
    """A metadata log: half an hour at the founding, three hours since epoch 2; between them a lost race."""
    founded = InitializeCluster(world.cluster, ((LEEWAY, HOUR_US // 2),))
    raised = ChangeSettings((("history_entries", 100), (LEEWAY, 3 * HOUR_US)))
    write_log(world, founded, raised, Noop(), lost=ChangeSettings(((LEEWAY, 1),)))


def write_log(world: World, *commands: Command, lost: Command | None = None) -> None:
    """A metadata log of these epochs; the one that is ``lost`` lost the race for the second."""
    now = time.time_ns() // 1000
    before: str | None = None
    for epoch, command in enumerate(commands, start=1):
        for one in (lost, command) if lost is not None and epoch == 2 else (command,):
            name = str(uuid.uuid4())
            entry = author_entry(CLUSTER_ID, name, before, str(uuid.uuid4()), 0, "test", now, one)
            world._send("metadata", 0, b"", entry.data)
        before = name
    world.changes = [change for change in world.changes if change.topic != EPOCHS]
    head = EpochChange(len(commands), world.state.cluster_id, before or "", now)
    world.changes.append(ChangeRecord(EPOCHS, "head", head))


def ahead(world: World) -> Out:
    """The letter of the write that lies two hours ahead."""
    return next(o for o in _letters(world) if isinstance(o.row, DeadLetter) and o.row.reason == "timestamp_in_future")


def test_every_write_is_judged_by_the_leeway_that_was_in_force(world: World) -> None:
    raise_leeway(world)
    world.publish()
    assert world.audited(by_log=True, written=66, rejected=15).ok


def test_a_letter_of_an_epoch_whose_leeway_lets_the_write_in_is_found(world: World) -> None:
    raise_leeway(world)
    world.change(ahead(world), epoch=2)
    world.publish()
    assert failed(world.audited(by_log=True)) == {"dead_letters"}


def test_a_row_may_be_there_if_a_later_leeway_let_it_in(world: World) -> None:
    raise_leeway(world)
    out = ahead(world)
    assert isinstance(out.row, DeadLetter)
    world.outgoing.remove(out)
    world.outgoing.append(world._row(decode_mutation(out.row.value or b""), (out.row.partition, out.row.offset)))
    world.publish()
    assert failed(world.audited()) == {"stream"}, "by the leeway of its epoch alone it is none"
    assert world.audited(by_log=True, written=67, rejected=14).ok


@pytest.mark.parametrize(("epoch", "wrong"), [(4, set()), (5, {"dead_letters"})])
def test_a_letter_is_judged_by_the_columns_of_its_epoch(world: World, epoch: int, wrong: set[str]) -> None:
    table = world.state.tables["shop.orders"]
    columns = tuple(Column(column.name, column.type) for column in table.columns)
    added = Column("lost", "int")
    write_log(
        world,
        InitializeCluster(world.cluster, ((LEEWAY, HOUR_US // 2),)),
        CreateTable("shop", "orders", table.id, columns[:-1], table.partition_key, table.clustering_key, table.cdc),
        Noop(),
        AlterTable("shop", "orders", (columns[-1],), None),
        AlterTable("shop", "orders", (added,), None),
    )
    altered = replace(table, columns=(*table.columns, added))
    state = replace(world.state, tables=world.state.tables.set("shop.orders", altered))
    world.changes += [ChangeRecord(*name, value) for name, value in project(state).items() if name[0] == SCHEMA]
    letters = [o for o in _letters(world) if isinstance(o.row, DeadLetter) and o.row.reason == "unknown_column"]
    for out in letters:
        world.change(out, epoch=epoch)
    world.publish()
    assert len(letters) == 2
    assert failed(world.audited(by_log=True)) == wrong


def test_a_log_that_does_not_lead_to_the_published_epoch_ends_the_audit(world: World) -> None:
    world.publish()
    with pytest.raises(AuditError, match="founding"):
        world.audited(by_log=True)


def test_a_log_that_goes_on_while_it_is_read_is_no_error(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    raise_leeway(world)
    world.publish()
    read = history.records

    def meanwhile(bootstrap: str, topic: str) -> Iterator[Message]:
        """The records; behind the last of the metadata log, one more epoch is published."""
        yield from read(bootstrap, topic)
        if topic.endswith(".metadata"):
            before = next(change.value for change in world.changes if change.topic == EPOCHS)
            assert isinstance(before, EpochChange)
            name, now = str(uuid.uuid4()), time.time_ns() // 1000
            entry = author_entry(CLUSTER_ID, name, before.state_id, str(uuid.uuid4()), 0, "test", now, Noop())
            world._send("metadata", 0, b"", entry.data)
            head = EpochChange(before.epoch + 1, before.cluster_id, name, now)
            world.changes = [ChangeRecord(EPOCHS, "head", head)]
            world.outgoing = []
            world.publish()

    monkeypatch.setattr(history, "records", meanwhile)
    assert world.audited(by_log=True, written=66, rejected=15).ok

"""Registers in tablets over real gRPC in one process: migration, rebuild, repair, split and merge lose no write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ringlog.client.data.plans import Level
from ringlog.client.errors import RequestImpossible
from ringlog.kernel.commands.placement.resizes import DecideResize
from ringlog.kernel.commands.placement.tablets import (
    MigrateTablets,
    RevertTablets,
    Shard,
    TabletMigration,
    TabletRevert,
)
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace, DropKeyspace
from ringlog.kernel.commands.schema.tables import CreateTable, DropTable
from ringlog.kernel.commands.topology.movements import Assassinate
from ringlog.kernel.commands.topology.nodes import DeclareDown
from ringlog.kernel.model.tablet_map import Tablet
from ringlog.kernel.ring.ranges import in_range
from ringlog.kernel.tablets.resize import MERGE, SPLIT
from ringlog.kernel.tablets.stages import (
    CLEANUP_TARGET,
    STREAMING,
    USE_NEW,
    WRITE_BOTH_READ_NEW,
    WRITE_BOTH_READ_OLD,
    session,
)
from ringlog.kernel.values import CdcOptions, Column, Command, Replication, TabletOptions, replace
from ringlog.node.registers.registers import RegisterFetch
from ringlog.protocol.nodes.stream_work import creation_epoch
from ringlog.wire.data import BAD_STREAM, Cells, RegisterCell, key_of
from tests.kernel.entries import uuid
from tests.node.data_world import DataWorld, until

STEP = 2**64 // 8
TABLE = "shop.t"
NAMES = [b"key-%d" % number for number in range(60)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[DataWorld]:
    with closing(DataWorld(tmp_path, factor=4, page_bytes=400)) as made:
        for number in (1, 2, 3, 4):
            made.join(number, -(2**62) + number * STEP)
        made.submit(CreateKeyspace("shop", Replication("tablets", 3)))
        made.submit(create_table())
        fill(made, 1)
        yield made


def create_table(name: str = "t", number: int = 900, base: str = "") -> CreateTable:
    columns = (Column("a", "int"),)
    options = TabletOptions(base=base) if base else TabletOptions(4)
    return CreateTable("shop", name, uuid(number, space=9), columns, ("a",), (), CdcOptions(), tablets=options)


def fill(world: DataWorld, timestamp: int, level: Level = Level.QUORUM, table: str = TABLE) -> None:
    for name in NAMES:
        world.coordinator.write(table, name, b"%d" % timestamp, timestamp=timestamp, level=level, timeout_s=20)


def all_read(world: DataWorld, timestamp: int, table: str = TABLE) -> None:
    for name in NAMES:
        assert world.coordinator.read(table, name, timeout_s=20).cell == RegisterCell(timestamp, b"%d" % timestamp)


def tablet(world: DataWorld, index: int = 1) -> Tablet:
    return world.state.tablets[TABLE].tablet(index)


def held(world: DataWorld, node: str, one: Tablet, table: str = TABLE) -> dict[bytes, int]:
    """Return the registers of a tablet at a node, by name."""
    (found,) = [each for each in world.nodes.values() if each.id == node]
    cells = found.host.value.durable.cells.items()
    mine = ((key, cell) for key, cell in cells if key.keyspace == table and in_range(key.token, one.start, one.end))
    return {key.name: cell.timestamp for key, cell in mine}


def of(one: Tablet) -> set[bytes]:
    return {name for name in NAMES if in_range(key_of(TABLE, name).token, one.start, one.end)}


def free(world: DataWorld, one: Tablet) -> str:
    there = {replica.node for replica in one.replicas}
    return next(each.id for each in world.nodes.values() if each.id not in there)


def migration(world: DataWorld, kind: str = "migration", place: int = 0) -> TabletMigration:
    """Return a migration of one replica to the node without one."""
    one = tablet(world)
    source = one.replicas[place]
    return TabletMigration(TABLE, 1, kind, Shard(source.node, source.shard), Shard(free(world, one), 0))


def drive(world: DataWorld, stage: str = "settled") -> Tablet:
    """Drive tablet 1 to that stage by the coordinator's decisions."""

    def reached() -> bool:
        transition = tablet(world).transition
        if (transition.stage if transition is not None else "settled") == stage:
            return True
        world.step()
        return False

    until(reached, f"the tablet to reach {stage}: {tablet(world).transition}")
    return tablet(world)


def test_a_migrated_tablet_is_only_where_its_map_says(world: DataWorld) -> None:
    before = tablet(world)
    assert of(before), "the tablet has data to move"
    one = migration(world)
    assert one.from_ is not None
    assert one.to is not None
    world.submit(MigrateTablets((one,)))
    for timestamp, stage in enumerate((WRITE_BOTH_READ_OLD, STREAMING, WRITE_BOTH_READ_NEW, USE_NEW), start=2):
        drive(world, stage)
        fill(world, timestamp)
        all_read(world, timestamp)
    after = drive(world)
    assert {replica.node for replica in after.replicas} == {r.node for r in before.replicas} - {one.from_.node} | {
        one.to.node
    }
    all_read(world, 5)
    assert set(held(world, one.to.node, after)) == of(after)
    assert held(world, one.from_.node, after) == {}
    for replica in after.replicas:
        assert set(held(world, replica.node, after)) == of(after)


def test_a_reverted_session_keeps_and_accepts_nothing(world: DataWorld) -> None:
    one = migration(world)
    assert one.from_ is not None
    assert one.to is not None
    world.submit(MigrateTablets((one,)))
    found = drive(world, STREAMING)
    assert found.transition is not None
    name = session(TABLE, 1, found.transition)
    target = next(each for each in world.nodes.values() if each.id == one.to.node)
    source = next(each for each in world.nodes.values() if each.id == one.from_.node)
    until(lambda: target.host.received(name), "the cells to arrive")
    assert set(held(world, target.id, found)) == of(found)
    fetch = RegisterFetch(name, found.transition.stage_epoch, source.id, TABLE, ((found.start, found.end),))
    assert not isinstance(source.host.snapshot(fetch, 0), str)
    other = replace(fetch, ranges=((found.end, found.start),))
    assert source.host.snapshot(other, 0) == BAD_STREAM, "pages with ranges of other tablets are refused"

    world.submit(RevertTablets((TabletRevert(TABLE, 1, "enough"),)))
    drive(world, CLEANUP_TARGET)
    assert held(world, target.id, found) == {}
    assert source.host.snapshot(fetch, 0) == BAD_STREAM
    late = Cells(
        ((key_of(TABLE, min(of(found))), RegisterCell(9, b"late")),), ((TABLE, creation_epoch(world.state, TABLE)),)
    )
    assert not target.host.receive_page(fetch, late)
    drive(world)
    assert held(world, target.id, found) == {}
    all_read(world, 1)


def test_a_target_killed_during_a_stream_continues(world: DataWorld) -> None:
    one = migration(world)
    assert one.to is not None
    target = next(each for each in world.nodes.values() if each.id == one.to.node)
    world.submit(MigrateTablets((one,)))
    drive(world, WRITE_BOTH_READ_OLD)
    fill(world, 2, Level.ALL)
    target.stop()
    fill(world, 3)
    target.begin()
    after = drive(world)
    assert set(held(world, target.id, after)) == of(after)
    all_read(world, 3)


@pytest.mark.parametrize("kind", ["rebuild", "rebuild_v2"])
def test_the_replica_of_a_dead_node_is_rebuilt_from_a_quorum(world: DataWorld, kind: str) -> None:
    one = migration(world, kind)
    assert one.from_ is not None
    assert one.to is not None
    victim = next(each for each in world.nodes.values() if each.id == one.from_.node)
    victim.stop()
    fill(world, 2)
    world.submit(DeclareDown(victim.id, "gone"))
    world.submit(MigrateTablets((one,)))
    after = drive(world)
    assert victim.id not in {replica.node for replica in after.replicas}
    assert held(world, one.to.node, after) == dict.fromkeys(of(after), 2)


def test_rows_without_a_quorum_are_neither_streamed_nor_reported(world: DataWorld) -> None:
    one = migration(world, "rebuild")
    assert one.from_ is not None
    assert one.to is not None
    victim = next(each for each in world.nodes.values() if each.id == one.from_.node)
    victim.stop()
    world.submit(DeclareDown(victim.id, "gone"))
    world.submit(MigrateTablets((one,)))
    drive(world, WRITE_BOTH_READ_OLD)
    left = {replica.node for replica in tablet(world).replicas} - {victim.id}
    for each in world.nodes.values():
        if each.id in left:
            each.server.stop(0.1)  # The node acknowledges but sends no rows.
    drive(world, STREAMING)
    target = next(each for each in world.nodes.values() if each.id == one.to.node)
    assert {fetch.source for fetch in target.host.value.fetching} == left
    world.submit(DeclareDown(min(left), "gone, too"))
    assert not target.host.value.fetching
    assert not target.ack().reports
    world.submit(DeclareDown(max(left), "gone, too"))
    for node in (victim.id, *left):
        world.submit(Assassinate(node))
    after = drive(world)  # No remaining node knows the rows, so the replica starts empty.
    assert one.to.node in {replica.node for replica in after.replicas}
    assert held(world, one.to.node, after) == {}


def test_a_repair_copies_each_replicas_registers_to_all(world: DataWorld) -> None:
    one = tablet(world)
    behind = next(each for each in world.nodes.values() if each.id == one.replicas[2].node)
    behind.stop()
    fill(world, 2)
    behind.begin()
    assert set(held(world, behind.id, one).values()) == {1}
    world.submit(MigrateTablets((TabletMigration(TABLE, 1, "repair"),)))
    drive(world)
    for replica in one.replicas:
        assert held(world, replica.node, one) == dict.fromkeys(of(one), 2)


def test_tables_that_share_tablets_move_together_without_loss(world: DataWorld) -> None:
    world.submit(create_table("u", 901, "t"))
    fill(world, 1, table="shop.u")
    source = tablet(world).replicas[0]
    here = Shard(source.node, source.shard)
    there = Shard(source.node, 1 - source.shard)
    world.submit(MigrateTablets((TabletMigration(TABLE, 1, "intranode_migration", here, there),)))
    assert drive(world).replicas[0].shard == there.shard
    one = migration(world)
    assert one.to is not None
    world.submit(MigrateTablets((one,)))
    after = drive(world)
    for table in (TABLE, "shop.u"):
        assert set(held(world, one.to.node, after, table)) == of(after)
        assert held(world, source.node, after, table) == {}
        all_read(world, 1, table)


def test_tablets_are_cut_and_merged_under_their_registers(world: DataWorld) -> None:
    for number, (decision, count) in enumerate(((SPLIT, 8), (MERGE, 4)), start=1):
        world.submit(DecideResize(TABLE, decision, number))
        while world.state.tablets[TABLE].count != count:
            world.step()
        fill(world, number + 1)
        all_read(world, number + 1)
        for one in world.state.tablets[TABLE]:
            for replica in one.replicas:
                assert set(held(world, replica.node, one)) <= of(one)


@pytest.mark.parametrize("goes", [DropTable("shop", "t"), DropKeyspace("shop")], ids=["table", "keyspace"])
def test_dropped_tables_lose_their_registers_and_a_namesake_starts_empty(world: DataWorld, goes: Command) -> None:
    if isinstance(goes, DropKeyspace):
        world.submit(DropTable("shop", "t"))
    world.submit(goes)
    assert not any(len(each.host.value.durable.cells) for each in world.nodes.values())
    if isinstance(goes, DropKeyspace):
        world.submit(CreateKeyspace("shop", Replication("tablets", 3)))
    world.submit(create_table(number=902))
    assert world.coordinator.read(TABLE, NAMES[0]).cell is None


def test_register_tables_apply_only_to_tables_in_tablets(world: DataWorld) -> None:
    for space, reason in (("shop", "no_replicas"), ("shop.v", "unknown_table"), ("ks.t", "unknown_table")):
        with pytest.raises(RequestImpossible, match=reason):
            world.coordinator.read(space, b"k")
    columns = (Column("a", "int"),)
    world.submit(CreateTable("ks", "t", uuid(903, space=9), columns, ("a",), (), CdcOptions()))
    with pytest.raises(RequestImpossible, match="no_tablets"):
        world.coordinator.read("ks.t", b"k")

"""A recreated keyspace has no register of its dropped namesake, even if a node missed the epochs between."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace, DropKeyspace
from ringlog.kernel.values import Replication
from ringlog.node.registers.registers import NOT_MEMBER, Reply, admit_write, adopt, restarted
from ringlog.wire.data import RegisterCell, key_of
from tests.node.data_world import DataNode, DataWorld

SIMPLE = Replication("simple", 1)
KEY = key_of("ks", b"k")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[DataWorld]:
    """Return one node with a register of ks; ``other`` shares its placement and survives ks."""
    with closing(DataWorld(tmp_path, factor=1)) as made:
        made.join(1, 0)
        made.submit(CreateKeyspace("other", SIMPLE))
        for keyspace in ("ks", "other"):
            made.coordinator.write(keyspace, b"k", b"kept", timestamp=1)
        yield made


def recreate(world: DataWorld) -> None:
    world.submit(DropKeyspace("ks"))
    world.submit(CreateKeyspace("ks", SIMPLE))


def seen(world: DataWorld, keyspace: str) -> bytes | None:
    cell = world.coordinator.read(keyspace, b"k").cell
    return None if cell is None else cell.value


@pytest.mark.parametrize("is_down", [False, True])
def test_a_node_that_adopts_both_epochs_at_once_drops_the_registers(world: DataWorld, is_down: bool) -> None:
    node: DataNode = world.nodes[1]
    node.is_following = False
    if is_down:
        node.stop()
    recreate(world)
    node.is_following = True
    if is_down:
        node.begin()
    node.follow()
    assert (seen(world, "ks"), seen(world, "other")) == (None, b"kept")
    world.coordinator.write("ks", b"k", b"new", timestamp=1)
    node.stop()
    node.begin()
    assert seen(world, "ks") == b"new", "it has the write since the recreation"


def test_a_write_to_the_dropped_keyspace_is_rejected(world: DataWorld) -> None:
    before = world.state.epoch
    recreate(world)
    node = world.nodes[1]
    replica, _ = adopt(restarted(node.id, node.host.value.durable), world.state)
    for epoch, refused in ((before, NOT_MEMBER), (world.state.epoch, None)):
        _, reply = admit_write(replica, 1, KEY, RegisterCell(2, b"late"), epoch)
        assert (reply.refused if isinstance(reply, Reply) else reply) == refused


def test_a_keyspace_stores_its_creation_epoch(world: DataWorld) -> None:
    recreate(world)
    assert world.state.keyspaces["ks"].made == world.state.epoch

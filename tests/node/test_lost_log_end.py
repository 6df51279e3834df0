"""A power cut removes the newest log entries and agents extend the log before the nodes restart.

A node adopted its registers under the lost entries. If it served them under the other history, it would answer for
ranges whose cells other nodes have dropped.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ringlog.client.direct import DirectAuthor
from ringlog.kernel.commands.cluster.cluster import Noop, TakeOver
from ringlog.kernel.history import state_id_at
from ringlog.log.errors import ReplicaHalted
from ringlog.log.replicas.identity import KnownEpoch
from ringlog.log.replicas.replica import LogReplica
from ringlog.node.registers.journal import recover, write_image
from ringlog.wire.data import key_of
from tests.node.data_world import DataWorld

RANGE = 2**62
"""The tokens that the second node gains: from 0 to this one."""


def name_in_range() -> bytes:
    return next(b"k%d" % number for number in range(1_000) if 0 < key_of("ks", b"k%d" % number).token <= RANGE)


def grow(world: DataWorld, entries: int) -> LogReplica:
    """Append the entries of agents that start first."""
    replica = LogReplica(world.log).start()
    replica.read_barrier()
    author = DirectAuthor(world.log, replica, "agents")
    for role in ("validator", "coordinator", "publisher", "keeper"):
        author.take_over(role, "i")
    for _ in range(entries):
        author.submit(Noop())
    return replica


@pytest.fixture
def world(tmp_path: Path) -> DataWorld:
    """Move a range from n1, which dropped its cells, to n2, stop all nodes, and remove the move from the log."""
    world = DataWorld(tmp_path, factor=1)
    world.join(1, 0)
    world.coordinator.write("ks", name_in_range(), b"acknowledged", timestamp=1)
    world.begin(2)
    operation = world.ask_join(2, RANGE)
    world.drive(operation, "write_both_read_old")
    cut = world.log.end_offset()
    world.drive(operation, "finished")
    for node in world.nodes.values():
        node.follow()
        node.stop()
    world.coordinator.close()
    world.replica.stop()
    world.log.truncate(cut)
    return world


def seen_by(world: DataWorld, number: int) -> KnownEpoch:
    """Return the epochs that the journal of a node contains."""
    folder = world.nodes[number].folder
    image, _, _ = recover(folder)
    return KnownEpoch(image.epoch, image.state_id, str(folder))


@pytest.mark.parametrize("entries", [0, 4, 40])
def test_registers_store_the_history_of_their_adoption(world: DataWorld, entries: int) -> None:
    grow(world, entries).stop()
    for number in (1, 2):
        with (
            LogReplica(world.log, seen=[seen_by(world, number)]) as replica,
            pytest.raises(ReplicaHalted, match="log_forked") as caught,
        ):
            replica.read_barrier()
        assert str(world.nodes[number].folder) in str(caught.value)


def test_registers_continue_with_their_own_history(tmp_path: Path) -> None:
    world = DataWorld(tmp_path, factor=1)
    world.join(1, 0)
    world.nodes[1].stop()
    world.author.submit(TakeOver("validator", "i", 1))
    with LogReplica(world.log, seen=[seen_by(world, 1)]) as replica:
        assert replica.read_barrier().epoch == world.state.epoch
    world.close()


def test_a_rewritten_journal_keeps_the_state_id(tmp_path: Path) -> None:
    world = DataWorld(tmp_path, factor=1)
    node = world.join(1, 0)
    node.stop()
    before = seen_by(world, 1)
    assert before.state_id == state_id_at(world.state, before.epoch)
    image, number, _ = recover(node.folder)
    write_image(node.folder, image, number)
    assert seen_by(world, 1) == before
    world.close()

"""SIGKILL ends cache writer and publisher before each durable step of a snapshot and of a truncation."""

from __future__ import annotations

import signal
from contextlib import closing
from pathlib import Path

import pytest
from tests.system.agents_world import DEADLINE_S, AgentsWorld, until
from tests.system.test_truncation import known_snapshot

from ringlog.kernel.commands.cluster.snapshots import TakeSnapshot
from ringlog.kernel.commands.cluster.truncation import TruncateLog
from ringlog.kernel.encoding.encoder import digest
from ringlog.kernel.values import Command
from ringlog.log.archive.archive import Archive, all_records
from ringlog.log.folding import follow
from ringlog.log.kafka.adapter import KafkaLog
from ringlog.protocol.submission.results import AppliedResult

pytestmark = [pytest.mark.system, pytest.mark.slow]

TOPIC = "ringlog.log.replicas.start_point", "SnapshotTopic"
SUBMITS = "ringlog.agents.maintenance.snapshots", "SnapshotThread", "_submit_once"
SNAPSHOT: tuple[tuple[str, str, str, str, int], ...] = (
    ("keeper", *TOPIC, "_put", 0),  # the first chunk
    ("keeper", *TOPIC, "_put", 1),  # the head
    ("publisher", *TOPIC, "confirm", 0),
    ("publisher", *SUBMITS, 0),  # the confirmation in the log
    ("keeper", "ringlog.log.archive.archive", "Archive", "add", 0),
    ("keeper", *SUBMITS, 0),  # the archiving in the log
)
"""Role, the function before whose call the process dies, and the number of earlier calls."""


@pytest.mark.soak("tests/sim, profile truncation, which kills agents between any two steps; a release runs this")
def test_the_next_keeper_snapshots_and_truncates(world: AgentsWorld, tmp_path: Path) -> None:
    world.environment["RINGLOG_ARCHIVE"] = str(tmp_path / "archive")
    world.start_all("validator", "publisher", "keeper")
    world.await_active("publisher", "keeper")
    head = known_snapshot(world)
    for role, *step in SNAPSHOT:
        world.running(role).kill()
        dying = world.start_dying(role, *step)
        world.await_active(role)
        _submit(world, TakeSnapshot())
        assert dying.exit_code() == -signal.SIGKILL, step
        world.start(role)
        world.await_active(role)
        head = known_snapshot(world)

    world.running("keeper").kill()
    dying = world.start_dying("keeper", "ringlog.agents.roles.keeper", "", "delete_entries")
    _submit(world, TruncateLog(head.epoch))
    assert dying.exit_code() == -signal.SIGKILL
    with closing(KafkaLog(world.stack.bootstrap_servers, world.cluster)) as log:
        assert log.begin_offset() == 0
        world.start("keeper")
        until(lambda: log.begin_offset() == head.position - 1, "the next cache writer to delete the entries")

        def is_same_epoch() -> bool:
            *_, last = follow(all_records(log, Archive(tmp_path / "archive")))
            state = world.client.read_barrier(DEADLINE_S)
            assert last.after.epoch != state.epoch or digest(last.after) == digest(state)
            return bool(last.after.epoch == state.epoch)

        until(is_same_epoch, "archive and log to be read between two entries")


def _submit(world: AgentsWorld, command: Command) -> None:
    assert isinstance(world.client.submit(command, timeout_s=DEADLINE_S), AppliedResult)

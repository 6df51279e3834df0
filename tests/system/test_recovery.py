"""A log is lost or damaged on a real broker: readers detect it at their start and while they run, and a recovery
restores it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from tests.log.test_snapshots import confirmation
from typer.testing import CliRunner

from ringlog.cli.main import app
from ringlog.client.creation.creation import create_cluster
from ringlog.client.direct import DirectAuthor
from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.commands.cluster.snapshots import TakeSnapshot
from ringlog.kernel.commands.cluster.truncation import ConfirmSnapshot
from ringlog.kernel.commands.control.recovery import LeaveRecovery
from ringlog.kernel.encoding.encoder import digest
from ringlog.kernel.history import allowed_begin
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.service import in_recovery
from ringlog.kernel.values import Command
from ringlog.log.archive.archive import Archive, update_archive
from ringlog.log.errors import ArchiveTooLate, LogDamaged, LogError, ReplicaHalted, TopicMissing
from ringlog.log.folding import follow
from ringlog.log.kafka.adapter import KafkaLog
from ringlog.log.kafka.topics import METADATA, admin_client, create_topics, delete_topic, topic_name
from ringlog.log.opening import delete_entries, open_snapshots, start_point_finder
from ringlog.log.reading import read_to_end
from ringlog.log.replicas import replica as replicas
from ringlog.log.replicas.replica import LogReplica
from ringlog.node.log.log_copy import COPY
from ringlog.node.log.member_copy import open_copy
from ringlog.protocol.submission.results import AppliedResult
from ringlog.stack import StackInfo

pytestmark = [pytest.mark.system, pytest.mark.slow]
DEADLINE_S = 60.0
STEPS_LEAST = 8
"""The minimum number of durable steps in a recovery from a snapshot: room, topics, notes, batches, snapshot records,
start.
"""
KILLED = """
import os, signal, sys
from ringlog.cli.metadata import recover
from ringlog.cli.main import app
from ringlog.client.creation import recovery as recovering
from ringlog.client.creation.recovery_place import KafkaPlace
from ringlog.log.kafka.adapter import KafkaLog

def counted(owner, name):
    real = getattr(owner, name)
    def step(*arguments, **options):
        steps.append(name)
        if len(steps) - steps.count("put") * 19 // 20 > last:  # a snapshot has a record for each part of the state
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **options)
    setattr(owner, name, step)

for name in ("make_room", "make", "note", "delete_before"):
    counted(KafkaPlace, name)
for name in ("append", "put"):
    counted(KafkaLog, name)
recovering.BATCH_RECORDS = 4
killed, status = -1, signal.SIGKILL
while os.WIFSIGNALED(status):
    killed, steps, last = killed + 1, [], killed + 1
    if os.fork() == 0:
        app(sys.argv[1:])
    _, status = os.wait()
print(killed)
sys.exit(os.waitstatus_to_exitcode(status))
"""
"""Recovery processes that are killed before their first durable step, before their second, and so on, until one
finishes.
"""


class World:
    """A cluster without processes, a log replica's copy of its log, and an archive."""

    def __init__(self, stack: StackInfo, cluster: str, folder: Path) -> None:
        self.place = stack.bootstrap_servers, cluster
        self.name = topic_name(cluster, METADATA.suffix)
        self.member, self.archive = folder / "node", folder / "archive"
        self.member.mkdir()
        self.memory = folder / "memory.json"
        create_cluster(*self.place)
        self.apply(*[Noop()] * 5)
        self.keep()

    def replica(self, log: KafkaLog, memory: bool = True) -> LogReplica:
        record = self.memory if memory else None
        return LogReplica(log, record=record, start_finder=start_point_finder(*self.place), watch_s=0.2)

    def apply(self, *commands: Command) -> ClusterState:
        """Apply a command; return the state before it."""
        with closing(KafkaLog(*self.place)) as log, self.replica(log) as replica:
            before = replica.read_barrier(DEADLINE_S)
            author = DirectAuthor(log, replica, "tester")
            for command in commands:
                assert isinstance(author.submit(command), AppliedResult)
            return before

    def snapshot(self) -> None:
        """Take a snapshot that the log confirms."""
        taken = self.apply(TakeSnapshot(), Noop()).epoch + 1
        with closing(KafkaLog(*self.place)) as log, closing(open_snapshots(*self.place)) as topic:
            with closing(log.tail(0)) as tail:
                records = list(read_to_end(log, tail))
            start = next(made.next for made in follow(records) if made.after.epoch == taken)
            head = topic.store(start, log.identity(), "keeper", 0, "first")
            topic.confirm(confirmation(head, "publisher"))
        said = head.epoch, head.state_id, head.position, head.digest
        self.apply(ConfirmSnapshot(*said, ("keeper", "publisher")))

    def keep(self) -> None:
        """Store the current log in replica and archive."""
        with closing(KafkaLog(*self.place)) as log, closing(log.tail(log.begin_offset())) as tail:
            with closing(open_copy(self.member / COPY, log, start_point_finder(*self.place))) as copy:
                while tail.position < log.end_offset():
                    copy.append(tail.poll(1.0))
            if not self.archive.exists():
                update_archive(Archive(self.archive), log, lambda: open_snapshots(*self.place))

    def recover(self, folder: Path, *words: str, status: int = 0) -> dict[str, Any]:
        where = ("--bootstrap", self.place[0], "--cluster", self.place[1], "--json")
        asked = ["recover", str(folder), "--operator", "ann", "--reason", "a test", *words, *where]
        ended = CliRunner().invoke(app, asked)
        assert (ended.exit_code == 0) is (status == 0), ended.output
        if status:
            return {"code": getattr(ended.exception, "code", None)}
        found: dict[str, Any] = json.loads(ended.stdout)
        return found

    # --------------------------------------------------------------------------------------------- damages

    def emptied(self) -> None:
        with closing(KafkaLog(*self.place)) as log:
            delete_entries(*self.place, log.end_offset())

    def deleted(self) -> None:
        delete_topic(admin_client(self.place[0]), self.name)

    def made_again(self, *records: bytes) -> None:
        self.deleted()
        with closing(KafkaLog(*self.place)) as log:
            while True:
                try:
                    log.identity()
                except TopicMissing:
                    break
        create_topics(admin_client(self.place[0]), self.place[1], specs=[METADATA])
        with closing(KafkaLog(*self.place)) as log:
            log.append(records)

    def broken(self) -> None:
        """Damage one record in the middle."""
        with closing(KafkaLog(*self.place)) as log, closing(log.tail(0)) as tail:
            records = list[bytes]()
            while tail.position < log.end_offset():
                records += [record.data for record in tail.poll(1.0)]
        records[3] = b"broken"
        self.made_again(*records)


def seen(world: World, damage: Callable[[], object], running: str, at_start: str) -> None:
    """Check that the damage halts running readers and stops new ones with these codes.

    A recreated topic appears first as a shorter one, or as another one.
    """
    with closing(KafkaLog(*world.place)) as log, world.replica(log) as replica:
        replica.read_barrier(DEADLINE_S)
        damage()
        with pytest.raises(ReplicaHalted) as halted:
            replica.wait_for(lambda _: None, DEADLINE_S, "it to halt")
        assert halted.value.code in running.split()
    wrong = LogDamaged, TopicMissing, ReplicaHalted
    with (
        closing(KafkaLog(*world.place)) as log,
        pytest.raises(wrong) as refused,
        world.replica(log, memory=at_start != "log_gap") as replica,
    ):
        replica.read_barrier(DEADLINE_S)
    assert isinstance(refused.value, LogError)
    assert refused.value.code == at_start


def test_each_loss_is_detected_and_recovered(
    stack: StackInfo, cluster_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(stack, cluster_name, tmp_path)
    assert world.recover(world.member, status=1) == {"code": "log_not_empty"}
    assert world.recover(world.member, "--dry-run")["there"]["records"] == 6
    epoch = 6
    for folder, damage, running, at_start in (
        (world.archive, world.emptied, "log_truncated", "log_truncated"),
        (world.member, world.broken, "log_replaced log_truncated", "log_gap"),
        (world.member, world.deleted, "topic_missing", "topic_missing"),
        (world.member, world.made_again, "log_replaced log_truncated", "log_replaced"),
    ):
        # A recreated topic is away for as long as the broker takes.
        monkeypatch.setattr(replicas, "MISSING_S", 0.5 if running == "topic_missing" else DEADLINE_S)
        seen(world, damage, running, at_start)
        view = world.recover(folder, *(["--replace"] if at_start == "log_gap" else []))
        assert (view["epoch"], view["lost_epochs"], view["has_gap"]) == (epoch, 0, False)
        world.memory.unlink()
        after = world.apply(LeaveRecovery("mended", "ann"))
        assert (after.epoch, digest(after)) == (view["then_epoch"], view["digest"])
        assert in_recovery(after) is not None
        epoch = after.epoch + 1
        if at_start == "topic_missing":
            world.snapshot()
            epoch += 3
        world.keep()
    with closing(KafkaLog(*world.place)) as log:
        assert log.begin_offset() == allowed_begin(after) > 0, "the last log was rebuilt from a snapshot"


def test_a_log_with_its_first_entry_starts_an_archive(stack: StackInfo, cluster_name: str, tmp_path: Path) -> None:
    """The log has its first entry after a recovery from an archive, but not from a copy that starts with a snapshot."""
    world = World(stack, cluster_name, tmp_path)

    def archived(to: Path) -> Result:
        where = ("--bootstrap", world.place[0], "--cluster", world.place[1], "--json")
        return CliRunner().invoke(app, ["log", "archive", "--to", str(to), "--no-record", *where])

    world.emptied()
    view = world.recover(world.archive)
    assert json.loads(archived(tmp_path / "whole").stdout)["epoch"] == view["then_epoch"]
    world.memory.unlink()
    world.snapshot()
    world.keep()
    world.emptied()
    world.recover(world.member)
    refused = archived(tmp_path / "late").exception
    assert isinstance(refused, ArchiveTooLate)
    assert "start the cache writer without RINGLOG_ARCHIVE" in refused.hint
    assert Archive(tmp_path / "late").segments() == ()


def test_a_killed_recovery_is_finished_by_the_same_command(stack: StackInfo, cluster_name: str, tmp_path: Path) -> None:
    """Successive processes are each killed one step later: topics, note, entries, snapshot."""
    world = World(stack, cluster_name, tmp_path)
    world.snapshot()
    world.keep()
    world.emptied()
    where = ("--bootstrap", world.place[0], "--cluster", world.place[1], "--json")
    command = [sys.executable, "-c", KILLED, "recover", str(world.member), "--operator", "ann", "--reason", "a test"]
    ended = subprocess.run(
        [*command, *where], env=os.environ | {"RINGLOG_DATA_DIR": str(tmp_path)}, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    view, killed = map(json.loads, ended.stdout.splitlines())
    assert killed >= STEPS_LEAST
    world.memory.unlink()
    after = world.apply(LeaveRecovery("mended", "ann"))
    assert (after.epoch, digest(after), view["lost_epochs"]) == (view["then_epoch"], view["digest"], 0)
    with closing(KafkaLog(*world.place)) as log:
        assert log.begin_offset() == allowed_begin(after) > 0

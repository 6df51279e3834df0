"""``ringlog recover`` killed at each durable step: a second call completes the recovery with the same result."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import pytest

from ringlog.client.creation import recovery as recovering
from ringlog.client.creation.recovery import RecoveryPlan, planned, rebuild
from ringlog.client.creation.recovery_place import FoundLog, KafkaPlace, cluster_id_at
from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.encoding.encoder import digest
from ringlog.log.archive.archive import Archive
from ringlog.log.archive.copies import LogCopy, copy_of_archive
from ringlog.log.errors import CopiesUndecided, LogNotEmpty
from ringlog.log.memory import MemoryKeyed, MemoryLog
from ringlog.log.replicas.replica import LogReplica
from ringlog.log.replicas.start_point import SnapshotTopic, StartPointFinder
from tests.client.test_recovery import archive, cluster, copy
from tests.log.test_snapshots import Cluster

__all__ = ("archive", "cluster", "copy")
T = TypeVar("T")


class Killed(BaseException):
    """No step follows this exception."""


class Steps:
    """Counts durable steps and kills the process before step ``last``."""

    def __init__(self) -> None:
        self.taken, self.last = 0, 1_000_000

    def step(self, act: Callable[[], T]) -> T:
        if self.taken >= self.last:
            raise Killed
        self.taken += 1
        return act()


class KillableLog(MemoryLog):
    """Each appended record is a step: a killed process has written part of a batch."""

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self._steps = steps

    def append(self, entries: Sequence[bytes]) -> None:
        for entry in entries:
            self._steps.step(lambda entry=entry: super(KillableLog, self).append([entry]))


class KillableTopic(MemoryKeyed):
    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self._steps = steps

    def put(self, key: str, data: bytes | None) -> int:
        return self._steps.step(lambda: super(KillableTopic, self).put(key, data))


class MemoryPlace:
    """A place that survives a kill, except for its processes."""

    def __init__(self, steps: Steps) -> None:
        self.name, self.steps = "tests", steps
        self.log = KillableLog(steps)
        self._is_there = False
        self._records = KillableTopic(steps)
        self._note = ""

    def found(self) -> FoundLog | None:
        if not self._is_there:
            return None
        begin, end = self.log.begin_offset(), self.log.end_offset()
        return FoundLog(end, end - begin, cluster_id_at(self.log, begin), self.log.identity())

    def check(self) -> None:
        pass

    def make_room(self) -> None:
        def gone() -> None:
            self._is_there = False

        self.steps.step(gone)

    def make(self) -> None:
        def made() -> None:
            if not self._is_there:
                self._is_there, self.log = True, KillableLog(self.steps)

        self.steps.step(made)

    def snapshots(self) -> SnapshotTopic:
        return SnapshotTopic(self._records)

    def delete_before(self, offset: int) -> None:
        self.steps.step(lambda: self.log.delete_before(offset))

    def unfinished(self) -> str:
        return self._note

    def note(self, topic_id: str) -> None:
        def noted() -> None:
            self._note = topic_id

        self.steps.step(noted)

    def start_finder(self) -> StartPointFinder:
        return StartPointFinder(self.snapshots, warns=False)


def ends(place: MemoryPlace, plan: RecoveryPlan) -> bool:
    with LogReplica(place.log, start_finder=place.start_finder()) as replica:
        return digest(replica.read_barrier(60)) == digest(plan.after)


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovering, "BATCH_RECORDS", 5)


def plan_of(copy: LogCopy) -> RecoveryPlan:
    return planned(copy, "ann", "the disk burnt")


@pytest.mark.parametrize("kind", ["copy", "archive"])
def test_a_recovery_killed_at_each_step_has_the_same_result(kind: str, request: pytest.FixtureRequest) -> None:
    found = request.getfixturevalue(kind)
    source = copy_of_archive(found) if isinstance(found, Archive) else found
    whole = MemoryPlace(Steps())
    whole.name = plan_of(source).after.name
    rebuild(whole, plan_of(source))
    assert whole.unfinished() == ""
    assert whole.steps.taken > len(list(source.records()))
    for last in range(whole.steps.taken):
        place = MemoryPlace(Steps())
        place.name = whole.name
        place.steps.last = last
        with pytest.raises(Killed):
            rebuild(place, plan_of(source))
        place.steps.last += last % 7 + 1
        with pytest.raises(Killed):  # Another kill, some steps later.
            rebuild(place, plan_of(source))
        place.steps.last = 1_000_000
        again = plan_of(source)
        rebuild(place, again)
        assert ends(place, again), f"killed at step {last}"
        assert (place.log.begin_offset(), place.log.end_offset()) == (whole.log.begin_offset(), whole.log.end_offset())
        assert place.unfinished() == ""


def test_a_replacement_of_a_whole_log_killed_at_each_step_has_the_same_result(cluster: Cluster, copy: LogCopy) -> None:
    def used_place() -> MemoryPlace:
        place = MemoryPlace(Steps())
        place.name = plan.after.name
        place.make()
        Cluster(place.log).live(random.Random(5), 3)
        place.steps.taken = 0
        return place

    plan = plan_of(copy)
    whole = used_place()
    rebuild(whole, plan, replace=True)
    for last in range(whole.steps.taken):
        place = used_place()
        place.steps.last = last
        with pytest.raises(Killed):
            rebuild(place, plan, replace=True)
        place.steps.last = 1_000_000
        rebuild(place, plan, replace=True)
        assert ends(place, plan), f"killed at step {last}"


class Misconfigured(MemoryPlace):
    """A place that cannot create the topics."""

    def check(self) -> None:
        raise CopiesUndecided("2 brokers are up")


def test_a_log_stays_if_the_topics_cannot_be_made(copy: LogCopy) -> None:
    plan = plan_of(copy)
    place = Misconfigured(Steps())
    place.name = plan.after.name
    place.make()
    place.log.append([b"a record"])
    with pytest.raises(CopiesUndecided):
        rebuild(place, plan, replace=True)
    assert place.log.end_offset() == 1


def test_a_live_log_is_not_mistaken_for_an_unfinished_recovery(cluster: Cluster, copy: LogCopy) -> None:
    plan = plan_of(copy)
    place = MemoryPlace(Steps())
    place.name = plan.after.name
    rebuild(place, plan)
    with pytest.raises(LogNotEmpty):
        rebuild(place, plan_of(copy))
    place.note(place.log.identity())  # A kill before the note was removed, then a client uses the log.
    Cluster(place.log, state=plan.after).apply(Noop())
    with pytest.raises(LogNotEmpty):
        rebuild(place, plan_of(copy))
    rebuild(place, plan_of(copy), replace=True)
    assert place.unfinished() == ""


def test_a_note_is_kept_on_the_disk(tmp_path: Path) -> None:
    with closing(KafkaPlace("localhost:1", "shop", notes=tmp_path / "notes")) as place:
        assert place.unfinished() == ""
        place.note("one")
        place.note("two")
        again = KafkaPlace("localhost:1", "shop", notes=tmp_path / "notes")
        assert again.unfinished() == "two"
        again.close()
        place.note("")
        place.note("")
        assert place.unfinished() == ""

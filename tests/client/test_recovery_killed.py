"""``ringlog recover`` that is killed at each step that lasts: the same call again comes to the same end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from ringlog.client import recovering
from ringlog.client.recovering import RecoveryPlan, planned, rebuild
from ringlog.client.recovery_place import FoundLog, KafkaPlace, whose
from ringlog.kernel.commands.cluster import Noop
from ringlog.kernel.encoding import digest
from ringlog.log.archive import Archive
from ringlog.log.beginning import Beginning, SnapshotTopic
from ringlog.log.copied import LogCopy, copy_of_archive
from ringlog.log.errors import LogNotEmpty
from ringlog.log.memory import MemoryKeyed, MemoryLog
from ringlog.log.replica import LogReplica
from tests.client.test_recovering import archive, cluster, copy
from tests.log.test_snapshots import Cluster

__all__ = ("archive", "cluster", "copy")
T = TypeVar("T")


class Killed(BaseException):
    """Nothing after this happens."""


class Steps:
    """Counts what lasts, and kills before step ``last``."""

    def __init__(self) -> None:
        self.taken, self.last = 0, 1_000_000

    def step(self, act: Callable[[], T]) -> T:
        if self.taken >= self.last:
            raise Killed
        self.taken += 1
        return act()


class KillableLog(MemoryLog):
    """Each record that is appended is a step: who is killed has written a part of a batch."""

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
    """A place of which all but the processes outlives a kill."""

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
        return FoundLog(end, end - begin, whose(self.log, begin), self.log.identity())

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

    def begins(self) -> Beginning:
        return Beginning(self.snapshots, warns=False)


def ends(place: MemoryPlace, plan: RecoveryPlan) -> bool:
    with LogReplica(place.log, beginning=place.begins()) as replica:
        return digest(replica.read_barrier(60)) == digest(plan.after)


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovering, "BATCH_RECORDS", 5)


def plan_of(copy: LogCopy) -> RecoveryPlan:
    return planned(copy, "ann", "the disk burnt")


@pytest.mark.parametrize("kind", ["copy", "archive"])
def test_killed_at_each_step_it_comes_to_the_same_end(kind: str, request: pytest.FixtureRequest) -> None:
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
        with pytest.raises(Killed):  # once more, some steps later
            rebuild(place, plan_of(source))
        place.steps.last = 1_000_000
        again = plan_of(source)
        rebuild(place, again)
        assert ends(place, again), f"killed at step {last}"
        assert (place.log.begin_offset(), place.log.end_offset()) == (whole.log.begin_offset(), whole.log.end_offset())
        assert place.unfinished() == ""


def test_a_log_that_is_alive_is_not_taken_for_one_that_was_begun(cluster: Cluster, copy: LogCopy) -> None:
    plan = plan_of(copy)
    place = MemoryPlace(Steps())
    place.name = plan.after.name
    rebuild(place, plan)
    with pytest.raises(LogNotEmpty):
        rebuild(place, plan_of(copy))
    place.note(place.log.identity())  # killed before the note went; and now somebody works with it
    Cluster(place.log, state=plan.after).apply(Noop())
    with pytest.raises(LogNotEmpty):
        rebuild(place, plan_of(copy))
    rebuild(place, plan_of(copy), replace=True)
    assert place.unfinished() == ""


def test_a_note_is_kept_on_the_disk(tmp_path: Path) -> None:
    place = KafkaPlace("localhost:1", "shop", notes=tmp_path / "notes")
    try:
        assert place.unfinished() == ""
        place.note("one")
        place.note("two")
        again = KafkaPlace("localhost:1", "shop", notes=tmp_path / "notes")
        assert again.unfinished() == "two"
        again.close()
        place.note("")
        place.note("")
        assert place.unfinished() == ""
    finally:
        place.close()

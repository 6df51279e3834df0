"""The agents' snapshot tasks: ``ringlog.agents.maintenance.snapshots`` on virtual time.

Storing, confirming, archiving, ordering in the log, and deleting are separated by time for other events. The machine
can lose power in each write to a topic or to the archive.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Protocol

from ringlog.agents.maintenance.snapshots import AwaitHead, AwaitSnapshotWork, SnapshotSteps, SubmitOnce
from ringlog.agents.maintenance.truncation import LogEnds
from ringlog.kernel.changes import EpochChange
from ringlog.kernel.model.outcome import Entry, Outcome, UnreadableEntry
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch, Micros, replace
from ringlog.log.archive.archive import Archive
from ringlog.log.errors import LogError
from ringlog.log.folding import Start
from ringlog.log.replicas.start_point import SnapshotTopic
from ringlog.log.snapshots import CHUNK_BYTES
from ringlog.protocol.effects import FaultPoint, Newest
from ringlog.protocol.role import superseded
from ringlog.wire.records import StoredSnapshot
from ringlog_sim.devices.at_once import IDENTITY, PlaceAtOnce, TopicAtOnce
from ringlog_sim.devices.broker import CHANGES, METADATA, SNAPSHOTS
from ringlog_sim.devices.memo import cached_change
from ringlog_sim.devices.world import MS, SECOND, Chance, Signal, SimHost
from ringlog_sim.replica import Performers, SimAuthor, SimReplica, Step, perform

if TYPE_CHECKING:
    from ringlog_sim.simulation import LogEndsState, Simulation

PAUSES_US: Final = (1 * MS, 5 * MS, 20 * MS, 60 * MS, 700 * MS)
CHUNKS_BYTES: Final = (2_500, *[CHUNK_BYTES] * 4)
"""In production and in most runs, the state of a run is one chunk. In a few runs it has more, and a crash can hit a
part.
"""
POLL_US: Final = 40 * MS
POLLS: Final = 100
RETRY_US: Final = SECOND


class Acting(Protocol):
    """A worker that has taken its role over."""

    sim: Simulation
    host: SimHost
    role: str
    term: int
    instance: str
    name: str
    replica: SimReplica
    direct: SimAuthor


class _Forgetful(SnapshotTopic):
    """A snapshot topic that stores a wrong state once, if that is ordered. It simulates a defective writer."""

    def __init__(self, records: TopicAtOnce, ends: LogEndsState, chunk_bytes: int) -> None:
        super().__init__(records, chunk_bytes)
        self._log_ends = ends

    def store(
        self, start: Start, topic_id: str, by: str, at: Micros, snapshot_id: str, begin: int = 0
    ) -> StoredSnapshot:
        """Store a snapshot, as in production, except for the ordered defect."""
        if self._log_ends.forgetful:
            self._log_ends.forgetful, start = False, replace(start, state=replace(start.state, name="another"))
        return super().store(start, topic_id, by, at, snapshot_id, begin)


class SimSnapshots:
    """The snapshot tasks of one worker, from its take-over to its end."""

    def __init__(self, worker: Acting) -> None:
        sim, host = worker.sim, worker.host
        ends = sim.log_ends
        self._sim = sim
        self._worker = worker
        self._chance = Chance(sim.world.seed, f"snapshots/{worker.instance}")
        topic = _Forgetful(TopicAtOnce(sim.broker, SNAPSHOTS, ends.deaths, host), ends, self._chance.pick(CHUNKS_BYTES))
        archive = None if ends.files is None else Archive(PlaceAtOnce(ends.files, ends.deaths, lambda: ends.refuses))
        log = TopicAtOnce(sim.broker, METADATA, ends.deaths, host)
        log_ends = LogEnds(log, lambda: topic, log.delete_before, archive, self._published, self._acts, self._count)
        numbers = count(1)
        self._steps = SnapshotSteps(
            worker.role,
            lambda: topic,
            lambda: IDENTITY,
            worker.direct.now,
            lambda: f"{worker.instance}/{next(numbers)}",
            log_ends,
            self._count,
        )
        self._steps.resume(worker.replica.state, worker.replica.recent.take_mark())
        self._news = Signal()
        worker.replica.followers.append(self._folded)
        at_once: dict[type, Callable[[Any], Any]] = {Newest: lambda _: worker.replica.state}
        in_time: Performers = {
            AwaitSnapshotWork: self._await_work,
            FaultPoint: lambda _: self._pause(),
            AwaitHead: self._await_head,
            SubmitOnce: lambda effect: worker.direct.submit(effect.command),
        }

        def work() -> Step:
            yield from perform(self._steps.run(), at_once, in_time)

        self._process = sim.world.spawn(host, f"{worker.name}.snapshots", work())

    def close(self) -> None:
        """Stop the tasks."""
        self._process.stop()

    def _folded(
        self, before: ClusterState, after: ClusterState, _item: Entry | UnreadableEntry, _outcome: Outcome, offset: int
    ) -> None:
        if self._steps.folded(before, after, offset):
            self._news.fire()

    def _await_work(self, _: AwaitSnapshotWork) -> Step:
        if self._steps.is_due:
            return
        if self._steps.has_unfinished_work:
            yield self._news, RETRY_US
        else:
            yield self._news

    def _pause(self) -> Step:
        yield self._chance.pick(PAUSES_US)

    def _await_head(self, effect: AwaitHead) -> Step:
        for _ in range(POLLS):
            with suppress(LogError):
                for one in effect.topic.listed():
                    if one.head.epoch == effect.epoch:
                        return one.head
            if self._steps.is_due:
                break
            yield POLL_US
        return None

    def _count(self, event: str, *epochs: Epoch, **about: object) -> None:
        why = about.get("why")
        if event == "given_up":
            self._sim.log_ends.given_up.update(epochs)
        self._sim.did["snapshots", why.code if isinstance(why, LogError) else event] += 1

    def _published(self) -> Epoch:
        partition = self._sim.broker.partition(CHANGES)
        there = reversed(partition.records[: partition.visible])
        newest = next((cached_change(record.value) for record in there if record.key == "epochs"), None)
        return newest.epoch if isinstance(newest, EpochChange) else 0

    def _acts(self) -> bool:
        worker = self._worker
        return superseded(worker.replica.state, worker.role, worker.term) is None

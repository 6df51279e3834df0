"""What agents do for snapshots, on the simulated world: ``ringlog.agents.snapshots`` with pauses instead of a thread.

Between what is stored, confirmed, archived, said in the log, and deleted, time passes in which anything can happen; in
each write to a topic or to the archive the machine can lose its power.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

from ringlog.agents.snapshots import STORES, compared, is_mark, is_order
from ringlog.agents.truncation import LogEnds
from ringlog.kernel.changes import EpochChange
from ringlog.kernel.commands.truncation import allowed_begin, is_known
from ringlog.kernel.outcome import Entry, Outcome, UnreadableEntry
from ringlog.kernel.state import ClusterState
from ringlog.kernel.values import Command, Epoch, Micros
from ringlog.log.beginning import SnapshotTopic
from ringlog.log.errors import LogError
from ringlog.log.folding import Start
from ringlog.protocol.role import superseded
from ringlog.sim.at_once import IDENTITY, ArchiveAtOnce, TopicAtOnce
from ringlog.sim.broker import CHANGES, METADATA, SNAPSHOTS
from ringlog.sim.chance import Chance
from ringlog.sim.memo import cached_change
from ringlog.sim.replica import SimAuthor, SimReplica, Step
from ringlog.sim.world import MS, SECOND, Signal, SimHost

if TYPE_CHECKING:
    from ringlog.sim.simulation import Simulation

PAUSES_US: Final = (1 * MS, 5 * MS, 20 * MS, 60 * MS, 700 * MS)
LOOK_US: Final = 40 * MS
LOOKS: Final = 100
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


def _unsaid(_event: str, **_: object) -> None:
    """What happens here is counted."""


class SimSnapshots:
    """What one worker does beside its role, from its take-over to its end."""

    def __init__(self, worker: Acting) -> None:
        sim, host = worker.sim, worker.host
        ends = sim.log_ends
        self._sim = sim
        self._worker = worker
        self._stores = worker.role in STORES
        self._chance = Chance(sim.world.seed, f"snapshots/{worker.instance}")
        self._topic = SnapshotTopic(TopicAtOnce(sim.broker, SNAPSHOTS, ends.deaths, host))
        archive = None if ends.files is None else ArchiveAtOnce(ends.files, ends.deaths)
        log = TopicAtOnce(sim.broker, METADATA, ends.deaths, host)
        self._ends = LogEnds(log, lambda: self._topic, log.delete_before, archive, self._published, self._acts, _unsaid)
        self._due: Start | None = None
        self._ordered = worker.replica.state if self._stores and allowed_begin(worker.replica.state) else None
        self._news = Signal()
        worker.replica.followers.append(self._folded)
        self._process = sim.world.spawn(host, f"{worker.name}.snapshots", self._run())

    def close(self) -> None:
        """The worker ends."""
        self._process.stop()

    def _folded(
        self, before: ClusterState, after: ClusterState, _item: Entry | UnreadableEntry, _outcome: Outcome, offset: int
    ) -> None:
        if is_mark(before, after):
            self._due = Start(after, offset + 1)
            self._news.fire()
        if self._stores and is_order(before, after):
            self._ordered = after
            self._news.fire()

    def _run(self) -> Step:
        while True:
            if self._due is None and self._ordered is None:
                yield self._news
            elif self._due is None:
                yield self._news, RETRY_US
            yield self._pause()
            start, self._due = self._due, None
            try:
                if start is not None:
                    yield from (self._store(start) if self._stores else self._confirm(start))
                if self._ordered is not None:
                    ordered = self._ordered
                    self._ends.truncate(ordered)
                    self._ordered = None if self._ordered is ordered else self._ordered
            except LogError as error:
                self._sim.did["snapshots", error.code] += 1

    def _pause(self) -> Micros:
        return self._chance.pick(PAUSES_US)

    def _store(self, start: Start) -> Step:
        state, ends = start.state, self._sim.log_ends
        if ends.forgetful:
            ends.forgetful, state = False, replace(state, name="another")
        by, number = self._worker, f"{self._worker.instance}/{state.epoch}"
        stored = Start(state, start.position)
        self._topic.store(stored, IDENTITY, by.role, by.direct.now(), number, self._ends.begin())
        self._sim.did["snapshots", "stored"] += 1
        yield self._pause()
        grown = self._ends.archive(start)
        if grown is not None:
            self._sim.did["snapshots", "archived"] += 1
            yield from self._submit(grown)

    def _confirm(self, start: Start) -> Step:
        for _ in range(LOOKS):
            heads = [one.head for one in self._topic.listed() if one.head.epoch == start.state.epoch]
            if heads or self._due is not None:
                break
            yield LOOK_US
        if not heads:
            return
        by = self._worker
        said, confirms = compared(start, heads[0], IDENTITY, by.role, by.direct.now())
        self._topic.confirm(said)
        self._sim.did["snapshots", "disputed" if confirms is None else "confirmed"] += 1
        if confirms is not None:
            yield from self._submit(confirms)

    def _submit(self, command: Command) -> Step:
        yield self._pause()
        if not is_known(self._worker.replica.state, command):
            yield from self._worker.direct.submit(command)

    def _published(self) -> Epoch:
        partition = self._sim.broker.partition(CHANGES)
        there = reversed(partition.records[: partition.visible])
        newest = next((cached_change(record.value) for record in there if record.key == "epochs"), None)
        return newest.epoch if isinstance(newest, EpochChange) else 0

    def _acts(self) -> bool:
        worker = self._worker
        return superseded(worker.replica.state, worker.role, worker.term) is None

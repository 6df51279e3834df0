"""One simulated cluster: the world, the broker, the true log, and the checks.

The *true log* is the replicated part of the metadata topic, which is all that any reader will see. It is folded here
once, entry by entry, as it grows. Replicas must go through exactly these states. Replicas and direct authors share that
work, because the same entry on the same state gives the same result. Independent replicas test this assumption. They do
their own decoding and folding, and exist in one run of ``INDEPENDENT_EVERY``, because they take a tenth of its time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from ringlog.cache.memory import MemoryCache
from ringlog.kernel.fold import fold
from ringlog.kernel.model.outcome import Entry, Folded, Outcome
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState
from ringlog.kernel.values import Epoch
from ringlog.log.folding import BEGINNING, Item, Start, follow
from ringlog.log.replicas.start_point import SnapshotTopic, StartPointFinder
from ringlog.wire.entries import decode_entry
from ringlog_sim.devices.at_once import IDENTITY, Deaths, TopicAtOnce
from ringlog_sim.devices.broker import (
    ACKS,
    CDC,
    CHANGES,
    DEAD,
    LOAD,
    METADATA,
    MUTATIONS,
    REQUESTS,
    RESULTS,
    SNAPSHOTS,
    Partition,
    SimBroker,
)
from ringlog_sim.devices.listener import FoldingReplica, Recording, RunListener
from ringlog_sim.devices.world import BrokenPromise, SimWorld
from ringlog_sim.prefix import Prefix, change_values
from ringlog_sim.stories.moments import Moments

MUTATION_PARTITIONS = 2
CDC_PARTITIONS = 3
PARTITIONS = {
    METADATA: 1,
    REQUESTS: 1,
    RESULTS: 1,
    ACKS: 1,
    LOAD: 1,
    CHANGES: 1,
    MUTATIONS: MUTATION_PARTITIONS,
    CDC: CDC_PARTITIONS,
    DEAD: 1,
    SNAPSHOTS: 1,
}
INDEPENDENT_EVERY = 16
"""In one of N runs, chosen by the seed, some replicas fold independently."""


@dataclass(slots=True)
class TrueLog:
    """The replicated part of the metadata topic, folded. ``states[e]``: state of epoch e. ``entries[e]``: its entry."""

    states: list[ClusterState] = field(default_factory=lambda: [EMPTY_STATE])
    entries: list[Entry | None] = field(default_factory=lambda: [None])
    read: int = 0

    @property
    def state(self) -> ClusterState:
        """Return the newest state."""
        return self.states[-1]


@dataclass(slots=True)
class LogEndsState:
    """The parts of a run for snapshots, archive and truncation.

    ``looked_after``: agents store and confirm snapshots. ``files``: files of the archive, None without an archive.
    ``refuses``: operations of the archive's location that currently fail (``PlaceAtOnce``). ``forgetful``: the next
    stored state is a wrong one. ``given_up``: epochs with snapshots that the broker rejected. ``unmarked_bytes``: bytes
    of the entries applied since the newest mark.
    """

    deaths: Deaths
    looked_after: bool = False
    files: dict[str, bytes] | None = None
    refuses: str = ""
    forgetful: bool = False
    given_up: set[Epoch] = field(default_factory=set)
    unmarked_bytes: int = 0

    def take_again(self) -> None:
        """Repair the archive's location."""
        self.refuses = ""


class Simulation:
    """All parts of one run. ``did`` counts events for the coverage tables. ``checks`` creates the listeners."""

    def __init__(self, world: SimWorld, cluster_id: str, checks: Iterable[Callable[[Simulation], RunListener]]) -> None:
        self.world = world
        self.cluster_id = cluster_id
        self.broker = SimBroker(world, PARTITIONS)
        self.broker.replicated = self._replicated
        self.broker.let_go = self._let_go
        self.log_ends = LogEndsState(Deaths(world.seed))
        self.log = TrueLog()
        self.replicas: list[FoldingReplica] = []
        self.cache = MemoryCache()
        self.cache_up = True
        self.did: Counter[tuple[str, ...]] = Counter()
        self.active_faults: set[str] = set()
        self.shared: dict[str, Any] = {}
        self.recording = Recording()
        self.prefix: Prefix | None = None
        self.preloaded = 0
        self._items: dict[bytes, Item] = {}
        self._changes: dict[tuple[int, int], list[tuple[str, object]]] = {}
        self._folds: dict[tuple[int, bytes], tuple[ClusterState, tuple[Item, Folded]]] = {}
        self.has_independent_replicas = world.seed % INDEPENDENT_EVERY == 0
        self.checks = [check(self) for check in checks]
        self.on_entry = self._listeners("entry", "applied")
        self.on_folded = self._listeners("folded")
        self.on_asked = self._listeners("asked")
        self.on_answered = self._listeners("answered")
        self.on_withdrawn = self._listeners("withdrawn")
        self.on_results = self._listeners("results")
        self.on_published = self._listeners("published")
        self.on_cached = self._listeners("cached")
        self.on_stored = self._listeners("stored")
        self.on_began = self._listeners("began")
        self.on_adopted = self._listeners("adopted")
        self.on_acked = self._listeners("acked")
        self.on_received = self._listeners("received")
        self.on_mutation = self._listeners("mutation")
        self.on_claimed = self._listeners("claimed")
        self.on_routed = self._listeners("routed")
        self.on_closing = self._listeners("closing")
        self.on_rows = self._listeners("rows")
        self.on_letters = self._listeners("letters")
        self.on_read = self._listeners("read")
        self.on_serves = self._listeners("serves")
        self.on_admitted = self._listeners("admitted")
        self.on_came = self._listeners("came")
        self.on_replied = self._listeners("replied")
        self.on_wrote = self._listeners("wrote")
        self.on_found = self._listeners("found")
        self.on_found_rows = self._listeners("found_rows")
        self.on_begins = self._listeners("begins")
        self.on_snapshots = self._listeners("snapshots")
        self.on_gave = self._listeners("gave")
        self.on_peer_answer = self._listeners("peer_answer")
        self.on_let_go = self._listeners("let_go")
        self.moments = Moments(world, self.did, self.on_entry)

    def _listeners(self, *hooks: str) -> list[RunListener]:
        silent = [getattr(RunListener, hook) for hook in hooks]
        return [check for check in self.checks if [getattr(type(check), hook) for hook in hooks] != silent]

    def close(self) -> None:
        """Drop all references at the end of the run."""
        for replica in tuple(self.replicas):
            replica.close()
        self.broker.close()
        vars(self).clear()

    def broken(self, rule: str, detail: str) -> None:
        """End the run because an invariant is broken."""
        raise BrokenPromise(rule, detail)

    # ----------------------------------------------------------------------------------------- the log

    def judge(self, state: ClusterState, data: bytes) -> tuple[Item, Folded]:
        """Return a decoded record and its result on ``state``, computed once for all shared replicas."""
        key = (id(state), data)
        result = self._folds.get(key)
        if result is None:
            item = self._items.get(data)
            if item is None:
                item = self._items[data] = decode_entry(data)
            # The state is stored with it, so that its id is not reused.
            result = self._folds[key] = state, (item, fold(state, item))
        return result[1]

    def folding(self, state: ClusterState, data: bytes) -> Folded:
        """Return the result of ``data`` on ``state``, as ``judge`` computes it."""
        return self.judge(state, data)[1]

    def changes(self, before: ClusterState, after: ClusterState) -> list[tuple[str, object]]:
        """Return ``change_values`` of two consecutive states of the true log, computed once."""
        key = (id(before), id(after))
        if key not in self._changes:
            self._changes[key] = change_values(before, after)
        return self._changes[key]

    def preload(self, prefix: Prefix) -> None:
        """Begin with a log that was written, folded and published before the run."""
        partition = self.broker.partition(METADATA)
        partition.append([("", data) for data in prefix.records], self.broker.now())
        partition.raise_high(partition.end)
        self.log = TrueLog([*prefix.states], [None, *(item for item in prefix.items if isinstance(item, Entry))])
        self.log.read = partition.visible
        self.prefix = prefix
        self.preloaded = self.log.state.epoch
        changes = self.broker.partition(CHANGES)
        changes.append(prefix.changes, self.broker.now())
        changes.raise_high(changes.end)
        for check in self.checks:
            check.begin(self.log.state)

    def begin(self, reader: str, epoch_max: Epoch | None = None) -> Start:
        """Return the start of a reader: a snapshot, or the log before the run if there is none."""
        broker, deaths = self.broker, self.log_ends.deaths
        found = BEGINNING
        if broker.partition(SNAPSHOTS).high:
            start_finder = StartPointFinder(
                lambda: SnapshotTopic(TopicAtOnce(broker, SNAPSHOTS, deaths)), epoch_max, warns=False
            )
            found = start_finder.start(TopicAtOnce(broker, METADATA, deaths), IDENTITY, lambda _: ())
            for check in self.on_begins:
                check.begins(reader, found)
        if found.position <= self.preloaded:
            return Start(self.log.states[self.preloaded], self.preloaded)
        self.did["snapshots", "begun with"] += 1
        return found

    def _let_go(self, begin: int) -> None:
        for check in self.on_let_go:
            check.let_go(begin)

    def _replicated(self, partition: Partition) -> None:
        if partition.topic == METADATA:
            self._fold_true_log(partition)
        elif partition.topic == RESULTS and self.on_results:
            for check in self.on_results:
                check.results(partition)
        elif partition.topic == CHANGES and self.on_published:
            for check in self.on_published:
                check.published(partition)
        elif partition.topic == CDC:
            for check in self.on_rows:
                check.rows(partition)
        elif partition.topic == SNAPSHOTS:
            for check in self.on_snapshots:
                check.snapshots()
        elif partition.topic == DEAD:
            for check in self.on_letters:
                check.letters(partition)

    def _fold_true_log(self, partition: Partition) -> None:
        log = self.log
        for made in follow(partition.records[log.read : partition.visible], log.states[-1], self.judge):
            item, before, after = made.item, made.before, made.after
            if after is not before:
                log.states.append(after)
                log.entries.append(item if isinstance(item, Entry) else None)
            self._count(item, made.outcome)
            for check in self.on_entry:
                check.entry(before, after, item, made.outcome, made.offset)
                if after is not before and isinstance(item, Entry):
                    check.applied(before, after, item, made.offset)
        log.read = partition.visible

    def _count(self, item: Item, outcome: Outcome) -> None:
        kind = item.kind if isinstance(item, Entry) else "unreadable"
        self.did["entry", kind, outcome.kind.value] += 1
        for fault in self.active_faults:
            self.did["during", fault, kind] += 1
        if self.world.tracing:
            text = f"{kind} {outcome.kind.value} {outcome.code} {outcome.detail}".rstrip()
            self.world.tell("log", f"epoch {outcome.epoch}: {text}")

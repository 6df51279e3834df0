"""The duties of a node that stores data, in the order that keeps rows: adopt, drain, forget, fetch, report.

``Duties`` calls the store and the folder, and nothing else: the caller has the threads, the log and the topics
(``ringlog.client.participant.participant``, ``ringlog_testing.participants``). One turn is:

=====  ==============================================================================================================
step   reason
=====  ==============================================================================================================
stop   Fetches of closed work end first, because a late row would survive ``forget``.
clear  After a restart the node may have rows of ranges that it lost and got again in the meantime. They are stale.
note   The epoch is on disk before a write is admitted under it. So a restart knows which rows are not stale.
adopt  The store serves under the state.
drain  All writes admitted before are applied, so the rows to forget are complete, and other nodes may fetch.
forget The store deletes the rows of lost ranges. A tablet's ``cleanup`` is reported after that.
=====  ==============================================================================================================

A crash between two steps repeats them: the next start has no earlier state, so it examines all ranges.

Invariants: the store has adopted and drained each acknowledged epoch. Work is reported after its last row was yielded.
States that change an owner are adopted one by one. So only the first turn can lose and gain a range at once, and the
store does not serve before it.

Source: CEP-21; ``ringlog.node.registers.registers`` has the same rules for registers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from ringlog.client.node_reports import RowsSum
from ringlog.client.participant.store import Gain, Loss, Store
from ringlog.client.participant.stream_attempts import StreamAttempts, reportable_counts
from ringlog.kernel.model.settings import setting
from ringlog.kernel.model.state import ClusterState, Placement, RangeGroup
from ringlog.kernel.model.tablet_map import TabletMap
from ringlog.kernel.model.zones import ZonePartition
from ringlog.kernel.ownership.placements import placement_of_keyspace
from ringlog.kernel.ring.ranges import Range
from ringlog.kernel.values import TOKEN_MAX, Epoch, Micros, NodeId, StreamReport, Value, replace
from ringlog.protocol.nodes.ack_schedule import AckContent, AckSchedule
from ringlog.protocol.nodes.groups import REPORTS_MAX, Member, Step
from ringlog.protocol.nodes.ownership import Owned, OwnedTablets, lost_ranges, owned_by
from ringlog.protocol.nodes.stream_work import (
    changed_ranges,
    creation_epoch,
    merge_epoch,
    placement_of_space,
    spaces_under,
    tables_under,
    works_for_node,
)
from ringlog.wire.records import NodeAck

PLACED_BY: Final = ("placements", "keyspaces", "tablets", "tables")
"""The state sections that determine the owners of rows."""
WHOLE: Final[Range] = (TOKEN_MAX, TOKEN_MAX)


class AdoptedEpoch(Protocol):
    """The newest epoch that may have admitted a write, and its places, on disk."""

    @property
    def adopted(self) -> Epoch:
        """The epoch."""

    @property
    def places(self) -> frozenset[str]:
        """The places."""

    def note_adopted(self, epoch: Epoch, places: frozenset[str]) -> None:
        """Write both to disk."""


class Fetch:
    """One ``Store.fetch``, until it is complete or stopped."""

    def __init__(self, store: Store, gain: Gain) -> None:
        self.gain = gain
        self.total: RowsSum | None = None
        self.failure: Exception | None = None
        self.is_stopped = False
        self._store = store
        self._rows: Any = None

    def stop(self) -> None:
        """Fetch no further row. A wait of an async iterator ends, another one continues."""
        self.is_stopped = True
        getattr(self._rows, "cancel", lambda: None)()

    def run(self) -> None:
        """Fetch all rows. An error of the store is stored in ``failure``."""
        found, self.failure = RowsSum(), None
        try:
            rows = self._rows = iter(self._store.fetch(self.gain))
            try:
                while not self.is_stopped:
                    found.add(next(rows))
            except StopIteration:
                self.total = found
            finally:
                getattr(rows, "close", lambda: None)()  # a generator may hold a connection
        except Exception as error:
            self.failure = error


class AckDraft(Value):
    """An acknowledgement to publish, and its content for the schedule."""

    ack: NodeAck
    content: AckContent


class Duties:
    """The duties of one node from one start to the next. For one thread.

    Args:
        node: Id of the node.
        incarnation: Name of this start.
        end: Waits until a stopped fetch has returned.
    """

    def __init__(
        self, node: NodeId, incarnation: str, store: Store, noted: AdoptedEpoch, end: Callable[[Fetch], None]
    ) -> None:
        self.node, self.incarnation = node, incarnation
        self.state = ClusterState()
        self.tries = StreamAttempts()
        self.fetches: dict[str, tuple[Fetch, ...]] = {}
        """The fetches of each open work. Their reports follow from them."""
        self._store, self._noted, self._end = store, noted, end
        self._schedule = AckSchedule(node)
        self._member = Member(node, _ZoneReplicas(self))

    def turn(self, state: ClusterState) -> None:
        """Adopt a state, unless it is older than the present one."""
        if state.epoch <= self.state.epoch:
            return
        before = self.state if self.state.epoch else None
        self._stop_closed(state)
        if before is None or any(getattr(state, part) is not getattr(before, part) for part in PLACED_BY):
            places, known = places_of(state), self._noted.places
            stale, lost = self._losses(before, state, known)
            for loss in stale:
                self._store.forget(loss)
            # Dropped places stay until their rows are deleted: a crash in between must not hide the rows from the next
            # start, as the place may be created again.
            self._noted.note_adopted(state.epoch, places | known)
        else:
            places, known, lost = frozenset[str](), frozenset[str](), []
        self._store.adopt(before, state)
        self._store.drain(state.epoch)
        for loss in lost:
            self._store.forget(loss)
        if known - places:
            self._noted.note_adopted(state.epoch, places)
        self.state = state
        for name, work in works_for_node(state, self.node).items():
            for fetch in self.fetches.get(name, ()):  # the source may have another address now
                fetch.gain = replace(fetch.gain, source=state.nodes[fetch.gain.source.id])
            if name not in self.fetches:
                gains = (
                    Gain(_places_under(state, key), ranges, state.nodes[source], name, work.epoch)
                    for (source, key), ranges in work.ranges_to(self.node).items()
                )
                self.fetches[name] = tuple(Fetch(self._store, gain) for gain in gains)

    def _stop_closed(self, state: ClusterState) -> None:
        """End the fetches of work that is closed, or that has other sources now."""
        works = works_for_node(state, self.node)
        for name, fetches in list(self.fetches.items()):
            wanted = works[name].ranges_to(self.node) if name in works else {}
            begun = sorted((one.gain.source.id, one.gain.ranges) for one in fetches)
            if name in works and begun == sorted((source, ranges) for (source, _), ranges in wanted.items()):
                continue
            for fetch in fetches:
                fetch.stop()
            for fetch in fetches:
                self._end(fetch)
                self.tries.forget(fetch)
            del self.fetches[name]

    def _losses(
        self, before: ClusterState | None, state: ClusterState, known: frozenset[str]
    ) -> tuple[list[Loss], list[Loss]]:
        """Return the rows to forget before and after the state is adopted: stale ones, and those of other nodes.

        In the first turn the node may have any rows of the ``known`` places.
        """
        stale, lost = dict[tuple[Range, ...], list[str]](), dict[tuple[Range, ...], list[str]]()
        ranges = dict[tuple[int, int, Epoch], tuple[tuple[Range, ...], tuple[Range, ...]]]()
        since = self._noted.adopted if before is None else before.epoch
        for place in sorted(known):
            if creation_epoch(state, place) > since:  # created again under its name
                stale.setdefault((WHOLE,), []).append(place)
                continue
            now = _placement(state, place)
            was = None if before is None else _placement(before, place)
            if now is None or not now.ends:
                lost.setdefault((WHOLE,), []).append(place)
            elif now is not was:
                key = id(was), id(now), max(since, merge_epoch(state, place))
                if key not in ranges:  # many places have the same placement
                    ranges[key] = self._stale(now, key[-1]) if before is None else (), self._lost(was, now)
                for found, some in zip((stale, lost), ranges[key], strict=True):
                    found.setdefault(some, []).append(place)
        return _losses_of(stale), _losses_of(lost)

    def _stale(self, now: Placement | TabletMap, epoch: Epoch) -> tuple[Range, ...]:
        """Return the ranges that the node joined after ``epoch``."""
        joined = ((one, _member_since(group, self.node)) for one, group in changed_ranges(None, now))
        return _merged(one for one, since in joined if since is not None and since > epoch)

    def _lost(self, was: Placement | TabletMap | None, now: Placement | TabletMap) -> tuple[Range, ...]:
        """Return the ranges that the node had, and has no more. ``was``: None for all ranges."""
        return _merged(lost_ranges(None if was is None else self._owned(was), self._owned(now)))

    def _owned(self, found: Placement | TabletMap) -> Owned | OwnedTablets:
        return OwnedTablets(found, self.node) if isinstance(found, TabletMap) else owned_by(found, self.node)

    # ------------------------------------------------------------------------------------------------ reports

    def reports(self) -> tuple[StreamReport, ...]:
        """Return the reports of complete work, and those of zone partitions."""
        found = []
        for name in sorted(self.fetches):
            totals = [fetch.total for fetch in self.fetches[name]]
            if None not in totals:
                found.append(RowsSum.of(filter(None, totals)).report(self.node, name))
        return (*found, *self._member.reports(self.state, self.state.epoch))[:REPORTS_MAX]

    def draft(self, now: Micros, at: Micros) -> AckDraft | None:
        """Return the next acknowledgement if one is needed now, or None.

        Args:
            now: Microseconds of a monotonic clock.
            at: Microseconds since 1970.
        """
        state, reports, tries = self.state, self.reports(), self.tries.failed_tries()
        content = (
            tuple(report.operation for report in reports),
            reportable_counts(tries, setting(state, "stream_tries_max")),
        )
        if self.node not in state.nodes or not self._schedule.is_due(state, state.epoch, content, now):
            return None
        rows = sum(report.rows for report in reports)
        epoch, cluster = state.epoch, state.cluster_id
        ack = NodeAck(cluster, self.node, self.incarnation, epoch, epoch, reports, rows, at, tries, state.state_id)
        return AckDraft(ack, content)

    def sent(self, draft: AckDraft, now: Micros) -> None:
        """Record an acknowledgement that the broker confirmed."""
        self._schedule.sent(draft.ack.applied, draft.content, now)


class _ZoneReplicas:
    """Zone partitions of a store. Its rows are in tablets, which have their own reports; so a step needs no more."""

    def __init__(self, duties: Duties) -> None:
        self._duties = duties

    def has_caught_up(self, partition: ZonePartition) -> bool:  # noqa: ARG002
        return True

    def failure(self) -> int | None:
        return None

    def log_length(self, partition: ZonePartition) -> int:  # noqa: ARG002
        """Return the drained epoch: of two copies, the one that was alive longer has more writes."""
        return self._duties.state.epoch

    def retain_steps(self, steps: Iterable[Step]) -> None:
        pass


def places_of(state: ClusterState) -> frozenset[str]:
    """Return the places that have data: the keyspaces on the ring, and all tables."""
    ring = (name for name in state.keyspaces if placement_of_keyspace(state, name) is not None)
    return frozenset((*ring, *state.tables))


def _placement(state: ClusterState, place: str) -> Placement | TabletMap | None:
    if "." not in place or place not in state.tables:
        return placement_of_space(state, place)
    return placement_of_space(state, place) or placement_of_keyspace(state, state.tables[place].keyspace)


def _places_under(state: ClusterState, replication: str) -> tuple[str, ...]:
    keyspaces = () if replication in state.tablets else spaces_under(state, replication)
    return tuple(sorted((*keyspaces, *tables_under(state, replication))))


def _member_since(group: RangeGroup, node: NodeId) -> Epoch | None:
    """Return the epoch since which a node takes writes without a gap, or a later one; None: it takes none."""
    for replica in group.write:
        if replica.node == node:
            # The pending replica of a tablet has no epoch. Until it is read, its rows can be fetched again.
            is_read = any(one.node == node for one in group.read)
            return replica.since if replica.since or is_read else group.changed
    return None


def _merged(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Return the ranges with neighbours joined: a store may compare each row with each range."""
    found: list[Range] = []
    for start, end in ranges:
        if found and found[-1][1] == start:
            start, _ = found.pop()
        found.append((start, end))
    return tuple(found)


def _losses_of(places: dict[tuple[Range, ...], list[str]]) -> list[Loss]:
    return [Loss(tuple(some), ranges) for ranges, some in places.items() if ranges]

"""A scripted cluster around one row replica. The script sets epochs, streams and requests of the other nodes.

The other nodes are a simple model. It computes their rows from the writes and the placements, so each stream contains
exactly the rows of its source.
"""

from __future__ import annotations

import pytest

from ringlog.kernel.commands.topology.operations import CancelOperation
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.operations.stages import in_flight
from ringlog.kernel.ownership.placements import group_at, nodes_of
from ringlog.kernel.ring.murmur3 import token_of
from ringlog.kernel.values import StreamReport
from ringlog.node.rows.replica import NotReady, NotServed, RowFetch, RowReplica
from ringlog.node.rows.store import inside
from ringlog.wire.data import Rows, RowVersion
from ringlog.wire.records import Mutation, encode_mutation
from tests.kernel.entries import applied
from tests.node.streams import received, source_rows
from tests.node.world import APPENDED, TABLE, begin_join, cluster, name_of, step, write
from tests.oneview.script import Actor, line

THIRDS = ((-(2**62),), (0,), (2**62,))
JOINING = (2**61, -(2**61))
KEYS = 40
WHOLE_RING = ((0, 0),)


class Node(Actor):
    """A node under test. ``me`` is the production row replica, ``topic`` the only partition of mutations, ``state`` the
    state at the end of the log.
    """

    def __init__(self) -> None:
        self.state: ClusterState = cluster(*THIRDS)
        self.earlier: dict[str, ClusterState] = {}
        self.topic: list[Mutation] = []
        self.operation = ""
        self.fetches: list[RowFetch] = []
        self.former: list[RowFetch] = []
        self.me = RowReplica("")

    @line(r"I am n(\d)")
    def _i_am(self, number: str) -> None:
        self.me = RowReplica(name_of(int(number)))
        self.me.positions[0] = 0
        self._read_log()

    @line("I restart")
    def _restart(self) -> None:
        self.me = RowReplica(self.me.node)
        self.me.positions[0] = 0
        self.former += self.fetches
        self.fetches = []

    @line("I have read the topic again")
    def _caught_up(self) -> None:
        assert self.me.positions[0] == len(self.topic)
        self.me.caught_up = True

    # Actions of the other nodes

    @line(r"(\d+) writes are made")
    def _writes(self, count: str) -> None:
        for _ in range(int(count)):
            number = len(self.topic)
            self.topic.append(write(f"k{number % KEYS}", number, APPENDED + number))

    @line("n4 asks to join")
    def _join(self) -> None:
        self.state, self.operation = begin_join(self.state, 4, JOINING)

    @line(r"the join reaches (\w+)")
    def _reaches(self, stage: str) -> None:
        while (found := self.state.operations[self.operation]).stage != stage:
            self.earlier[found.stage] = self.state
            self.state = step(self.state, self.operation, (StreamReport(name_of(4), self.operation, 0, "00"),))

    @line("the join is cancelled")
    def _cancel(self) -> None:
        self.earlier[self.state.operations[self.operation].stage] = self.state
        self.state = applied(self.state, CancelOperation(self.operation, "no"))

    @line("I apply the log")
    def _read_log(self) -> None:
        self.fetches += self.me.adopt(self.state)

    @line(r"I apply the log as it was in (\w+)")
    def _read_log_late(self, stage: str) -> None:
        self.fetches += self.me.adopt(self.earlier[stage])

    # Rows of the other nodes

    def _versions(self, writes: list[Mutation]) -> list[RowVersion]:
        made = []
        for each in writes:
            key = each.partition_key[0] or b""
            made.append(
                RowVersion(TABLE, token_of(key), key, each.clustering_key, each.timestamp, encode_mutation(each))
            )
        return made

    def _stream_of(self, fetch: RowFetch, upto: int) -> tuple[RowVersion, ...]:
        return tuple(v for v in self._versions(self.topic[:upto]) if inside(v.token, fetch.ranges))

    def _page_of(self, fetch: RowFetch, upto: int) -> Rows:
        return Rows(self._stream_of(fetch, upto), ((TABLE, self.state.tables[TABLE].id),))

    def _receive(self, fetches: list[RowFetch], upto: int | None = None) -> list[bool]:
        return [
            received(self.me, fetch, self._page_of(fetch, dict(fetch.positions)[0] if upto is None else upto))
            for fetch in fetches
        ]

    @line("each source streams its rows below my position")
    def _streams(self) -> None:
        assert self.fetches
        assert all(self._receive(self.fetches))

    @line("each source streams all of its rows")
    def _streams_more(self) -> None:
        assert self.fetches
        assert all(self._receive(self.fetches, len(self.topic)))

    @line("only one source streams")
    def _one_streams(self) -> None:
        assert len(self.fetches) > 1
        assert self._receive(self.fetches[:1]) == [True]

    @line("the streams arrive again and are rejected")
    def _again(self) -> None:
        assert not any(self._receive(self.fetches))

    @line("streams of an earlier request arrive and are rejected")
    def _asked_before(self) -> None:
        assert self.former
        assert not any(self._receive(self.former))

    @line("I request the streams again")
    def _request_again(self) -> None:
        self.former += self.fetches
        self.fetches = self.me.adopt(self.state)
        assert self.fetches

    # Actions of this node

    @line("I read all writes")
    def _read_all(self) -> None:
        self._read_upto(str(len(self.topic)))

    @line(r"I read writes up to (\d+)")
    def _read_upto(self, end: str) -> None:
        begin = self.me.positions[0]
        for offset, mutation in enumerate(self.topic[begin : int(end)], start=begin):
            self.me.admit(mutation, APPENDED, encode_mutation(mutation))
            self.me.advance_position(0, offset + 1)

    @line("I need streams up to my position")
    def _need(self) -> None:
        assert self.fetches
        assert {fetch.positions for fetch in self.fetches} == {((0, self.me.positions[0]),)}

    @line("I need no streams")
    def _need_none(self) -> None:
        assert self.fetches == []

    @line("I report nothing")
    def _no_report(self) -> None:
        assert self.me.reports == {}

    @line(r"I report (\d+|all) rows")
    def _report(self, rows: str) -> None:
        wanted = sum(len(self._stream_of(f, dict(f.positions)[0])) for f in self.fetches)
        assert list(self.me.reports) == [self.operation]
        assert self.me.reports[self.operation].rows == (wanted if rows == "all" else int(rows))

    def _mine(self, kind: str) -> list[RowVersion]:
        """Return the versions that belong to this node in the placements of its adopted epoch."""
        (placement,) = self.me.state.placements.values()
        found = []
        for version in self._versions(self.topic):
            group = group_at(placement, version.token)
            if self.me.node in nodes_of(group.read if kind == "read" else group.write):
                found.append(version)
        return found

    @line("I have each write of my ranges once")
    def _complete(self) -> None:
        held = [version.value for version in self.me.store.versions(WHOLE_RING)]
        assert sorted(held) == sorted(version.value for version in self._mine("write"))

    @line("I have no rows")
    def _empty(self) -> None:
        assert len(self.me.store) == 0

    @line("I have rows")
    def _some(self) -> None:
        assert len(self.me.store) > 0

    @line("I answer complete reads of exactly the keys that I am a read replica of")
    def _answers(self) -> None:
        mine = self._mine("read")
        keys = {version.partition_key for version in mine}
        for key in {each.partition_key[0] or b"" for each in self.topic}:
            try:
                epoch, found = self.me.read(TABLE, key)
            except NotServed:
                assert key not in keys
                continue
            assert key in keys
            assert epoch == self.me.state.epoch
            assert {v.value for v in found} == {v.value for v in mine if v.partition_key == key}

    @line("I answer no read yet")
    def _no_answers(self) -> None:
        for number in range(KEYS):
            with pytest.raises(NotReady):
                self.me.read(TABLE, f"k{number}".encode())

    # Requests of other nodes

    def _plan(self, position: int) -> RowFetch:
        (operation,) = in_flight(self.state)
        mine = [s for s in operation.plan.sources if s.source == self.me.node]
        assert mine, "the plan has no stream from this node"
        ranges = tuple(sorted((s.start, s.end) for s in mine))
        return RowFetch(
            operation.id, operation.stage_epoch, self.me.node, mine[0].replication, ranges, ((0, position),)
        )

    def _asked(self, fetch: RowFetch) -> tuple[RowVersion, ...]:
        return source_rows(self.me, fetch).rows

    @line(r"n4 asks me for its rows below (\d+) and has to wait")
    def _not_ready(self, position: str) -> None:
        with pytest.raises(NotReady):
            self._asked(self._plan(int(position)))

    @line(r"n4 asks me for its rows below (\d+) and gets all of them")
    def _served(self, position: str) -> None:
        fetch = self._plan(int(position))
        found = self._asked(fetch)
        wanted = self._stream_of(fetch, int(position))
        assert wanted
        assert {v.value for v in found} >= {v.value for v in wanted}

    @line("n4 asks me for rows of an ended operation and has to wait")
    def _over(self) -> None:
        done = self.earlier["write_both_read_old"]
        (operation,) = in_flight(done)
        mine = next(s for s in operation.plan.sources if s.source == self.me.node)
        fetch = RowFetch(operation.id, 0, self.me.node, mine.replication, ((mine.start, mine.end),), ((0, 0),))
        with pytest.raises(NotReady):
            self._asked(fetch)

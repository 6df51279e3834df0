"""A feed gives all that was folded after an epoch, each record once, with little in hand, at its reader's pace."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import islice, pairwise

import pytest

from ringlog.kernel.commands.cluster.cluster import InitializeCluster, Noop
from ringlog.kernel.fold import fold
from ringlog.kernel.model.outcome import OutcomeKind
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState, PreparedGeneration
from ringlog.log.author import Author
from ringlog.log.errors import LogForked
from ringlog.log.folding import FoldedRecord, Start, follow
from ringlog.log.port import LogRecord, LogTail
from ringlog.log.replicas.feed import HEAVY, Feed, weight_of
from ringlog.log.replicas.replica import LogReplica
from tests.log.faulty import FaultyLog

Write = Callable[[int], None]


@pytest.fixture
def write(log: FaultyLog, author: Author) -> Write:
    """Append so many entries, each after the one before; every third is sent twice."""
    state = EMPTY_STATE

    def append(count: int) -> None:
        nonlocal state
        for number in range(count):
            encoded = author.entry(state, Noop() if state.epoch else InitializeCluster("tests", ()))
            state = fold(state, encoded.entry).state
            log.append([encoded.data] * (2 if number % 3 == 2 else 1))

    return append


def all_of(log: FaultyLog) -> list[FoldedRecord]:
    """The whole log, folded here."""
    with closing(log.tail(0)) as tail:
        return list(follow(tail.poll(1.0, 10_000)))


def read_up(replica: LogReplica) -> ClusterState:
    """All that is in the log is folded, and followers have heard of it."""
    state = replica.read_barrier()
    assert replica.counts
    return state


def shown(records: list[FoldedRecord]) -> list[tuple[int, int, str]]:
    return [(made.offset, made.after.epoch, made.after.state_id) for made in records]


@pytest.mark.parametrize("epoch", [0, 1, 7, 40])
@pytest.mark.parametrize("kept_max", [1, 5, 1_000])
def test_records_after_an_epoch_come_once_in_order(log: FaultyLog, write: Write, epoch: int, kept_max: int) -> None:
    write(40)
    replica = LogReplica(log)
    feed = Feed(replica, epoch, kept_max)
    with replica:
        read_up(replica)
        start = feed.state
        assert start is not None
        assert start.epoch == epoch
        whole = all_of(log)
        first = next((number for number, made in enumerate(whole) if made.after.epoch == epoch), -1) + 1
        assert shown(list(feed.take())) == shown(whole[first:])
        assert feed.state == replica.state
        assert list(feed.take()) == []


@pytest.mark.parametrize("seed", range(4))
def test_a_reader_of_any_pace_misses_nothing(log: FaultyLog, write: Write, seed: int) -> None:
    draw = random.Random(seed)
    replica = LogReplica(log)
    feed = Feed(replica, 0, 4)
    taken: list[FoldedRecord] = []
    with replica:
        for _ in range(20):
            write(draw.choice([1, 3, 20]))
            read_up(replica)
            taken += islice(feed.take(), draw.choice([0, 1, 5, 50]))
        taken += feed.take()
    assert shown(taken) == shown(all_of(log))
    assert all(one.after.epoch == other.before.epoch for one, other in pairwise(taken))


def test_who_keeps_up_folds_nothing_twice(log: FaultyLog, write: Write) -> None:
    replica = LogReplica(log)
    feed = Feed(replica, 0)
    with replica:
        for _ in range(10):
            write(1)
            state = read_up(replica)
            assert [made.after for made in feed.take()] == [state]
            assert feed.state is state


def test_of_a_long_backlog_little_is_kept(log: FaultyLog, write: Write) -> None:
    write(300)
    replica = LogReplica(log)
    Feed(replica, 0, 10)
    with replica:
        read_up(replica)
        gc.collect()
        assert sum(type(one) is FoldedRecord for one in gc.get_objects()) <= 12


def test_no_gap_makes_a_transaction_fold_twice(log: FaultyLog, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write(1)
    replica = LogReplica(log)
    feed = Feed(replica, 0)
    with replica:
        read_up(replica)
        write(1_000)
        read_up(replica)
        wanted = shown(all_of(log))
        monkeypatch.setattr(log, "tail", None)
        assert shown(list(feed.take())) == wanted


def test_what_grows_with_the_ring_weighs_more(log: FaultyLog, author: Author) -> None:
    replica = LogReplica(log)
    feed = Feed(replica, 0, 3 * HEAVY)
    state = EMPTY_STATE
    with replica:
        for command in (InitializeCluster("tests", ()), *[Noop()] * 5):
            encoded = author.entry(state, command)
            state = fold(state, encoded.entry).state
            log.append([encoded.data])
        read_up(replica)
        assert feed._weight == len(feed._kept) == 6
        light = feed._kept[-1][1]
        refused = replace(light, outcome=replace(light.outcome, kind=OutcomeKind.REFUSED), before=state, after=state)
        heavy = replace(refused, after=replace(state, prepared=PreparedGeneration("g", None, b"", 0, ())))
        assert [weight_of(one) for one in (light, refused, heavy)] == [1, HEAVY, HEAVY]
        for _ in range(4):
            feed._hear(heavy.before, heavy.after, heavy.item, heavy.outcome, heavy.offset)
        assert feed._weight == 3 * HEAVY
        assert len(feed._kept) == 3


def test_the_feed_of_an_epoch_to_come_has_no_state_yet(log: FaultyLog, write: Write) -> None:
    write(3)
    replica = LogReplica(log)
    feed = Feed(replica, 9)
    with replica:
        read_up(replica)
        assert feed.state is None
        assert list(feed.take()) == []


class SlowTail:
    """Needs three polls until its first record is there, as a new connection to a broker far away does."""

    def __init__(self, inner: LogTail) -> None:
        self._inner = inner
        self._polls = 0

    def poll(self, timeout_s: float, records_max: int = 500) -> Sequence[LogRecord]:
        self._polls += 1
        return [] if self._polls <= 3 else self._inner.poll(timeout_s, records_max)

    def close(self) -> None:
        self._inner.close()


def test_a_slow_new_connection_delays_no_laggard(log: FaultyLog, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write(300)
    replica = LogReplica(log)
    feed = Feed(replica, 0, 10)
    with replica:
        read_up(replica)
        with monkeypatch.context() as slow:
            fast = log.tail
            slow.setattr(log, "tail", lambda position: SlowTail(fast(position)))
            taken: list[FoldedRecord] = []
            for _ in range(10):
                taken += feed.take()
        assert shown(taken) == shown(all_of(log))


def test_two_histories_are_not_joined(log: FaultyLog, write: Write) -> None:
    write(5)
    replica = LogReplica(log)
    feed = Feed(replica, 0)
    with replica:
        read_up(replica)
        other = replace(EMPTY_STATE, state_id="another")
        feed._at = Start(other, 0)
        with pytest.raises(LogForked, match="does not follow on state another"):
            list(feed.take())

"""What a replica counts of the log: the bytes of the entries since the newest mark of a snapshot."""

from __future__ import annotations

import random

from ringlog.kernel.commands.cluster import Noop
from ringlog.kernel.commands.snapshots import TakeSnapshot, last_snapshot
from ringlog.log.folding import Start, follow
from ringlog.log.recent import RecentEntries
from ringlog.log.replica import LogReplica
from tests.log.test_snapshots import Cluster


def counted(cluster: Cluster) -> int:
    """By a replica that reads all that it has to."""
    with LogReplica(cluster.log, beginning=cluster.beginning()) as replica:
        replica.read_barrier()
        return replica.recent.since_mark


def by_hand(cluster: Cluster) -> int:
    """The bytes of the records that made an epoch behind the last mark."""
    records, mark = cluster.log.read(0, 0, 100_000)[0], last_snapshot(cluster.state)
    made = zip(records, follow(records), strict=True)
    return sum(len(one.data) for one, fold in made if fold.after is not fold.before and fold.after.epoch > mark)


def test_from_the_beginning_or_from_a_snapshot_it_is_the_same() -> None:
    cluster = Cluster()
    cluster.live(random.Random(3), 20)
    for _ in range(2):
        cluster.apply(*[Noop()] * 6)
        assert counted(cluster) == by_hand(cluster) > 0
        cluster.store("publisher")
        assert counted(cluster) == by_hand(cluster)
        cluster.apply(Noop(), Noop())
        assert counted(cluster) == by_hand(cluster) > 0
    cluster.apply(TakeSnapshot())
    assert counted(cluster) == 0, "it is a mark, stored or not"
    cluster.apply(Noop())
    assert counted(cluster) == by_hand(cluster) > 0


def test_where_a_reader_begins_again_with_a_snapshot_it_counts_from_there() -> None:
    recent = RecentEntries()
    for epoch in (1, 2, 3):
        recent.add(epoch, b"123")
    assert recent.since_mark == 9
    recent.add(10, b"12")
    assert recent.since_mark == 2
    recent.add(11, b"12", Start())
    assert recent.since_mark == 0


def test_the_state_behind_the_newest_mark_is_kept_until_it_is_taken() -> None:
    first, second = Start(position=1), Start(position=2)
    recent = RecentEntries(keeps_mark=True)
    recent.add(1, b"1", first)
    recent.add(2, b"2", second)
    recent.add(3, b"3")
    assert recent.take_mark() is second
    recent.add(4, b"4", Start(position=4))
    assert recent.take_mark() is None, "who took it hears of the next one otherwise"


def test_a_mark_of_before_a_later_beginning_is_nobodys_and_others_keep_none() -> None:
    recent, other = RecentEntries(keeps_mark=True), RecentEntries()
    for one in (recent, other):
        one.add(1, b"1", Start())
    assert other.take_mark() is None
    recent.add(10, b"10")
    assert recent.take_mark() is None

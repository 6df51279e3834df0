"""Row stores in memory and on disk: one suite for both, each against a plain set of versions."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlog.kernel.ring.ranges import in_range
from ringlog.kernel.values import replace
from ringlog.node.rows.disk_rows import DiskRows
from ringlog.node.rows.memory_rows import MemoryRows
from ringlog.node.rows.store import RowsMark, RowStore, checksum, order, packed_clustering, unpacked_clustering
from ringlog.wire.data import RowVersion

NODE = "00000000-0000-4000-8000-000000000001"
RING = ((0, 0),)

keys = st.lists(st.none() | st.binary(max_size=2), max_size=2).map(tuple)
versions = st.builds(
    RowVersion,
    table=st.sampled_from(["a.t", "a.u"]),
    token=st.just(0),
    partition_key=st.sampled_from([b"", b"k", b"kk", b"l"]),
    clustering_key=keys,
    timestamp=st.integers(-3, 3),
    value=st.binary(max_size=2),
)
tokens = st.integers(-12, 12)


class Reopening(Protocol):
    """A store, and the content of its disk after a crash."""

    store: RowStore

    def crash(self) -> None: ...


class InMemory:
    def __init__(self, _: Path) -> None:
        self.store = MemoryRows()

    def crash(self) -> None:
        self.store.crash(0)


class OnDisk:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "rows.sqlite"
        self.store = DiskRows(self.path, NODE)

    def crash(self) -> None:
        self.store.close()
        self.store = DiskRows(self.path, NODE)


IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""A folder where a sync is free."""
KINDS: dict[str, Callable[[Path], Reopening]] = {"memory": InMemory, "disk": OnDisk}
both = pytest.mark.parametrize("kind", sorted(KINDS))


@contextmanager
def opened(kind: str) -> Iterator[Reopening]:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        made = KINDS[kind](Path(folder))
        try:
            yield made
        finally:
            made.store.close()


def placed(version: RowVersion) -> RowVersion:
    """Return the row with the token of its partition key."""
    return replace(version, token=(len(version.partition_key) - 1) * 10)


@both
@settings(max_examples=25, deadline=None)
@given(found=st.lists(versions.map(placed)), random=st.randoms(use_true_random=False))
def test_order_and_repetition_leave_no_trace(kind: str, found: list[RowVersion], random: object) -> None:
    with opened(kind) as one, opened(kind) as other:
        for version in found:
            one.store.add(version)
        mixed = found * 2
        random.shuffle(mixed)  # type: ignore[attr-defined]
        for version in mixed:
            other.store.add(version)
        assert len(one.store) == len(other.store) == len(set(found))
        assert one.store.versions(RING) == other.store.versions(RING) == sorted(set(found), key=order)
        assert checksum(one.store.versions(RING)) == checksum(other.store.versions(RING))


@both
@settings(max_examples=25, deadline=None)
@given(found=st.lists(versions.map(placed)), start=tokens, end=tokens, data=st.data())
def test_ranges_are_read_and_dropped(
    kind: str, found: list[RowVersion], start: int, end: int, data: st.DataObject
) -> None:
    with opened(kind) as made:
        store = made.store
        for version in found:
            store.add(version)
        wanted = {v for v in found if v.table == "a.t" and in_range(v.token, start, end)}
        assert store.versions([(start, end)], ["a.t", "no.such"]) == sorted(wanted, key=order)
        after = data.draw(versions.map(placed))
        rest = sorted((one for one in set(found) if order(one) > order(after)), key=order)
        assert list(store.listed(RING, None, after)) == rest
        some = data.draw(versions.map(placed))
        same = (some.table, some.partition_key)
        partition = sorted({v for v in found if (v.table, v.partition_key) == same}, key=order)
        where = some.table, some.token, some.partition_key
        assert store.partition(*where) == partition
        size = sum(len(one.value) for one in partition)
        assert store.partition(*where, size) == partition
        assert store.partition(*where, size - 1) is None or not partition
        for in_rows in (False, True):
            below, paged = None, []
            while page := store.page(*where, in_rows, below, 2, 3):
                assert len(page) <= 2
                paged += page
                below = page[-1]
            assert paged == [one for one in reversed(partition) if (one.clustering_key != ()) == in_rows]
        weights: dict[int, int] = {}
        for version in {v for v in found if v.table == "a.t" and v.token > start}:
            weights[version.token] = weights.get(version.token, 0) + len(version.value)
        assert list(store.sizes("a.t", start)) == sorted(weights.items())
        left = set(found) - wanted
        assert store.drop("a.t", [(start, end)]) == len(wanted)
        assert store.drop("no.such", RING) == 0
        assert set(store.versions(RING)) == left
        assert len(store) == len(left)
        assert store.tables() == sorted({v.table for v in left})


@both
@settings(max_examples=25, deadline=None)
@given(found=st.lists(versions.map(placed)), data=st.data())
def test_versions_are_removed_with_the_commit(kind: str, found: list[RowVersion], data: st.DataObject) -> None:
    with opened(kind) as made:
        for version in found:
            made.store.add(version)
        made.store.commit(mark(1))
        gone = data.draw(st.sets(st.sampled_from(found))) if found else set()
        made.store.remove(sorted(gone, key=order))
        made.store.remove([*sorted(gone, key=order), RowVersion("no.such", 0, b"k", (), 1, b"x")])
        left = sorted(set(found) - gone, key=order)
        assert made.store.versions(RING) == left
        assert len(made.store) == len(left)
        if data.draw(st.booleans()):
            made.store.commit(mark(2))
        else:
            left = sorted(set(found), key=order)
        made.crash()
        assert made.store.versions(RING) == left
        assert len(made.store) == len(left)


def mark(epoch: int, **positions: int) -> RowsMark:
    offsets = {int(name[1:]): offset for name, offset in positions.items()}
    return RowsMark("c", epoch, f"s{epoch}", "topic", offsets)


ONE = RowVersion("a.t", 5, b"k", (b"c", None), 1, b"one")
TWO = RowVersion("a.u", -5, b"l", (), 2, b"two" * 5_000)


@both
def test_rows_and_mark_are_committed_together(kind: str) -> None:
    with opened(kind) as made:
        made.store.add(ONE)
        made.crash()
        assert (made.store.mark, len(made.store)) == (RowsMark(), 0)
        made.store.add(ONE)
        made.store.commit(mark(3, p0=7))
        made.store.add(TWO)
        made.store.drop("a.t", RING)
        assert made.store.versions(RING) == [TWO], "a change is visible at once"
        made.crash()
        assert (made.store.mark, made.store.versions(RING)) == (mark(3, p0=7), [ONE])
        assert made.store.tables() == ["a.t"]
        made.store.drop("a.t", RING)
        made.store.add(TWO)
        made.store.commit(mark(4, p0=7, p1=2), sync=True)
        made.crash()
        assert (made.store.mark, made.store.versions(RING)) == (mark(4, p0=7, p1=2), [TWO])
        assert (made.store.tables(), len(made.store)) == (["a.u"], 1)


@both
def test_a_mark_may_change_alone(kind: str) -> None:
    with opened(kind) as made:
        made.store.commit(mark(1, p0=1))
        made.store.commit(mark(2, p0=5), sync=True)
        made.crash()
        assert made.store.mark == mark(2, p0=5)


steps = st.one_of(
    st.tuples(st.just("add"), versions.map(placed)),
    st.tuples(st.just("drop"), st.tuples(st.sampled_from(["a.t", "a.u"]), tokens, tokens)),
    st.tuples(st.just("identify"), st.tuples(st.sampled_from(["a.t", "a.u"]), st.sampled_from("12"))),
    st.tuples(st.just("commit"), st.booleans()),
    st.tuples(st.just("crash"), st.none()),
)


@both
@settings(max_examples=25, deadline=None)
@given(done=st.lists(steps, max_size=40))
def test_random_steps_match_a_plain_model(kind: str, done: list[tuple[str, object]]) -> None:
    now: set[RowVersion] = set()
    ids: dict[str, str] = {}
    kept, kept_ids, at = frozenset(now), dict(ids), RowsMark()
    with opened(kind) as made:
        for number, (what, argument) in enumerate(done):
            store = made.store
            if what == "add":
                assert isinstance(argument, RowVersion)
                store.add(argument)
                now.add(argument)
            elif what == "drop":
                assert isinstance(argument, tuple)
                table, start, end = argument
                gone = {one for one in now if one.table == table and in_range(one.token, start, end)}
                assert store.drop(table, [(start, end)]) == len(gone)
                now -= gone
            elif what == "identify":
                assert isinstance(argument, tuple)
                ids[argument[0]] = argument[1]
                store.identify(*argument)
            elif what == "commit":
                kept, kept_ids, at = frozenset(now), dict(ids), mark(number, p0=number)
                store.commit(at, sync=bool(argument))
            else:
                made.crash()
                now, ids = set(kept), dict(kept_ids)
                assert made.store.mark == at
            assert made.store.versions(RING) == sorted(now, key=order)
            assert len(made.store) == len(now)
            assert {table: one for table, one in made.store.ids.items() if one} == ids


@settings(max_examples=25, deadline=None)
@given(version=versions.map(placed), data=st.data())
def test_the_checksum_sees_every_field(version: RowVersion, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(list(RowVersion.__struct_fields__)))
    other = data.draw(versions.map(placed))
    changed = replace(version, **{name: getattr(other, name)})
    assert (checksum([changed]) == checksum([version])) == (changed == version)
    assert unpacked_clustering(packed_clustering(version.clustering_key)) == version.clustering_key
    assert (order(changed) == order(version)) == (changed == version)

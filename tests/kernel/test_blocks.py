"""A tuple stored in blocks equals the plain tuple after each change, and shares unchanged blocks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlog.kernel.columns import blocks
from ringlog.kernel.columns.blocks import Blocks, in_blocks, items_at, taken_over, unshared_items, with_items, with_more
from ringlog.kernel.encoding.digester import Digester
from ringlog.kernel.encoding.encoder import digest, encode
from ringlog.kernel.values import replace
from tests.kernel.ownership.rings import a_cluster

COUNT = 4_000


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK", 3)
    monkeypatch.setattr(blocks, "BLOCK_MAX", 5)
    monkeypatch.setattr(blocks, "BLOCKS_FROM", 2)


def held(items: Sequence[int]) -> Blocks[int]:
    found: object = in_blocks(items)
    assert isinstance(found, Blocks)
    return found


steps = st.lists(
    st.tuples(st.booleans(), st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 4)), max_size=6)), max_size=6
)


@settings(deadline=None)
@given(st.integers(2, 40), steps)
def test_blocks_equal_the_tuple_after_each_change(
    count: int, changes: list[tuple[bool, list[tuple[int, int]]]]
) -> None:
    plain, found = tuple(range(count)), held(range(count))
    fresh = iter(range(100, 10_000))
    for grows, given_places in changes:
        if not plain:
            break
        sizes = {place % len(plain): size for place, size in given_places}
        places = sorted(sizes)
        assert items_at(found, places) == [plain[at] for at in places]
        if grows:
            instead = [[next(fresh) for _ in range(sizes[at])] for at in places]
            found = held(with_more(found, places, instead))
            parts = dict(zip(places, instead, strict=True))
            plain = tuple(item for at, old in enumerate(plain) for item in parts.get(at, [old]))
        else:
            others = [next(fresh) for _ in places]
            found = held(with_items(found, places, others))
            parts_ = dict(zip(places, others, strict=True))
            plain = tuple(parts_.get(at, old) for at, old in enumerate(plain))
        check(found, plain)
        assert all(0 < len(block) <= 5 for block in found.blocks)


def check(found: Blocks[int], plain: tuple[int, ...]) -> None:
    assert found == plain == found
    assert (len(found), tuple(found), hash(found), repr(found)) == (len(plain), plain, hash(plain), repr(plain))
    assert [found[at] for at in range(-len(plain), len(plain))] == [*plain, *plain]
    assert [found.at_place(at) for at in range(len(plain))] == [*plain]
    assert found[1:-1] == plain[1:-1]
    assert encode(found) == encode(plain)
    assert found != (*plain, 0)
    for at in (len(plain), -len(plain) - 1):
        with pytest.raises(IndexError):
            found[at]


def test_few_items_are_a_plain_tuple() -> None:
    assert type(in_blocks([7])) is tuple
    assert with_items((7,), [0], [8]) == (8,)
    assert with_more((7,), [0], [(8, 9)]) == (8, 9)


def test_blocks_cut_elsewhere_are_equal() -> None:
    one, other = Blocks([(1, 2), (3,)]), Blocks([(1,), (2, 3)])
    assert one == other
    assert hash(one) == hash(other)
    assert one != Blocks([(1, 2), (4,)])


def test_unchanged_blocks_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    before = held(range(COUNT))
    for after in (held(with_items(before, [70], [-1])), held(with_more(before, [70], [(-1, -2)]))):
        pairs = list(zip(before.blocks, after.blocks, strict=True))
        assert [at for at, (old, new) in enumerate(pairs) if old is not new] == [70 // blocks.BLOCK]
    grown = before
    for _ in range(3 * blocks.BLOCK):
        grown = held(with_more(grown, [70], [(0, 1)]))
    assert max(map(len, grown.blocks)) <= blocks.BLOCK_MAX


def test_equal_block_starts_are_one_object() -> None:
    one, other, odd = held(range(40)), held(range(100, 140)), held([*range(39), 0])
    assert one._starts is other._starts is odd._starts
    places, instead = [3, 17, 30], [(-1, -2, -3), (), (-4,)]
    grown = [held(with_more(found, list(places), instead)) for found in (one, other)]
    assert grown[0]._starts is grown[1]._starts
    for places, sizes in (([3, 17, 30], (1, 2, 0)), ([4, 17, 30], (3, 0, 1)), ([3, 17, 30], (3, 0, 1))):
        check(held(with_more(odd, places, [[7] * size for size in sizes])), _with_sevens(tuple(odd), places, sizes))
    assert held(with_items(one, [5], [-1]))._starts is one._starts


def _with_sevens(items: tuple[int, ...], places: list[int], sizes: tuple[int, ...]) -> tuple[int, ...]:
    instead = dict(zip(places, sizes, strict=True))
    return tuple(new for at, item in enumerate(items) for new in ([7] * instead[at] if at in instead else [item]))


def test_a_state_with_blocks_keeps_its_digest() -> None:
    state = a_cluster({"A": [100, 400], "B": [200], "C": [300]})
    digester = Digester()
    expected = digest(state)
    assert digester.digest(state) == expected
    for key, placement in state.placements.items():
        packed = type(placement)(key, in_blocks(placement.ranges), placement.ends)
        assert isinstance(packed.ranges, Blocks)
        state = replace(state, placements=state.placements.set(key, packed))
    assert digest(state) == expected
    assert digester.digest(state) == expected
    assert Digester().digest(state) == expected


@settings(deadline=None)
@given(st.integers(2, 40), st.data())
def test_shared_and_different_blocks_are_separated(count: int, data: st.DataObject) -> None:
    before = held(list(range(count)))
    places = sorted(data.draw(st.sets(st.integers(0, count - 1), max_size=5)))
    after = held(with_items(before, places, [-1] * len(places)))
    gone, came = unshared_items(before, after)
    assert set(before) - set(gone) == set(after) - set(came)
    assert {before[at] for at in places} <= set(gone)
    assert len(gone) == len(came) <= 5 * len(places)
    whole: list[int] = []
    for at, block in taken_over(before, after):
        assert at is None or tuple(before[at : at + len(block)]) == tuple(block)
        whole += block
    assert whole == list(after)
    assert unshared_items(tuple(before), after) == (tuple(before), after)

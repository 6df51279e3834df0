"""Token maps stay in order after each change, and the cache of the last few maps."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from immutables import Map

from ringlog.kernel.columns.lazy_tuple import IdentityCache
from ringlog.kernel.ownership import token_maps
from ringlog.kernel.ownership.token_maps import CACHED_MAX, array_of, changed_map, in_order_of


@pytest.fixture(autouse=True)
def _in_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_maps, "_ARRAY_FROM", 2)


OWNERS = st.dictionaries(st.integers(-9, 9), st.sampled_from("abc"))
Step = tuple[dict[int, str], set[int], bool]


def plainly(owners: Map[int, str]) -> tuple[tuple[int, ...], dict[int, str], dict[str, int]]:
    return tuple(sorted(owners)), dict(owners), dict(Counter(owners.values()))


@given(OWNERS, st.lists(st.tuples(OWNERS, st.sets(st.integers(-9, 9)), st.booleans()), max_size=CACHED_MAX + 2))
def test_a_changed_map_equals_a_sorted_map(begin: dict[int, str], steps: list[Step]) -> None:
    owners = Map(begin)
    assert in_order_of(owners) == plainly(owners)
    seen = [owners]
    for come, gone, is_asked in steps:
        leaving = [token for token in gone if token in owners]
        expected = {token: owner for token, owner in owners.items() if token not in leaving} | come
        owners = changed_map(owners, leaving, come)
        seen.append(owners)
        assert owners == Map(expected)
        if is_asked:
            tokens = in_order_of(owners)[0]
            assert in_order_of(owners) == plainly(owners)
            assert array_of(tokens).tolist() == [*tokens]
            assert array_of(tokens, {-20, 20}).tolist() == [-20, *tokens, 20]
    for owners in seen:
        assert in_order_of(owners) == plainly(owners) == in_order_of(dict(owners))


def test_equal_objects_are_not_one_object() -> None:
    known = IdentityCache[tuple[int, ...], str](2)
    keys = [(one, one) for one in (1, 1, 2)]
    assert known.put(keys[0], "first") == "first"
    assert (known.get(keys[0]), known.get(keys[1])) == ("first", None)
    known.put(keys[1], "second")
    known.put(keys[2], "third")
    assert [known.get(key) for key in keys] == [None, "second", "third"]

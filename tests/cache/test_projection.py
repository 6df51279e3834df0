"""The projection is a function of the state, and differences contain exactly the changes."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlog.cache import redis_cache
from ringlog.cache.memory import MemoryCache
from ringlog.cache.port import CacheStore, CacheUnavailable
from ringlog.cache.projection import PARTS, delta, full_projection, join_parts, project, to_json
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.operations.moving import as_served, served

from .conformance import CacheConformance
from .states import history


def test_every_state_has_every_part() -> None:
    for state in history():
        assert tuple(sorted(project(state))) == PARTS


def test_a_difference_names_only_the_changes() -> None:
    for before, after in zip(history(), history()[1:], strict=False):
        old, new = project(before), project(after)
        difference = delta(before, after)
        for part, key, value in difference.put:
            assert old[part].get(key) != value == new[part][key]
        for part, key in difference.remove:
            assert key in old[part]
            assert key not in new[part]


def test_values_are_canonical_json_of_the_state() -> None:
    state = next(state for state in history() if len(state.tables))
    shown = project(state)
    table = json.loads(shown["tables"]["ks.t"])
    assert table["cdc"]["enabled"] is True
    generation = state.generations[-1]
    found = json.loads(shown["streams"][f"{generation.id}/{generation.ranges[0].end}"])
    assert [bytes.fromhex(stream) for stream in found["streams"]] == list(generation.ranges[0].streams)
    operation = json.loads(next(iter(shown["operations"].values())))
    assert "plan" not in operation
    assert operation["stage"] == "finished"


def test_a_full_projection_is_in_one_order() -> None:
    rows = [row[:2] for row in full_projection(history()[-1]).put]
    assert rows == sorted(rows)


def decoded(state: ClusterState) -> dict[str, dict[str, Any]]:
    return {part: {key: json.loads(text) for key, text in table.items()} for part, table in project(state).items()}


def test_the_projection_has_every_range_in_order() -> None:
    for state in history():
        found = join_parts(decoded(state))
        for key, placement in state.placements.items():
            assert found["placements"][key] == json.loads(to_json(tuple(map(as_served, served(state)[key]))))
            assert len(found["placements"][key]) == len(placement.ranges)
        for one in state.generations:
            shown = json.loads(to_json(one)) | {"tablet_streams": json.loads(to_json(one.tablet_streams))}
            assert found["generations"].pop(one.id) == {key: shown[key] for key in shown if key != "tables"}
        assert found["generations"] == {}
        for name, operation in state.operations.items():
            locks = sorted(operation.locks, key=lambda lock: (lock.replication, lock.end))
            assert found["operations"][name]["locks"] == json.loads(to_json(tuple(locks)))
        assert sorted(found) == sorted(
            set(PARTS) - {"locks", "streams", "tablet_chunks", "tablet_streams", "tablet_transitions"}
        )
    assert any(operation.locks for state in history() for operation in state.operations.values())
    assert any(placement.ranges for state in history() for placement in state.placements.values())


def test_no_field_grows_with_the_number_of_ranges() -> None:
    """Four times as many ranges give more fields, and a stage of one range changes few of them."""

    def largest(state: ClusterState) -> int:
        by_tokens = ("nodes", "operations")  # A setting bounds their number per node.
        return max(
            len(text) for part, table in project(state).items() if part not in by_tokens for text in table.values()
        )

    few, many = (history(tokens) for tokens in (8, 32))
    assert largest(many[-3]) < largest(few[-3]) + 100
    for before, after in itertools.pairwise(many):
        stages = {name: operation.stage for name, operation in before.operations.items()}
        if stages and stages != {name: operation.stage for name, operation in after.operations.items()}:
            old, new = project(before)["placements"], project(after)["placements"]
            changed = [row for row in delta(before, after).put if row[0] == "placements"]
            assert len(changed) == sum(old.get(key) != value for key, value in new.items())


# The memory cache passes the conformance suite.


class TestMemoryCache(CacheConformance):
    """The suite on the adapter in memory."""

    @pytest.fixture
    def cache(self) -> MemoryCache:
        return MemoryCache()

    def clear(self, cache: CacheStore) -> None:
        assert isinstance(cache, MemoryCache)
        cache.clear()


# A write consists of small commands of any number; a reader distinguishes an incomplete part from a foreign one.


rows = st.lists(st.tuples(st.integers(0, 9), st.text(max_size=3), st.integers(0, 40).map(lambda size: "x" * size)))


@given(rows, st.integers(1, 7), st.integers(1, 60))
def test_no_piece_exceeds_the_size_of_a_command(written: list[tuple[int, str, str]], count: int, size: int) -> None:
    most = redis_cache.COMMAND_ROWS_MAX, redis_cache.COMMAND_BYTES_MAX
    redis_cache.COMMAND_ROWS_MAX, redis_cache.COMMAND_BYTES_MAX = count, size
    try:
        pieces = list(redis_cache._chunks(written))
    finally:
        redis_cache.COMMAND_ROWS_MAX, redis_cache.COMMAND_BYTES_MAX = most
    assert [row for piece in pieces for row in piece] == written
    for piece in pieces:
        assert 1 <= len(piece) <= count
        assert len(piece) == 1 or sum(len(field) + len(value) for _, field, value in piece) <= size


META = {"cluster_id": "c", "epoch": "7", "state_id": "s", "digest": "d", "offset": "8", "confirmed_at": "9"}
PIECES_PARTS: list[dict[str, str]] = [{"a": "1"}, {}, {"b": "2", "c": "3"}]


@pytest.mark.parametrize(
    ("counts", "why"),
    [
        ("1 0", "has 2 sections, this release reads 3: another release's cache writer wrote it"),
        ("1 0 2 4", "has 4 sections, this release reads 3: another release's cache writer wrote it"),
        ("1 0 3", "lost a section of epoch 7"),
        ("", "lost a section of epoch 7"),
    ],
)
def test_an_incomplete_part_is_refused_with_a_reason(counts: str, why: str) -> None:
    with pytest.raises(CacheUnavailable, match=why):
        redis_cache.decode_stored(META | {"counts": counts}, PIECES_PARTS)


def test_without_counts_a_part_is_lost() -> None:
    """The conformance suite contains the valid case, which has all parts."""
    with pytest.raises(CacheUnavailable, match="lost a section"):
        redis_cache.decode_stored(META, PIECES_PARTS)

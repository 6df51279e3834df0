"""The projection is a function of the state, and differences say neither too little nor too much."""

from __future__ import annotations

import json

from ringlog.cache.projection import PARTS, delta, full, project

from .states import history


def test_every_part_is_there_in_every_state() -> None:
    for state in history():
        assert tuple(sorted(project(state))) == PARTS


def test_a_difference_names_only_what_changed() -> None:
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
    found = json.loads(shown["generations"][generation.id])
    assert [bytes.fromhex(stream) for stream in found["ranges"][0]["streams"]] == list(generation.ranges[0].streams)
    operation = json.loads(next(iter(shown["operations"].values())))
    assert "plan" not in operation
    assert operation["stage"] == "finished"


def test_a_full_projection_is_in_one_order() -> None:
    rows = [row[:2] for row in full(history()[-1]).put]
    assert rows == sorted(rows)

"""The projection is a function of the state, and differences say neither too little nor too much."""

from __future__ import annotations

import itertools
import json
from typing import Any

from ringlog.cache.projection import PARTS, delta, full, project, to_json, whole
from ringlog.kernel.operations.moving import as_served, served
from ringlog.kernel.state import ClusterState

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
    found = json.loads(shown["streams"][f"{generation.id}/{generation.ranges[0].end}"])
    assert [bytes.fromhex(stream) for stream in found["streams"]] == list(generation.ranges[0].streams)
    operation = json.loads(next(iter(shown["operations"].values())))
    assert "plan" not in operation
    assert operation["stage"] == "finished"


def test_a_full_projection_is_in_one_order() -> None:
    rows = [row[:2] for row in full(history()[-1]).put]
    assert rows == sorted(rows)


def decoded(state: ClusterState) -> dict[str, dict[str, Any]]:
    return {part: {key: json.loads(text) for key, text in table.items()} for part, table in project(state).items()}


def test_the_whole_has_every_range_where_it_belongs_and_in_order() -> None:
    for state in history():
        found = whole(decoded(state))
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
    """Four times as many ranges are more fields, and a stage of one range changes few of them."""

    def largest(state: ClusterState) -> int:
        by_tokens = ("nodes", "operations")  # of which a node has no more than a setting allows
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

"""A stored context and the log it meets again: generations that were withdrawn since, and those of another log."""

from __future__ import annotations

import pytest

from ringlog.kernel.state import ClusterState, Generation
from ringlog_cdc.decisions import still_known, table_of
from ringlog_cdc.errors import ChainBroken

CONTEXT = {"generations": [["a", 100], ["b", 200], ["c", 300]], "reaches_us": [5, 6, 7], "tables": {}}


def state(*known: tuple[str, int]) -> ClusterState:
    found = (Generation(name, start, (), "published", 1, 1, None, ()) for name, start in known)
    return ClusterState(generations=tuple(found))


def test_a_part_that_used_nothing_of_a_withdrawn_generation_comes_out_without_it() -> None:
    assert still_known(CONTEXT, state(("a", 100), ("b", 200), ("c", 300), ("d", 400)), 350) is CONTEXT
    left = still_known(CONTEXT, state(("a", 100)), 199)
    assert left == {"generations": [["a", 100]], "reaches_us": [5], "tables": {}}
    again = still_known(CONTEXT, state(("a", 100), ("b", 200), ("c", 250)), 199)
    assert again["generations"] == [["a", 100], ["b", 200]], "the same name at another time is another one"


@pytest.mark.parametrize("used", [300, 1_000])
def test_a_part_that_used_what_is_missing_is_of_another_log(used: int) -> None:
    with pytest.raises(ChainBroken):
        table_of(
            dict(still_known(CONTEXT, state(("a", 100), ("b", 200)), used)) | {"source_topic": "t"}, (), ClusterState()
        )
    assert still_known(CONTEXT, state(("a", 100), ("b", 200)), used) is CONTEXT

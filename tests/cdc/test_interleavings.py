"""Schema changes, settings, writes, generation switches and restarts of nodes and the job in random orders.

All readers agree on the verdict of each write, and the nodes have the rows of the log.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlog.kernel.generations import admission
from ringlog.node.rows import replica as row_replica
from ringlog_cdc.plan import decisions
from tests.cdc.interleaved import Act, Cluster

KINDS = {
    "write": 9,
    "node": 6,
    "job": 4,
    "alter": 3,
    "promise": 3,
    "drop": 1,
    "leeway": 1,
    "switch": 2,
    "restart": 1,
    "job restart": 1,
}
"""The kinds of actions with their weights."""
NUMBERS = st.integers(0, 40)
ACTS = st.tuples(st.sampled_from([kind for kind, count in KINDS.items() for _ in range(count)]), *[NUMBERS] * 3)


def run_history(acts: list[Act], folder: Path) -> Counter[str]:
    """Run a history to completion and return what happened in it."""
    world = Cluster(folder)
    try:
        for act in acts:
            world.act(act)
        world.rest()
    finally:
        for node in world.nodes:
            node.row_replica.store.close()
    return world.met


def random_history(seed: int) -> list[Act]:
    """Return the random history of a seed."""
    chance = Random(seed)
    kinds = chance.choices(list(KINDS), list(KINDS.values()), k=chance.randint(10, 60))
    return [(kind, *(chance.randint(0, 40) for _ in range(3))) for kind in kinds]  # type: ignore[misc]


@settings(max_examples=30)
@given(st.lists(ACTS, max_size=60))
def test_readers_agree_and_base_equals_log(acts: list[Act]) -> None:
    with TemporaryDirectory() as folder:
        run_history(acts, Path(folder))


def test_long_histories_contain_all_events(tmp_path: Path) -> None:
    met: Counter[str] = Counter()
    for seed in range(30):
        folder = tmp_path / str(seed)
        folder.mkdir()
        met += run_history(random_history(seed), folder)
    for what in ("AlterTable", "DropTable", "CreateTable", "CommitCdcGeneration", "node wiped", "batch left"):
        assert met[what] > 3, (what, met)
    for code in ("accepted", "unknown_table", "unknown_column", "unknown_version", "timestamp_in_future"):
        for who in ("node 1", "node 2", "the job"):
            assert met[f"{who} says {code}"] > 0, (code, who, met)
    assert met["rows compared"] > 20


PLANTED: dict[str, tuple[object, str, object]] = {
    "a node judges at once": (admission, "is_settled", lambda history, used: True),
    "a node keeps the rows of a dropped table": (row_replica.RowReplica, "_forget", lambda self, before: None),
    "the job forgets what counted before": (decisions, "history_context", lambda state: {}),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*PLANTED[bug])
    for seed in range(20):
        folder = tmp_path / str(seed)
        folder.mkdir()
        try:
            run_history(random_history(seed), folder)
        except AssertionError:
            return
    pytest.fail("nobody noticed")

"""Splits and merges by traffic: worked examples, and a naive model of keys, tablets and nodes' averages.

The model has the traffic of single keys. It computes the tablets' traffic from the keys after each resize, so the
sizing cannot agree with it by sharing a formula.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlog.kernel.balance import sizing
from ringlog.kernel.balance.advice import Advice, advise
from ringlog.kernel.balance.model import BYTES, CPU, GIB, READS, WRITES, Limits, MeasuredLoads
from ringlog.kernel.balance.sizing import LEAST, Sized, SizeOptions, decide_resizes, demands
from ringlog.kernel.commands.cluster.cluster import ChangeSettings
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.tablets.resize import MERGE, NONE, SPLIT
from ringlog.kernel.values import replace
from ringlog.operator.views.tablets import demand_text, why_view
from ringlog.protocol.balancer.load_reports import own_tablets
from tests.kernel.balance.world import host
from tests.kernel.entries import applied
from tests.kernel.tablets import clusters

HOSTS = [host("h1", 2, "r1"), host("h2", 2, "r2")]
LIMITS = Limits(tablets_per_shard_least=1, target_writes=100, target_cpu=1_000)


def table(count: int, sized: int = 0, **more: object) -> Sized:
    return Sized("ks.t", count, {"dc1": 2}, {}, sized, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("writes", "before", "after"),
    [
        (1_601, NONE, SPLIT),
        (1_600, NONE, NONE),
        (800, SPLIT, SPLIT),
        (799, SPLIT, NONE),
        (400, NONE, NONE),
        (399, NONE, MERGE),
        (800, MERGE, MERGE),
        (801, MERGE, NONE),
    ],
)
def test_thresholds_of_eight_tablets(writes: int, before: str, after: str) -> None:
    found = demands([table(8, decision=before, traffic={WRITES: writes, CPU: 0})], HOSTS, LIMITS)
    assert found["ks.t"].decision == after


def test_the_load_that_asks_for_most_decides() -> None:
    busy = table(8, 40 * 5 * GIB, traffic={WRITES: 500, CPU: 30_000})
    found = [
        demands([one], HOSTS, LIMITS)["ks.t"]
        for one in (busy, replace(busy, bytes=0), replace(busy, bytes=0, traffic={WRITES: 500, CPU: 0}))
    ]
    assert [(row.kind, row.tablets, row.decision) for row in found] == [
        (BYTES, 40, SPLIT),
        (CPU, 30, SPLIT),
        (WRITES, 5, NONE),
    ]
    hinted = table(8, options=SizeOptions(least=32), traffic={WRITES: 500, CPU: 0})
    (row,) = demands([hinted], HOSTS, LIMITS).values()
    assert (row.kind, row.tablets, row.decision) == (LEAST, 32, SPLIT)


def test_traffic_without_a_target_does_not_count() -> None:
    idle = table(64, 64 * 5 * GIB, traffic={READS: 1 << 40})
    assert decide_resizes([idle], HOSTS, LIMITS) == ()


def test_unknown_traffic_merges_nothing_and_splits_by_the_known_part() -> None:
    assert decide_resizes([table(64, measured=False)], HOSTS, LIMITS) == ()
    found = decide_resizes([table(8, traffic={WRITES: 1_700}, measured=False)], HOSTS, LIMITS)
    assert [row.decision for row in found] == [SPLIT]
    assert decide_resizes([table(8, 40 * 5 * GIB, measured=False)], HOSTS, LIMITS)[0].kind == BYTES


# ---------------------------------------------------------------------------------------------------- naive model

Keys = Mapping[int, float]
"""Position of a key in the token range, of ``SPACE``, to its writes per second."""
SPACE = 1 << 20


def reported(keys: Keys, count: int) -> int:
    """Return the sum that the nodes report, with each tablet's average rounded up."""
    tablets: dict[int, float] = {}
    for position, rate in keys.items():
        number = position * count // SPACE
        tablets[number] = tablets.get(number, 0) + rate
    return sum(-int(-rate // 1) for rate in tablets.values())


def resizes(keys: Keys, count: int, limits: Limits, rounds: int = 60) -> tuple[int, list[str]]:
    """Resize a table until nothing is decided. Return its count and the decisions."""
    kinds: list[str] = []
    for _ in range(rounds):
        one = table(count, traffic={WRITES: reported(keys, count), CPU: 0})
        rows = decide_resizes([one], HOSTS, limits)
        if not rows:
            return count, kinds
        kinds.append(rows[0].decision)
        count = 2 * count if rows[0].decision == SPLIT else -(-count // 2)
    raise AssertionError(f"no end: {kinds}")


KEYS = st.dictionaries(st.integers(0, SPACE - 1), st.floats(0.001, 5_000), max_size=40)
NO_GOAL = 1_000_000
"""More tablets for each shard than any drawn traffic asks for."""
TARGETS = st.sampled_from((1, 2, 3, 10, 500))


@given(KEYS, st.integers(0, 12), TARGETS, st.sampled_from((10, NO_GOAL)))
def test_decisions_by_constant_traffic_end_and_never_alternate(keys: Keys, power: int, target: int, goal: int) -> None:
    limits = replace(LIMITS, target_writes=target, tablets_per_shard_goal=goal, tablets_per_shard_least=1)
    count, kinds = resizes(keys, 1 << power, limits)
    assert len(set(kinds)) <= 1, kinds
    rate = sum(keys.values())
    if goal == NO_GOAL:
        assert rate <= 2 * count * target, "each tablet has at most twice the target on average"
        assert count <= 4 or 2 * reported(keys, count) >= count * target, "no more tablets than needed"


def test_one_busy_key_does_not_split_its_table_without_end() -> None:
    assert resizes({5: 6_400.0}, 4, LIMITS) == (32, [SPLIT] * 3), "64 tablets are asked for, 32 are within twice"


def _found(limits: Limits) -> int | None:
    """Return the number of random tables until the model finds alternating, endless or excessive decisions, or None."""
    for seed in range(300):
        rng = random.Random(seed)
        keys = {rng.randrange(SPACE): rng.choice((0.1, 3.0, 900.0)) for _ in range(rng.randint(1, 60))}
        target = rng.choice((1, 5, 100))
        try:
            count, kinds = resizes(keys, 1 << rng.randint(0, 9), replace(limits, target_writes=target))
        except AssertionError:
            return seed + 1
        if len(set(kinds)) > 1 or (count > 4 and 2 * reported(keys, count) < count * target):
            return seed + 1
    return None


def test_the_model_finds_planted_bugs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _found(LIMITS) is None
    right = sizing._sizes
    planted = {
        "the mean of the busy tablets counts for all": lambda one, limits: (
            right(one, limits) | {WRITES: one.count * right(one, limits)[WRITES]}
        ),
        "the size grows with the count": lambda one, limits: (
            right(one, limits) | {WRITES: right(one, limits)[WRITES] * (3 if one.count & 0x55555 else 1)}
        ),
        "a merge looks at the bytes only": lambda one, limits: (
            right(one, limits) if one.count < 16 else {BYTES: right(one, limits)[BYTES]}
        ),
    }
    for name, wrong in planted.items():
        with monkeypatch.context() as patch:
            patch.setattr(sizing, "_sizes", wrong)
            assert _found(LIMITS) is not None, name


# ------------------------------------------------------------------------------------------------- reports to advice


def advice(state: ClusterState, writes: Mapping[int, int]) -> Advice:
    """Return the advice when each replica of a tablet reports these writes."""
    measured = {
        node: MeasuredLoads(
            None,
            {
                BYTES: {clusters.TABLE: dict.fromkeys(own[clusters.TABLE], 10)},
                WRITES: {
                    clusters.TABLE: {number: writes[number] for number in own[clusters.TABLE] if number in writes}
                },
            },
        )
        for node in state.nodes
        if (own := own_tablets(state, node))
    }
    return advise(state, measured)


def test_the_balancer_splits_by_reported_traffic_and_says_why() -> None:
    state = clusters.with_table(clusters.three_racks(), clusters.factor(3), 8)
    settings = {"balance_tablets_per_shard_min": 1, "balance_tablet_writes": 50}
    state = applied(state, ChangeSettings(tuple(sorted(settings.items()))))
    writes = Counter(dict.fromkeys(range(8), 1)) + Counter({3: 1_000})
    (row,) = why_view(state, advice(state, writes))["resizes"]
    assert (row["decision"], row["demand"], row["wanted"]) == (SPLIT, WRITES, 21)
    assert demand_text(row) == "its writes ask for 21 tablets"
    idle = dict.fromkeys(range(8), 0)
    assert [one.decision for one in advice(state, idle).resizes] == [MERGE]
    assert advice(state, dict.fromkeys(range(7), 0)).resizes == (), "the traffic of tablet 7 is unknown"

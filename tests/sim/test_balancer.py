"""The balancer in simulated clusters: tablets spread onto a joining node under failures, and the balancer finishes."""

from __future__ import annotations

from collections import Counter
from contextlib import closing

import pytest

from ringlog.kernel.model.state import ClusterState
from ringlog_sim.devices.world import SECOND, BrokenPromise
from ringlog_sim.mutants.plant import Mutant, planted
from ringlog_sim.runner.run import Run
from ringlog_sim.runner.script import Action, Script
from ringlog_sim.runner.search import run_seed
from ringlog_sim.shape import ClusterShape
from ringlog_sim.stories.moments import HERE
from ringlog_sim.stories.moving_tablets import PROFILE

RULES = "ringlog.kernel.commands.placement.tablets"
RUNS = 12
SHAPE = ClusterShape(founded=2, joining=1, factor=1, tokens=1, history=10_000, old=False)


def last_state(seed: int, *more: Action) -> ClusterState:
    """Return the last state of ``run``."""
    return run(seed, *more)[0]


def run(seed: int, *more: Action) -> tuple[ClusterState, Counter[tuple[str, ...]]]:
    """Run a cluster with a table of eight tablets while n3 joins; return its last state and its events."""
    actions = (
        Action(0, 0, "with_role", ("balancer",)),
        Action(1, 0, "spread", (1, 8)),
        Action(2, 2 * SECOND, "start", ("n3",)),
        *more,
    )
    with closing(Run(Script(seed, "small", SHAPE, 20 * SECOND, tuple(sorted(actions, key=lambda one: one.at))))) as one:
        one.play()
        return one.sim.log.state, one.sim.did


def broken(bug: Mutant, befalls: tuple[Action, ...]) -> str:
    """Return the first rule that a run with a bug breaks; empty if it breaks none."""
    with planted(bug):
        for seed in range(10):
            try:
                last_state(seed, *befalls)
            except BrokenPromise as violation:
                return violation.rule
    return ""


def spread(state: ClusterState) -> Counter[str]:
    tablets = state.tablets["spread.t"]
    assert not tablets.transitions
    return Counter(state.nodes[one.node].name for tablet in tablets for one in tablet.replicas)


def test_tablets_spread_onto_a_node_that_joins() -> None:
    found = spread(last_state(1))
    assert found["n3"] > 0, found
    assert sum(found.values()) == 8


@pytest.mark.parametrize("seed", range(3))
def test_tablets_spread_despite_takeovers_and_crashes(seed: int) -> None:
    befalls = (
        Action(10, 4 * SECOND, "hand_over", ("balancer",)),
        Action(11, 6 * SECOND, "crash", ("agents-1", 2_000)),
        Action(12, 9 * SECOND, "crash", ("agents-2", 2_000)),
        Action(13, 12 * SECOND, "hand_over", ("balancer",)),
    )
    assert spread(last_state(seed, *befalls))["n3"] > 0


@pytest.mark.parametrize("name", ["n1", "n2", "n3"])
def test_a_crashed_node_does_not_block_the_balancer(name: str) -> None:
    assert spread(last_state(4, Action(10, 5 * SECOND, "crash", (name, 3_000))))["n3"] > 0


def test_the_tablets_profile_covers_its_subject() -> None:
    """The runs have takeovers of balancers and cuts of logged tables, and no check fails."""
    did: Counter[tuple[str, ...]] = Counter()
    for seed in range(1, RUNS + 1):
        report = run_seed(seed, PROFILE)
        assert not report.rule, (seed, report.rule, report.detail)
        did += report.did
    assert did["action", "with_role"] >= RUNS // 4
    assert did["action", "logged_tablets"] >= RUNS // 6
    for kind in ("MigrateTablets", "DecideResize", "FinishResize", "RevertTablets", "CommitCdcGeneration", "TakeOver"):
        assert did["entry", kind, "applied"], kind


STALE = Mutant(
    "any_term",
    f"{RULES}:decide_migrate_tablets",
    "command.term and (acting is None or acting.term != command.term)",
    "not state.epoch",
    "",
    1,
)


def test_a_plan_after_a_takeover_has_no_effect() -> None:
    """The instance is slow after it has planned again, and loses its role; the planted bug skips the term."""
    late = (
        Action(10, 0, "when", ("balancing", 2, 0, "slow", HERE, 1_500, 6_000)),
        Action(11, 0, "when", ("balancing", 2, 200, "hand_over", "balancer")),
    )
    for seed in range(3):
        assert spread(last_state(seed, *late))["n3"] > 0
    assert broken(STALE, late) == "stale_plan"


VAIN = Mutant(
    "never_back", "ringlog.protocol.coordinator.core:_exhausted_sessions", "one.count >= most", "one.count < 0", "", 1
)


def test_a_tablet_without_rows_reverts() -> None:
    """Its source is down during the stream and may be asked once; the planted bug never reverts it."""
    away = (
        Action(10, SECOND, "set", ("stream_tries_max", 1)),
        *(
            Action(11 + n, 0, "when", ("AdvanceTablets", 2 + 3 * (n // 2), 0, "crash", f"n{1 + n % 2}", 3_500))
            for n in range(6)
        ),
    )
    assert sum(run(seed, *away)[1]["entry", "RevertTablets", "applied"] for seed in range(3))
    assert broken(VAIN, away) == "liveness"


WAITED_FOR = Mutant(
    "the_gone_are_waited_for", "ringlog.kernel.balance.drain:obstacles", "holders[node].gone", "False", "", 1
)


def test_tablets_of_an_assassinated_node_are_recreated() -> None:
    """The only replicas are lost with the node; the planted bug waits for them."""
    lost = (Action(10, 13 * SECOND, "lost", ("n1",)), Action(11, 14 * SECOND, "bury", ("n1", "Assassinate")))
    for seed in (0, 2):  # n3 has joined already: a join that needs lost rows would never end
        found = spread(last_state(seed, *lost))
        assert not found["n1"], found
        assert sum(found.values()) == 8
    assert broken(WAITED_FOR, lost) == "drain"

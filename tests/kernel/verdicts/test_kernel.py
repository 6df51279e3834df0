"""Validation by the kernel: all readers of random logs agree, and disagree without a part of the rule."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from ringlog.kernel.commands.cdc import clock as cdc_clock
from ringlog.kernel.commands.cdc import generations as cdc
from ringlog.kernel.commands.cdc import verdicts
from ringlog.kernel.commands.cdc import writers as cdc_writers
from ringlog.kernel.commands.cluster import cluster
from ringlog.kernel.commands.schema import tables as schema
from ringlog.kernel.commands.schema import user_types
from ringlog.kernel.generations import admission
from ringlog.kernel.invariants.check import violations
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.tables import Settled
from ringlog.kernel.schema import table_versions as lifetimes
from ringlog.kernel.values import replace
from tests.kernel.verdicts.explore import NAMES, OFF, SCENARIOS, SETTING, Scenario
from tests.kernel.verdicts.logs import disagreement, random_log
from tests.kernel.verdicts.model import ALL, Explorer, State, Write

LOGS = 150
BLOCK = 15
LOWERED_LOGS = 40
MINE = {"settled", "table_lives"}


@pytest.mark.parametrize("first", range(0, LOGS, BLOCK))
def test_all_readers_of_a_log_agree(first: int) -> None:
    for seed in range(first, first + BLOCK):
        states = random_log(seed)
        assert disagreement(states) is None, f"log {seed}"
        _assert_sound(states, seed)


def _assert_sound(states: list[ClusterState], seed: int) -> None:
    rules = admission.rules_of(states[0])
    for before, after in pairwise(states):
        rules = admission.rules_of(after, (before, rules))
        assert rules == admission.rules_of(after), f"log {seed}: incremental rules differ from the full ones"
        assert not [found for found in violations(after, before) if found.invariant in MINE], f"log {seed}"
        assert not [found for found in violations(after) if found.invariant in MINE], f"log {seed}"


def test_all_readers_agree_with_a_lowered_watermark() -> None:
    """The readers disagree on earlier writes that are validated again, which the operator accepts."""
    times, apart = 0, 0
    for seed in range(LOWERED_LOGS):
        states = random_log(seed, lowers=True)
        assert disagreement(states) is None, f"log {seed}"
        _assert_sound(states, seed)
        times += states[-1].settled.lowered > 0
        forgetful = [replace(state, settled=replace(state.settled, lowered=0)) for state in states]
        apart += disagreement(forgetful) is not None
    assert times > LOWERED_LOGS // 10
    assert apart > 0


def _unsettled(real: Callable[..., bool]) -> Callable[..., bool]:
    return lambda *_arguments: True


def _from_the_beginning(real: Callable[..., Any]) -> Callable[..., Any]:
    """Plant a bug: a schema change applies to each write."""

    def changed(state: ClusterState, before: Any, after: Any) -> Any:
        known = replace(state, settled=Settled(1)) if state.settled.until else state
        return real(known, before, after)

    return changed


def _forgetful(real: Callable[..., Any]) -> Callable[..., Any]:
    """Plant a bug: only the newest version is kept."""

    def changed(state: ClusterState, before: Any, after: Any) -> Any:
        found = real(state, before, after)
        cut = {name: tuple(replace(one, versions=one.versions[-1:]) for one in known) for name, known in found.items()}
        return type(found)(cut)

    return changed


def _no_leeways(real: Callable[..., Settled]) -> Callable[..., Settled]:
    return lambda state: state.settled


def _not_raised(real: Callable[..., Settled]) -> Callable[..., Settled]:
    return lambda state, _horizon: state.settled


def _unaware(real: Callable[..., Any]) -> Callable[..., Any]:
    """Plant a bug: a rule ignores the validation watermark."""
    return lambda state, *arguments: real(replace(state, settled=Settled()), *arguments)


def _too_much(real: Callable[..., Any]) -> Callable[..., Any]:
    """Plant a bug: versions are pruned while writes may still name them."""
    return lambda known, below: real(known, below + lifetimes.NAMED_US)


PLANTED: tuple[tuple[str, tuple[tuple[Any, str], ...], Callable[..., Any]], ...] = (
    ("judged as soon as it is read", ((admission, "is_settled"),), _unsettled),
    ("a change counts at once", ((schema, "changed"), (user_types, "lifetimes_after")), _from_the_beginning),
    ("only the newest version is kept", ((schema, "changed"),), _forgetful),
    ("earlier leeways are not kept", ((cluster, "with_leeway"),), _no_leeways),
    ("a generation starts below the settled time", ((cdc, "_timestamp_too_low"),), _unaware),
    ("a generation is withdrawn below it", ((cdc_clock, "_in_use"),), _unaware),
    ("too much is forgotten", ((verdicts, "pruned"),), _too_much),
)


@pytest.mark.parametrize(
    ("words", "places", "plant"), PLANTED, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_planted_defect_is_found(
    words: str, places: tuple[tuple[Any, str], ...], plant: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for room, name in places:
        monkeypatch.setattr(room, name, plant(getattr(room, name)))
    assert any(disagreement(random_log(seed)) for seed in range(LOGS)), words


@pytest.mark.parametrize(
    ("name", "plant"),
    [
        ("lowered", lambda known, _until: known),
        ("lowered_to", lambda state, until, _: replace(state.settled, until=until)),
    ],
)
def test_a_wrong_lowering_is_found(name: str, plant: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The plants drop the repair of entries above the lowered watermark, or its record."""
    monkeypatch.setattr(cdc_clock, name, plant)
    logs = (random_log(seed, lowers=True) for seed in range(LOWERED_LOGS))
    pairs = (pair for log in logs for pair in pairwise(log))
    assert any(one.invariant in MINE for before, after in pairs for one in violations(after, before)), name


def test_a_lease_raises_the_validation_watermark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a writer would route writes that later decisions affect. The invariant detects it."""
    monkeypatch.setattr(cdc_writers, "with_lease", _not_raised(cdc_writers.with_lease))
    logs = (random_log(seed) for seed in range(LOGS))
    assert any(found.invariant == "settled" for log in logs for state in log for found in violations(state))


# Full exploration of the small model: all readers agree, and each part of the rule is needed.


SEEN_MIN = 50


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_all_readers_agree(scenario: Scenario) -> None:
    explorer = scenario.explorer()
    assert explorer.explore() is None, explorer.found
    assert explorer.seen > SEEN_MIN, "the exploration visits too few logs"


@pytest.mark.parametrize(
    ("scenario", "rule", "words", "promise"), OFF, ids=lambda value: value if isinstance(value, str) else ""
)
def test_each_part_is_needed(scenario: Scenario, rule: str, words: str, promise: str) -> None:
    """Without the part, the explorer finds a log that violates exactly this invariant."""
    assert scenario.explorer(rule).explore() == promise, words


def test_each_part_of_the_rule_is_tested() -> None:
    assert {rule for _, rule, _, _ in OFF} == ALL


def test_the_model_accepts_writes_of_each_kind() -> None:
    """Writes of each kind enter both tables, by each existing version."""
    rows: set[str] = set()

    class Watching(Explorer):
        def verdict(self, state: State, write: Write) -> str | None:
            found = super().verdict(state, write)
            if found is not None:
                rows.add(found)
            return found

    for scenario in (NAMES, SETTING):
        assert Watching(**scenario.what).explore() is None
    assert rows >= {f"row {lifetime} {version}" for lifetime in "xy" for version in (1, 2, 3)}
    assert rows >= {"unknown_table", "unknown_version", "unknown_column", "timestamp_in_future"}

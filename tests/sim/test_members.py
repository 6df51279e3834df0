"""Members of the metadata service change while who takes part dies, and the copies that they keep are the log."""

from __future__ import annotations

from ringlog.sim.reconfiguring import ASKED, PROFILE, SIZES, STEP
from ringlog.sim.run import run_script
from ringlog.sim.script import AGENT_HOSTS, PROFILES, Action, Script, draw_script
from ringlog.sim.search import SearchResult, reports
from ringlog.sim.shape import ClusterShape
from ringlog.sim.world import MS

SHAPE = ClusterShape(founded=3, joining=0, factor=1, tokens=1, history=10_000, old=False)


def test_members_come_and_go_and_nobody_is_called_one_who_lacks_the_log() -> None:
    found = SearchResult()
    for report in reports(range(1, 16), PROFILE, jobs=1):
        found.add(report)
    assert [(one.seed, one.rule, one.detail) for one in found.failures] == []
    did = {key[1]: count for key, count in found.did.items() if key[0] == "members"}
    steps = {"none to joining", "joining to member", "joining to leaving", "member to leaving", "leaving to none"}
    assert did.keys() >= {*steps, "copies begun", "copies begun with a snapshot"}
    assert did["joining to member"] > 10


def test_each_run_of_the_profile_has_members_and_all_wishes_come() -> None:
    scripts = [draw_script(seed, PROFILES[PROFILE]) for seed in range(60)]
    assert all(any(action.what == "keep_log" for action in script.actions) for script in scripts)
    wishes = {action.arguments[0] for script in scripts for action in script.actions if action.what == "service"}
    assert wishes == set(ASKED)
    assert [size for size, _ in SIZES] == [1, 3, 5, 10]
    steps = [action for script in scripts for action in script.actions if action.arguments[:1] == (STEP,)]
    assert {action.arguments[3] for action in steps} == {"crash", "torn", "pause"}
    assert {action.arguments[1] for action in steps} == set(range(1, 9))


def test_everybody_dies_at_each_step_of_a_service_of_three() -> None:
    """All nodes and both hosts of agents, at each of six steps; then all is as wanted."""
    for nth in range(1, 7):
        dies = [("crash", "n1"), ("crash", "n2"), ("torn", "n3"), *(("crash", host) for host in AGENT_HOSTS)]
        happens: list[tuple[int, str, tuple[object, ...]]] = [(0, "keep_log", ()), (100, "service", ("automatic",))]
        for what, host in dies:
            rest = (host, 500) if what == "crash" else (host,)
            happens.append((50, "when", (STEP, nth, 0, what, *rest)))
        actions = (Action(number, at * MS, what, rest) for number, (at, what, rest) in enumerate(happens))
        ordered = tuple(sorted(actions, key=lambda action: action.at))
        report = run_script(Script(nth, "small", SHAPE, 4_000 * MS, ordered))
        assert not report.rule, f"{nth}: {report.rule}: {report.detail}"
        assert report.did["members", "joining to member"] == 3
        assert report.did["moment", STEP, "crash"] == 4

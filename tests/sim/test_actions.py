"""Every action of a script is performed: generator and performer know the same actions, and runs report each one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import count

import pytest

from ringlog_sim.devices.world import MS
from ringlog_sim.runner.actions import PERFORMED, merged, perform
from ringlog_sim.runner.run import Run, run_script
from ringlog_sim.runner.script import PROFILES, Action, Script, draw_script
from ringlog_sim.stories.moments import DAWDLE

IN_STORIES = frozenset({"lower_settled", "resize"})
"""Actions that no profile draws: stories of ``test_settled`` and ``test_tablet_streams`` contain them."""
QUICK = tuple(name for name in PROFILES if name not in ("medium", "large"))
PLAYED_MAX = 60


def actions_of(script: Script) -> Iterator[str]:
    """Yield all actions of the script, including those at armed moments."""
    for action in script.actions:
        what, arguments = action.what, action.arguments
        yield what
        while what == "when":
            what, arguments = arguments[3], arguments[4:]
            if what != DAWDLE:
                yield what


def test_drawn_and_performed_actions_match() -> None:
    drawn = {
        word for name in QUICK for seed in range(1, 400) for word in actions_of(draw_script(seed, PROFILES[name]))
    } | {word for seed in range(1, 60) for word in actions_of(draw_script(seed, PROFILES["large"]))}
    assert drawn | IN_STORIES == set(PERFORMED)
    assert not drawn & IN_STORIES


def test_runs_report_every_action() -> None:
    done: Counter[str] = Counter()
    missing, played = set(PERFORMED) - IN_STORIES, 0
    for seed in count(1):
        for name in (*QUICK, "medium"):
            script = draw_script(seed, PROFILES[name])
            if not missing & set(actions_of(script)):
                continue
            report, played = run_script(script), played + 1
            assert (report.rule, report.detail) == ("", ""), (name, seed)
            done.update({key[1]: times for key, times in report.did.items() if key[0] == "action"})
            missing -= set(done)
            assert played < PLAYED_MAX or not missing, f"drawn, never performed: {missing}"
        if not missing:
            break


def test_an_action_has_one_meaning() -> None:
    with pytest.raises(ValueError, match="cut: two tables"):
        merged({"cut": lambda: None}, {"burst": lambda: None, "cut": lambda: None})


def test_an_unknown_action_fails_and_is_not_counted() -> None:
    run = Run(draw_script(1, PROFILES["small"]))
    with pytest.raises(ValueError, match="no actor performs dance"):
        perform(run, Action(1, 0, "dance", ()))
    with pytest.raises(TypeError):
        perform(run, Action(1, 0, "burst", (1, 2)))
    assert not run.sim.did
    run.close()


def test_a_cut_link_is_cut_for_its_time() -> None:
    run = Run(draw_script(1, PROFILES["small"]))
    perform(run, Action(1, 0, "cut", ("n1", "broker", "there", 700)))
    there, back = run.world.link("n1", "broker"), run.world.link("broker", "n1")
    run.world.run(699 * MS)
    assert (there.cut, back.cut) == (True, False)
    run.world.run(701 * MS)
    assert not there.cut
    assert run.sim.did["action", "cut"] == 1
    run.close()

"""The roles of agents: what each needs is there, for threads and for the simulator."""

from __future__ import annotations

from dataclasses import replace

from ringlog.agents.worker import _worker_of
from ringlog.log.topics import TOPICS
from ringlog.protocol.roles import ROLES
from ringlog.sim.run import WORKERS, run_script, workers_of
from ringlog.sim.script import PROFILES, Action, draw_script
from ringlog.sim.world import SECOND

SUFFIXES = {topic.suffix for topic in TOPICS}


def test_a_role_s_topics_are_topics_of_a_cluster() -> None:
    for row in ROLES.values():
        assert {row.source, *row.uses} <= SUFFIXES, row.name
        assert row.reset in ("earliest", "latest")


def test_every_role_has_a_thread_and_a_worker_of_the_simulator() -> None:
    assert WORKERS.keys() == ROLES.keys()
    for row in ROLES.values():
        made = _worker_of(row)
        assert getattr(made, "role", row.name) == row.name
        assert callable(made)


def test_an_optional_role_is_taken_over_and_handed_over_where_a_script_says_so() -> None:
    script = draw_script(3, PROFILES["small"])
    assert "balancer" not in [worker.role for worker in workers_of(script)]
    actions = (Action(9_000, 1, "hand_over", ("balancer",)), Action(9_001, SECOND, "hand_over", ("balancer",)))
    asked = replace(script, actions=tuple(sorted((*script.actions, *actions), key=lambda one: one.at)))
    report = run_script(asked, tracing=True)
    assert report.rule == ""
    acts = [line for line in report.story if "balancer" in line and "acts in term" in line]
    assert len(acts) >= 2, report.story[-5:]

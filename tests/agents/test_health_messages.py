"""Health messages and metrics of an agent in each of its states."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from ringlog.agents.exits import CRASHED, HALTED, SUPERSEDED, End
from ringlog.agents.monitoring.health_view import STATES, AgentWatch, ProcessView, RoleView, health_of, samples_of
from ringlog.agents.monitoring.metrics import LatencyMetrics
from ringlog.agents.roles.role import BEATS, EPOCHS, InvariantMonitor
from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.model.principals import SENDER_CODES
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import replace
from ringlog.log.replicas.metrics import SILENT_S, LogView
from ringlog.log.replicas.subscribers import Halt
from ringlog.runtime.monitoring.metrics import AGENT, ALL_METRICS, EVERY, READER, VALIDATOR, WORKER, Durations, Sample
from ringlog.runtime.monitoring.scrape import exposition
from tests.kernel.entries import NODES, applied, founded, node

LOG = LogView(12, 5_000_000, 3, 1.0, None, (("applied", 12),))
ROLE = RoleView(LOG, term=4, is_active=True, handled=11)
ACTS = ProcessView(worker=ROLE)


def with_log(**changes: object) -> ProcessView:
    return ProcessView(worker=replace(ROLE, log=replace(LOG, **changes)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("view", "state", "is_ready", "why"),
    [
        (ProcessView("log_unavailable: no broker"), "starting", False, "log_unavailable: no broker"),
        (ProcessView(), "stands_by", True, "another instance is active in this role"),
        (ProcessView(away="the broker has not answered for 9 s: x"), "broker_away", False, "not answered for 9 s"),
        (
            ProcessView(worker=RoleView(LogView(0, 0, None, None, None))),
            "taking_over",
            False,
            "reads the log before",
        ),
        (ProcessView(worker=RoleView(LOG, term=4)), "taking_over", False, "the agent prepares the work of term 4"),
        (ACTS, "active", True, ""),
        (ProcessView(worker=replace(ROLE, alarm="invariant_broken: x")), "active", True, "invariant_broken: x"),
        (ProcessView(worker=replace(ROLE, waits="the archive waits: x")), "active", True, "the archive waits: x"),
        (ProcessView(away="the broker has not answered", worker=ROLE), "broker_away", False, "has not answered"),
        (with_log(silent_s=SILENT_S), "broker_away", False, "has not answered for 20 s"),
        (with_log(halted=Halt("log_forked", "another entry", 7)), "ended", False, "halted: log_forked: another entry"),
        (ProcessView(end=End(HALTED, "log_gap: x"), worker=ROLE), "ended", False, "halted: log_gap: x"),
        (ProcessView(end=End(CRASHED, "broker"), away="away"), "ended", False, "crashed: broker"),
        (ProcessView(end=End(SUPERSEDED, "term 5 of keeper")), "ended", False, "superseded: term 5"),
    ],
)
def test_an_agent_is_ready_or_reports_the_reason(view: ProcessView, state: str, is_ready: bool, why: str) -> None:
    health = health_of(view)
    assert (health.state, health.is_ready) == (state, is_ready)
    assert health.why == why if not why else why in health.why
    assert state in STATES


def test_health_contains_the_epoch_of_the_log_reader() -> None:
    assert (health_of(ACTS).epoch, health_of(ACTS).behind) == (12, 3)
    assert (health_of(ProcessView()).epoch, health_of(ProcessView()).behind) == (None, None)


def names(view: ProcessView) -> set[str]:
    return {sample.name for sample in samples_of(view, 0)}


def declared(*by: str) -> set[str]:
    return {name for name, figure in ALL_METRICS.items() if figure.by in by}


def test_a_standby_exports_fewer_metrics_than_the_active_instance() -> None:
    assert names(ProcessView()) == declared(EVERY, AGENT)
    assert names(ACTS) == declared(EVERY, AGENT, READER, WORKER)
    validator = ProcessView(worker=replace(ROLE, more=tuple(LatencyMetrics().samples())))
    assert names(validator) == declared(EVERY, AGENT, READER, WORKER, VALIDATOR)
    exposition(samples_of(validator, 0), {"role": "validator"})


def test_an_agent_is_in_one_state() -> None:
    shown = {one.labels: one.value for one in samples_of(ACTS, 0) if one.name == "ringlog_agent_state"}
    assert {labels[0]: bool(value) for labels, value in shown.items()} == {one: one == "active" for one in STATES}


def test_a_starting_agent_reports_its_wait() -> None:
    watch = AgentWatch("keeper", lambda: 7)
    watch.waits = "topic_missing: c.metadata"
    assert watch.labels == {"role": "keeper"}
    assert watch.health() == (health_of(ProcessView("topic_missing: c.metadata")), 7)
    watch.look = lambda: ACTS
    assert watch.health()[0].state == "active"
    assert Sample("ringlog_agent_term", 4) in set(watch.samples())


def values(times: LatencyMetrics) -> dict[tuple[str, ...], float | Durations]:
    return {(one.name, *one.labels): one.value for one in times.samples()}


def count(found: float | Durations) -> tuple[float, float]:
    assert isinstance(found, Durations)
    return found.buckets()[-1][1], round(found.total_s, 3)


def test_requests_wait_until_their_record_is_acknowledged() -> None:
    times = LatencyMetrics()
    times.arrived(4, 3, 10.0)
    times.arrived(5, 0, 10.0)
    times.arrived(7, 1, 10.5)
    assert values(times)[("ringlog_validator_waiting_requests",)] == 4
    times.sent(10.5)
    times.sent(10.6)
    times.committed(11.0)
    times.committed(12.0)
    for outcome in ("applied", "applied", "rejected"):
        times.settled(outcome)
    times.acknowledged(5, 11.0)
    times.refused("not_authorized")
    found = values(times)
    assert [found[("ringlog_validator_refused", one)] for one in SENDER_CODES] == [0, 1, 0]
    assert found[("ringlog_validator_waiting_requests",)] == 1
    assert [found[("ringlog_validator_answers", one)] for one in ("applied", "rejected", "expired")] == [2, 1, 0]
    assert count(found[("ringlog_validator_answer_seconds",)]) == (2, 2.0)
    assert count(found[("ringlog_validator_commit_seconds",)]) == (1, 0.5), "from the first append to the outcomes"
    times.acknowledged(7, 12.0)
    assert values(times)[("ringlog_validator_waiting_requests",)] == 0


# An agent reports an invalid state and continues.


def _later(state: ClusterState, epochs: int) -> ClusterState:
    return applied(state, *[Noop()] * epochs)


def _rested(sound: InvariantMonitor, state: ClusterState) -> None:
    for _ in range(BEATS):
        sound.check(state)


def test_a_valid_state_is_not_reported() -> None:
    sound = InvariantMonitor("keeper")
    with capture_logs() as logs:
        sound.check(_later(founded(), 3))
    assert (sound.alarm, logs) == ("", [])


def test_an_invalid_state_is_reported_until_it_is_fixed() -> None:
    sound = InvariantMonitor("keeper")
    state = applied(founded(), node(1))
    broken = replace(state, nodes=state.nodes.set(NODES[0], replace(state.nodes[NODES[0]], tokens=(5,))))
    with capture_logs() as logs:
        sound.check(broken)
    assert sound.alarm == "invariant_broken: nodes at epoch 2: n1 is none, but has 1 tokens"
    assert [one["invariant"] for one in logs] == ["nodes", "tokens"]
    assert logs[0]["event"] == "invariant_broken"
    assert logs[0]["promise"]
    again = _later(broken, EPOCHS)
    _rested(sound, _later(broken, EPOCHS - 1))
    assert "epoch 2" in sound.alarm
    sound.check(again)
    assert f"epoch {again.epoch}" in sound.alarm
    sound.check(_later(state, 2 * EPOCHS))
    assert sound.alarm, "many epochs, but no time has passed"
    _rested(sound, _later(state, 2 * EPOCHS))
    assert sound.alarm == ""

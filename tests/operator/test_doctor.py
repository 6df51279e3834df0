"""``ringlog doctor`` without a broker: errors of checks, and the order of verdicts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from immutables import Map

from ringlog.client.cdc.dead_letters import LetterCounts, LetterSummary
from ringlog.kernel.model.state import EMPTY_STATE, CdcWriter
from ringlog.kernel.values import SECOND_US, replace
from ringlog.log.errors import LogUnavailable
from ringlog.operator import doctor
from ringlog.operator.doctor import CHECKS, FAIL, LOCAL, OK, SKIPPED, WARN, Finding, Site, examine, worst
from ringlog.protocol.balancer.load_book import ReceivedLoad
from ringlog.protocol.roles import ROLES
from ringlog.runtime.clock import SystemClock
from ringlog.runtime.context import ClusterContext
from ringlog.wire.records import AgentStatus, NodeLoad
from tests.console.console_world import large_state

CONTEXT = ClusterContext("127.0.0.1:1", "c", "")


def _no_state(_: ClusterContext) -> object:
    raise LogUnavailable("no broker", "start it")


def test_without_a_broker_only_local_checks_run() -> None:
    found = list(examine(CONTEXT, _no_state))  # type: ignore[arg-type]
    by_check = {one.check: one for one in found}
    assert list(by_check) == list(CHECKS)
    assert by_check["broker"].verdict == FAIL
    assert by_check["broker"].fixes
    assert {name for name, one in by_check.items() if one.verdict == SKIPPED} == set(CHECKS) - LOCAL


def test_lost_entries_are_named_by_the_agents_that_halted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor has no memory of the log. It shows the codes of the agents."""
    why = "log_forked: epoch 9 of shop has another state"
    said = {role: AgentStatus(role, "i", 1, 9, "halted", SystemClock().now_us(), why=why) for role in ROLES}
    monkeypatch.setattr(doctor, "read_statuses", lambda *_: said)
    monkeypatch.setattr(doctor, "CHECKS", {"agents": CHECKS["agents"]})
    (found,) = examine(CONTEXT, lambda _: EMPTY_STATE)
    assert found.verdict == FAIL
    assert all(f"{role}: halted: log_forked" in found.text for role in ROLES)


@pytest.mark.parametrize(
    ("of_node", "of_agents", "found"),
    [
        ("2", "2", [(OK, "release 2")]),
        ("2", "", [(OK, "release 2")]),
        ("1", "2", [(WARN, "different releases: 1 (4 nodes, 0 agents), 2 (0 nodes, 5 agents)")]),
    ],
)
def test_releases_of_nodes_and_active_agents_are_compared(
    monkeypatch: pytest.MonkeyPatch, of_node: str, of_agents: str, found: list[tuple[str, str]]
) -> None:
    state, now = large_state(4), SystemClock().now_us()
    state = replace(state, nodes=Map({name: replace(one, release=of_node) for name, one in state.nodes.items()}))
    said = {role: AgentStatus(role, "i", 1, 9, "active", now, release=of_agents) for role in ROLES}
    said["keeper"] = replace(said["keeper"], state="halted", release="0")
    monkeypatch.setattr(doctor, "read_statuses", lambda *_: said)
    monkeypatch.setattr(doctor, "CHECKS", {"versions": CHECKS["versions"]})
    seen = [(one.verdict, one.text) for one in examine(CONTEXT, lambda _: state) if "tablets" not in one.text]
    assert seen == found


def test_machines_of_nodes_are_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    state, now = large_state(4), SystemClock().now_us()
    ends = {"n1": now + 3 * 86_400 * SECOND_US, "n2": now - 1, "n3": now + 30 * 86_400 * SECOND_US, "n4": None}
    records = [
        ReceivedLoad(NodeLoad(state.node_names[name], now, None, (), (), 1 << 30 if end is None else 1 << 40, end), now)
        for name, end in ends.items()
    ]
    monkeypatch.setattr(doctor, "read_load_reports", lambda *_: records)
    monkeypatch.setattr(doctor, "CHECKS", {"nodes": CHECKS["nodes"]})
    *found, registered = examine(CONTEXT, lambda _: state)
    assert [(one.verdict, one.text.partition(" ends in ")[0]) for one in found] == [
        (FAIL, "the certificate of node n2 has expired"),
        (WARN, "the certificate of node n1"),
        (WARN, "the disk of node n4 has 1.0 GiB left"),
    ]
    assert found[0].fixes == ("renew it: ringlog cluster certificates FOLDER --node n2",)
    assert registered == Finding("nodes", OK, "4 nodes registered")


def test_a_writer_that_stopped_and_dead_letters_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    now, counts = SystemClock().now_us(), LetterCounts()
    for number, is_resent in enumerate((False, True, False)):
        counts.add(LetterSummary(number, now, "type_mismatch", "", "app.t", f"m/0/{number}", now, "w", is_resent))
    counts.add(LetterSummary(3, now, "unknown_table", "", "app.u", "m/0/3", now, "w", is_resent=True))
    writers = {
        "asleep": writer(now - 600 * SECOND_US),
        "fenced": replace(writer(now - 600 * SECOND_US), fenced=7),
        "fresh": writer(0),
        "spark": writer(now - 30 * SECOND_US),
    }
    monkeypatch.setattr(doctor, "recent_counts", lambda *_: counts)
    monkeypatch.setattr(doctor, "CHECKS", {"cdc": CHECKS["cdc"]})
    state = replace(EMPTY_STATE, writers=Map(writers))
    found = list(examine(CONTEXT, lambda _: state))
    assert "ringlog cdc fence --writer asleep --reason" in found[0].fixes[0]
    assert [(one.verdict, one.text) for one in found] == [
        (WARN, "writer asleep: its write lease ended 10 min ago"),
        (WARN, "recent dead letters: 2 type_mismatch"),
        (OK, "3 writers"),
    ]
    assert counts.by_reason() == {"type_mismatch": 3, "unknown_table": 1}


def writer(horizon: int) -> CdcWriter:
    return CdcWriter("w", "i", 1, horizon, 0, 0, (), ())


def test_an_error_of_a_check_hides_no_other_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def fine(_: Site) -> Iterator[doctor.Found]:
        yield OK, "fine", ()

    def broken(site: Site) -> Iterator[doctor.Found]:
        yield WARN, str(site.state.epoch), ()

    monkeypatch.setattr(doctor, "CHECKS", {"broker": fine, "log": broken, "nodes": broken, "disk": fine})
    found = list(examine(CONTEXT, _no_state))  # type: ignore[arg-type]
    assert found == [
        Finding("broker", OK, "fine"),
        Finding("log", FAIL, "log_unavailable: no broker", ("start it",)),
        Finding("nodes", SKIPPED, "not examined after the failure above"),
        Finding("disk", OK, "fine"),
    ]
    assert worst(found) == FAIL
    assert worst([Finding("a", WARN, ""), Finding("b", SKIPPED, ""), Finding("c", OK, "")]) == WARN
    assert worst([]) == OK

"""``ringlog doctor`` without a broker: errors of checks, and the order of verdicts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ringlog.log.errors import LogUnavailable
from ringlog.operator import doctor
from ringlog.operator.doctor import CHECKS, FAIL, LOCAL, OK, SKIPPED, WARN, Finding, Site, examine, worst
from ringlog.runtime.context import ClusterContext

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

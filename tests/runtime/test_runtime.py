"""Clock, logs and settings of a process."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from pydantic import ValidationError

from ringlog.runtime.clock import ManualClock, SystemClock
from ringlog.runtime.folders import default_data_dir
from ringlog.runtime.logs import setup_logs
from ringlog.runtime.settings import Settings


@pytest.fixture
def fresh_logs() -> Iterator[None]:
    """Leave the logs of other tests as they were."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def test_a_manual_clock_moves_when_told() -> None:
    clock = ManualClock(1_000_000)
    clock.advance(2.5)
    assert (clock.now_us(), clock.monotonic()) == (3_500_000, 3.5)
    with pytest.raises(ValueError, match="seconds=-1"):
        clock.advance(-1)


def test_the_system_clock_does_not_go_back() -> None:
    clock = SystemClock()
    first, start = clock.now_us(), clock.monotonic()
    assert first > 1_700_000_000_000_000, "microseconds"
    assert clock.monotonic() >= start


@pytest.mark.usefixtures("fresh_logs")
def test_logs_for_machines_are_one_json_object_a_line() -> None:
    out = io.StringIO()
    setup_logs("json", "info", out)
    log = structlog.get_logger("test")
    log.debug("too_quiet")
    log.warning("entry_stale", offset=7)
    (line,) = out.getvalue().splitlines()
    event = json.loads(line)
    assert (event["event"], event["level"], event["offset"]) == ("entry_stale", "warning", 7)


@pytest.mark.usefixtures("fresh_logs")
def test_logs_for_people_have_no_colours_in_a_file() -> None:
    out = io.StringIO()
    setup_logs("console", "warning", out)
    structlog.get_logger("test").warning("replica_halted", code="log_replaced")
    assert "replica_halted" in out.getvalue()
    assert "\x1b" not in out.getvalue()
    with pytest.raises(ValueError, match="level is one of"):
        setup_logs("console", "loud")


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("RINGLOG_CLUSTER", "orders")
    monkeypatch.setenv("RINGLOG_SESSION_TIMEOUT_S", "2")
    settings = Settings()
    assert (settings.cluster, settings.session_timeout_s) == ("orders", 2.0)
    assert settings.data_dir == default_data_dir() == tmp_path / "ringlog"
    assert Settings(cluster="other").cluster == "other", "what is given goes before the environment"
    monkeypatch.setenv("RINGLOG_CLUSTER", "not a name!")
    with pytest.raises(ValidationError, match="cluster"):
        Settings()

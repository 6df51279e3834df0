"""Logs and settings of a process."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from ringlog.runtime.clock import ManualClock
from ringlog.runtime.folders import default_data_dir
from ringlog.runtime.logs import SELDOM_S, Seldom, setup_logs
from ringlog.runtime.settings import BadProcessSettings, ProcessSettings


@pytest.fixture
def fresh_logs() -> Iterator[None]:
    """Leave the logs of other tests as they were."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


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


def test_logs_that_nobody_has_set_up_leave_standard_output_to_the_answer() -> None:
    """Before, a warning stood in front of what ``--json`` printed."""
    program = "from ringlog.runtime.logs import get_logger as log; log('test').warning('passed_over'); print(7)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)
    assert ended.stdout == "7\n"
    assert "passed_over" in ended.stderr


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
    monkeypatch.setenv("RINGLOG_INSECURE", "")
    settings = ProcessSettings()
    assert (settings.cluster, settings.session_timeout_s, settings.insecure) == ("orders", 2.0, False)
    assert settings.data_dir == default_data_dir() == tmp_path / "ringlog"
    assert ProcessSettings(cluster="other").cluster == "other", "what is given goes before the environment"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CLUSTER", "not a name!"),
        ("INSECURE", "perhaps"),
        ("LOG_FORMAT", "xml"),
        ("METRICS_HOST", ""),
        ("METRICS_PORT", "65001"),
        ("METRICS_PORT", "a"),
        ("SESSION_TIMEOUT_S", "nan"),
    ],
)
def test_a_variable_that_cannot_be_used_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"RINGLOG_{name}", value)
    with pytest.raises(BadProcessSettings, match=f"^RINGLOG_{name}: [A-Z]"):
        ProcessSettings()


@pytest.mark.usefixtures("fresh_logs")
def test_what_strangers_send_does_not_fill_a_log() -> None:
    out, clock = io.StringIO(), ManualClock()
    setup_logs("json", "info", out)
    seldom = Seldom(structlog.get_logger("test"), clock.monotonic)
    for number in range(1_600):
        seldom.warn("unreadable_ack", offset=number)
    seldom.warn("unreadable_request", offset=7)
    clock.advance(SELDOM_S)
    seldom.warn("unreadable_ack", offset=1_600)
    first, other, again = (json.loads(line) for line in out.getvalue().splitlines())
    assert (first["offset"], first["event"], "so_far" in first) == (0, "unreadable_ack", False)
    assert other["event"] == "unreadable_request"
    assert (again["offset"], again["since_the_last"], again["so_far"]) == (1_600, 1_600, 1_601)


class Written(io.StringIO):
    """Keeps what came in one write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []

    def write(self, text: str) -> int:
        self.writes.append(text)
        return super().write(text)


@pytest.mark.usefixtures("fresh_logs")
def test_a_line_is_written_with_its_end() -> None:
    """Else lines of processes that share a file run into one another."""
    stream = Written()
    setup_logs("json", stream=stream)
    structlog.get_logger("t").warning("happened", n=1)
    (line,) = stream.writes
    assert json.loads(line)["event"] == "happened"
    assert line.endswith("}\n")

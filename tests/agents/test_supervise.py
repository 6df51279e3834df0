"""Environment and signals that agent processes receive from their supervisor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ringlog.agents.exits import CRASHED, HALTED
from ringlog.agents.supervise import _env, _started
from ringlog.protocol.roles import ROLES
from ringlog.runtime.settings import ProcessSettings


def test_agents_use_only_the_settings_of_their_supervisor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("RINGLOG_DELAYS", "RINGLOG_KAFKA_CONFIG", "RINGLOG_METRICS_PORT"):
        monkeypatch.delenv(name, raising=False)
    settings = ProcessSettings(cluster="c", data_dir=tmp_path)
    told = _env(settings, "keeper")
    assert "None" not in told.values()
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert ProcessSettings() == settings
    monkeypatch.setenv("RINGLOG_KAFKA_CONFIG", "")
    assert ProcessSettings() == settings
    assert _env(ProcessSettings(kafka_config=tmp_path / "f"), "keeper")["RINGLOG_KAFKA_CONFIG"] == str(tmp_path / "f")


def test_each_role_has_its_own_status_port() -> None:
    settings = ProcessSettings(metrics_port=9400)
    assert [_env(settings, role)["RINGLOG_METRICS_PORT"] for role in ROLES] == [
        str(9400 + place) for place in range(len(ROLES))
    ]
    assert "RINGLOG_METRICS_PORT" not in _env(ProcessSettings(metrics_port=None), "validator")


def test_only_the_supervisor_handles_ctrl_c() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    interrupted = "import signal; signal.raise_signal(signal.SIGINT); signal.raise_signal(signal.SIGTERM)"
    assert _started([sys.executable, "-c", interrupted], dict(os.environ)).wait() == -signal.SIGTERM
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_an_agent_reports_an_invalid_variable_and_halts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGLOG_METRICS_PORT", "a")
    ended = subprocess.run(
        [sys.executable, "-m", "ringlog.agents", "keeper"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == HALTED
    assert "not started: bad_process_settings: RINGLOG_METRICS_PORT: " in ended.stderr
    assert "Traceback" not in ended.stderr


# A cache writer with an invalid Redis or archive address stops before it takes over the role, without a connection.


SECRET = "the-secret"


@pytest.mark.parametrize(
    ("variable", "value", "status", "code"),
    [
        ("RINGLOG_REDIS_URL", f"redis+sentinel://:{SECRET}@127.0.0.1", HALTED, "bad_redis_url"),
        ("RINGLOG_ARCHIVE", f"nothing-like-it://me:{SECRET}@h/a", HALTED, "archive_place_unknown"),
        ("RINGLOG_ARCHIVE", f"ftp://me:{SECRET}@127.0.0.1:1/a", CRASHED, "archive_unavailable"),
    ],
)
def test_a_wrong_setting_stops_the_cache_writer(
    tmp_path: Path, variable: str, value: str, status: int, code: str
) -> None:
    places = {"RINGLOG_DATA_DIR": str(tmp_path), "RINGLOG_BOOTSTRAP_SERVERS": "127.0.0.1:1", variable: value}
    kept = {name: given for name, given in os.environ.items() if not name.startswith("RINGLOG_")}
    kept["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-m", "ringlog.agents", "keeper"]
    ended = subprocess.run(command, env=kept | places, capture_output=True, text=True, check=False)
    said = ended.stdout + ended.stderr
    assert (ended.returncode, f"not started: {code}: " in said) == (status, True), said
    assert SECRET not in said
    assert list(tmp_path.iterdir()) == []

"""What the processes of agents are told by their supervisor."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringlog.agents.supervise import _env
from ringlog.runtime.settings import ProcessSettings


def test_agents_have_the_settings_of_their_supervisor_and_none_that_is_not_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("RINGLOG_DELAYS", "RINGLOG_KAFKA_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    settings = ProcessSettings(cluster="c", data_dir=tmp_path)
    told = _env(settings)
    assert "None" not in told.values()
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert ProcessSettings() == settings
    monkeypatch.setenv("RINGLOG_KAFKA_CONFIG", "")
    assert ProcessSettings() == settings
    assert _env(ProcessSettings(kafka_config=tmp_path / "f"))["RINGLOG_KAFKA_CONFIG"] == str(tmp_path / "f")

"""Credentials that cannot be written down are not made, and a file that has some is not lost for nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from ringlog.cli.main import app

NOWHERE = ("--bootstrap", "127.0.0.1:1", "--cluster", "none", "--listener", "127.0.0.1:1")


def granted(to: Path) -> tuple[int, str]:
    """Exit status and what was said; where the broker is asked, it does not answer."""
    said = CliRunner().invoke(app, ["cdc", "grant", "--writer", "w", "--to", str(to), *NOWHERE])
    return said.exit_code, said.output


def test_the_file_comes_before_the_broker(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for to in (tmp_path, tmp_path / "missing" / "credentials", tmp_path / "file" / "credentials"):
        code, said = granted(to)
        assert (code, "bad_option" in said) == (1, True), said


def test_without_an_answer_no_file_is_made_and_an_old_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringlog.log.rights.TIMEOUT_S", 0.5)
    old = tmp_path / "old"
    old.write_text("sasl.username=w\n")
    for to in (old, tmp_path / "new"):
        code, said = granted(to)
        assert (code, "log_unavailable" in said) == (1, True), said
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert old.read_text() == "sasl.username=w\n"

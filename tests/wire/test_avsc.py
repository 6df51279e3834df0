"""The schemas of commands are those of their declarations, byte for byte."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from ringlog.kernel.registry import COMMANDS
from ringlog.wire.avsc import main, text_of

FOLDER = files("ringlog_schemas") / "commands"


@pytest.mark.parametrize("kind", COMMANDS)
def test_a_schema_is_made_of_the_command_s_declaration(kind: str) -> None:
    written = (FOLDER / f"{kind}.avsc").read_text(encoding="utf-8")
    assert written == text_of(kind), "run: python -m ringlog.wire.avsc schemas/ringlog_schemas"


def test_each_schema_is_that_of_a_command() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {f"{kind}.avsc" for kind in COMMANDS}


def test_the_generator_writes_what_is_missing_or_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "commands"
    folder.mkdir()
    main(str(tmp_path))
    assert len(capsys.readouterr().out.splitlines()) == len(COMMANDS)
    (folder / "Join.avsc").write_text("{}")
    main(str(tmp_path))
    assert capsys.readouterr().out == f"written: {folder / 'Join.avsc'}\n"
    assert (folder / "Join.avsc").read_text() == text_of("Join")

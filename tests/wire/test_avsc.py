"""Schemas that are made of declarations are equal to them, byte for byte."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from ringlog.kernel.registry import COMMANDS
from ringlog.wire.avsc import DECLARED, file_of, main, text_of

ROOT = files("ringlog_schemas")


@pytest.mark.parametrize("full_name", DECLARED)
def test_a_schema_is_made_of_the_declaration(full_name: str) -> None:
    written = (ROOT / file_of(full_name)).read_text(encoding="utf-8")
    assert written == text_of(full_name), "run: python -m ringlog.wire.avsc schemas/ringlog_schemas"


def test_each_schema_of_the_commands_is_that_of_one() -> None:
    assert {path.name for path in (ROOT / "commands").iterdir()} == {f"{kind}.avsc" for kind in COMMANDS}


def test_the_generator_writes_what_is_missing_or_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for family in ("commands", "changes"):
        (tmp_path / family).mkdir()
    main(str(tmp_path))
    assert len(capsys.readouterr().out.splitlines()) == len(DECLARED) > 40
    join = tmp_path / "commands" / "Join.avsc"
    join.write_text("{}")
    main(str(tmp_path))
    assert capsys.readouterr().out == f"written: {join}\n"
    assert join.read_text() == text_of("ringlog.commands.Join")

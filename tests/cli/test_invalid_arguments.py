"""Invalid arguments are refused before a broker is asked, and never with a traceback."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ringlog.cli.main import app
from ringlog.cli.shared.connection import seconds_of
from ringlog.files import INPUT_BYTES_MAX, FileUnusable, write_private
from ringlog.operator.history.log_lines import write_dump

LARGE = "9" * 5_000
"""A number with more digits than allowed."""


@pytest.mark.parametrize(
    "words",
    [
        *(["submit", "{}", "--timeout", word] for word in ("nan", "inf", "1e300", "-1", "")),
        *(["data", "read", "ks", "k", "--timeout", word] for word in ("nan", "inf", "1e300")),
        ["ddl", "-", "--timeout", "nan"],
        ["node", "join", "n1", "--timeout", "inf"],
        ["sim", "run", "--seconds", "nan"],
        ["sim", "delay", "inf"],
        ["stack", "logs", "-n", "9" * 20],
        ["log", "--last", "9" * 20],
        ["service", "size", LARGE],
        ["data", "rows", "ks.t", "1", "--at", f"0:{LARGE}"],
        ["sim", "run", "--seeds", LARGE],
        ["sim", "run", "--fresh", "9" * 20],
        ["sim", "run", "--jobs", "9" * 20],
        ["cdc", "import-debezium", "--topic", "t", "--group", " "],
        ["audit", "--base", "-1"],
    ],
)
def test_unbounded_numbers_and_empty_names(words: list[str]) -> None:
    cluster = [] if words[0] in ("sim", "stack") else ["--bootstrap", "127.0.0.1:1", "--cluster", "c"]
    ended = CliRunner().invoke(app, [*words, *cluster])
    assert isinstance(ended.exception, SystemExit), ended.exception
    assert (ended.exit_code, ended.stdout) == (2, "")


def test_seconds_match_the_typed_value() -> None:
    assert [seconds_of(text) for text in ("0", "0.5", "1e9")] == [0.0, 0.5, 1e9]


def test_only_a_file_is_replaced(tmp_path: Path) -> None:
    """A root process once replaced ``/dev/stdout`` for every process of the machine."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    link = tmp_path / "link"
    link.symlink_to(pipe)
    for place in (pipe, link, tmp_path, Path()):
        with pytest.raises(FileUnusable):
            write_private(place, "text")
        with pytest.raises(FileUnusable):
            write_dump(place, ())
    assert sorted(one.name for one in tmp_path.iterdir()) == ["link", "pipe"]
    assert pipe.is_fifo()
    write_private(tmp_path / "new", "text")
    assert write_dump(tmp_path / "new", ()) == 0


def test_credentials_go_into_a_file(tmp_path: Path) -> None:
    words = ["cdc", "grant", "--writer", "w", "--listener", "127.0.0.1:1", "--bootstrap", "127.0.0.1:1"]
    for place in ("", str(tmp_path)):
        ended = CliRunner().invoke(app, [*words, "--cluster", "c", "--to", place])
        assert (ended.exit_code, ended.stderr.split(":")[0]) == (1, "bad_option")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["table", "create", "/dev/zero"], "bad_json"),
        (["ddl", "/dev/zero"], "bad_ddl"),
        (["rehearse", "/dev/zero"], "bad_file"),
        (["rehearse", "--from", "/dev/zero", "/dev/null"], "bad_dump"),
        (["balance", "chart", "--from", "/dev/zero", "picture.svg"], "bad_dump"),
        (["sim", "replay", "/dev/zero"], "no_script"),
        (["sim", "quorums", "/dev/zero"], "bad_file"),
    ],
)
def test_an_endless_file_is_not_read_completely(words: list[str], code: str, tmp_path: Path) -> None:
    """An endless file once used all memory of the machine."""
    cluster = [] if words[0] in ("sim", "rehearse") else ["--bootstrap", "127.0.0.1:1", "--cluster", "c"]
    here = [str(tmp_path / word) if word.endswith(".svg") else word for word in words]
    ended = CliRunner().invoke(app, [*here, *cluster])
    assert (ended.exit_code, ended.stdout, ended.stderr.split(":")[0]) == (2, "", code), ended.exception
    assert f"has more than {INPUT_BYTES_MAX:,} bytes" in ended.stderr


def test_an_endless_schema_is_not_read_completely() -> None:
    words = ["cdc", "import-debezium", "--topic", "t", "--schema", "1=/dev/zero"]
    ended = CliRunner().invoke(app, [*words, "--bootstrap", "127.0.0.1:1", "--cluster", "c"])
    assert (ended.exit_code, ended.stdout, ended.stderr.split(":")[0]) == (1, "", "bad_option"), ended.exception
    assert f"has more than {INPUT_BYTES_MAX:,} bytes" in ended.stderr

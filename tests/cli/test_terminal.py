"""Output on a terminal escapes control characters of foreign text, for every command."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from rich.table import Table
from rich.text import Text

import ringlog.cli.main as cli
from ringlog.cli.shared import connection, tables
from ringlog.cli.shared.connection import SafeConsole, errors, fail, out
from ringlog.runtime.logs import get_logger, setup_logs
from tests.tidy.files import ROOT

HOSTILE = "a\x1b]52;c;ZXZpbA==\x07b\x1b[8mc\x9bd\u202e\r\x08"


def table() -> Table:
    made = Table("name", HOSTILE)
    made.add_row(HOSTILE, Text(HOSTILE, "red"))
    return made


@pytest.mark.parametrize(
    "shown",
    [HOSTILE, Text(HOSTILE), Text.assemble((HOSTILE, "red"), f": {HOSTILE}"), table()],
    ids=lambda one: type(one).__name__,
)
@pytest.mark.parametrize("is_terminal", [False, True])
def test_no_control_character_of_a_text_is_printed(shown: object, is_terminal: bool) -> None:
    stream = io.StringIO()
    SafeConsole(file=stream, force_terminal=is_terminal, no_color=True, width=400).print(shown)
    printed = re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue()) if is_terminal else stream.getvalue()
    assert [each for each in printed if not each.isprintable() and each != "\n"] == []
    assert "\N{REPLACEMENT CHARACTER}" in printed


def test_lines_and_styles_stay() -> None:
    stream = io.StringIO()
    SafeConsole(file=stream, force_terminal=True, color_system="standard").print(Text("one\ntwo", "red"))
    assert stream.getvalue() == "\x1b[31mone\x1b[0m\n\x1b[31mtwo\x1b[0m\n"


def test_a_readable_log_escapes_control_characters() -> None:
    stream = io.StringIO()
    setup_logs(stream=stream)
    get_logger("ringlog").warning("refused", why=HOSTILE)
    line = stream.getvalue()
    assert "\x1b" not in line
    assert r"\x1b]52" in line


def test_every_command_prints_escaped_text() -> None:
    """The stack's own commands print no foreign text."""
    texts = {path: path.read_text(encoding="utf-8") for path in (ROOT / "services").rglob("*.py")}
    made = [path for path, text in texts.items() if "rich.console import" in text and " Console(" in text]
    assert made == [Path(ROOT, "services/ringlog/stack/cli.py")]


# Foreign text is printed literally: brackets are not markup, and a missing character is printed as its number.


@pytest.mark.parametrize("text", ["[fe80::1]:7000", "[red]", "[/x] is no end", "[bold]n1[/bold]"])
def test_brackets_are_shown(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    tables.show_table(("address",), [(text,)])
    out.print(f"at {text}")
    errors.print(f"at {text}")
    with pytest.raises(typer.Exit):
        fail("bad_usage", text)
    shown = capsys.readouterr()
    assert shown.out.count(text) == 2
    assert shown.err == f"at {text}\nbad_usage: {text}\n"


ID, BROKERS = "1d84b9c2-6f0e-4a3b-9c55-0d2f8a7e6b11", "10.10.20.1:39091,10.10.20.2:39092"


@pytest.mark.parametrize(
    ("columns", "row", "shown"),
    [
        (("", "cluster", "id", "broker", "trust"), ("in use", "shop", ID, BROKERS, "/t" * 40), [ID[:8], BROKERS]),
        (("node", "state", "tokens", "address", "id"), ("n1", "up", "8", BROKERS, ID), ["8", BROKERS, ID[:8]]),
        (
            ("request", "stage", "waits for"),
            (ID, "write_both_read_old", "n2 " * 60),
            [ID, f"request {ID} waits for: n2 n2"],
        ),
        (("setting", "meaning"), ("a", f"{'word ' * 40}{ID}{ID}"), [f"{ID}{ID}"]),
    ],
    ids=["drops columns", "shortens ids", "long text below", "wraps text"],
)
def test_ids_and_addresses_are_readable_at_80_columns(
    columns: tuple[str, ...], row: tuple[str, ...], shown: list[str]
) -> None:
    console = SafeConsole(file=io.StringIO(), width=80)
    console.print(tables.draw_table(columns, [row], width=80), soft_wrap=True)
    printed = console.file.getvalue()
    assert [text for text in shown if text not in printed] == []
    assert [line for line in printed.splitlines() if len(line) > 80 and ": " not in line] == []
    assert ("not shown: trust" in printed) is ("trust" in columns)


def test_the_variable_sets_the_width_of_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for given in ("80", "0", "wide"):
        monkeypatch.setenv("COLUMNS", given)
        found += [connection.width_of(False), connection.width_of(True)]
    assert found == [80, 80, connection.WIDE, None, connection.WIDE, None]


def run(*words: str, alphabet: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONIOENCODING": alphabet, "PYTHONUTF8": "0"}
    command = [sys.executable, "-m", "ringlog.cli", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_missing_character_is_shown_as_its_number(tmp_path: Path) -> None:
    (tmp_path / "r\u00fcgen.json").write_text("{")
    ended = run("sim", "rules", "--delays", str(tmp_path), alphabet="ascii")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "ignored rule: r\\xfcgen.json" in ended.stdout


def test_invalid_text_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Such bytes come as lone surrogates; Kafka's client aborts on them."""
    monkeypatch.setattr(sys, "argv", ["ringlog", "rehearse", os.fsdecode(b"w\xff")])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert capsys.readouterr() == ("", "bad_text: 'w\\udcff' is not text in UTF-8\n")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_the_number_of_a_closed_stream_is_not_reused(closed: str) -> None:
    """The next file that a command opens does not get the number of the closed stream."""
    code = "import os, sys; from ringlog.cli import main; main._streams(); sys.exit(os.open(os.devnull, os.O_RDONLY))"
    command = f'exec "$0" -c "{code}" {closed}'
    ended = subprocess.run(["sh", "-c", command, sys.executable], capture_output=True, text=True, check=False)
    assert ended.returncode == 3, ended.stderr
    child = "[sys.executable, '-c', 'import os; os._exit(os.open(os.devnull, os.O_RDONLY))']"
    code = f"import subprocess, sys; from ringlog.cli import main; main._streams(); sys.exit(subprocess.call({child}))"
    command = f'exec "$0" -c "{code}" {closed}'
    ended = subprocess.run(["sh", "-c", command, sys.executable], capture_output=True, text=True, check=False)
    assert ended.returncode == 3, "nor does a file that a child process opens"
    ended = subprocess.run(
        ["sh", "-c", f'exec "$0" -m ringlog.cli cluster --help {closed}', sys.executable],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")

"""What others wrote is shown as it is: brackets are no markup, and a terminal that lacks a sign gets its number."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import typer

import ringlog.cli.main as cli
from ringlog.cli import verbs
from ringlog.cli.connection import errors, fail, out


@pytest.mark.parametrize("text", ["[fe80::1]:7000", "[red]", "[/x] is no end", "[bold]n1[/bold]"])
def test_brackets_are_shown(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    verbs.show_table(("address",), [(text,)])
    out.print(f"at {text}")
    errors.print(f"at {text}")
    with pytest.raises(typer.Exit):
        fail("bad_usage", text)
    shown = capsys.readouterr()
    assert shown.out.count(text) == 2
    assert shown.err == f"at {text}\nbad_usage: {text}\n"


def run(*words: str, alphabet: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONIOENCODING": alphabet, "PYTHONUTF8": "0"}
    command = [sys.executable, "-m", "ringlog.cli", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_terminal_that_lacks_a_sign_shows_its_number() -> None:
    ended = run("status", "--help", alphabet="ascii")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "host:port,\\u2026" in ended.stdout


def test_bytes_that_are_no_text_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They come as halves of signs; Kafka's client, to name one, is ended by them."""
    monkeypatch.setattr(sys, "argv", ["ringlog", "rehearse", os.fsdecode(b"w\xff")])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert capsys.readouterr() == ("", "bad_text: 'w\\udcff' is no text: give it in UTF-8\n")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_stream_that_is_closed_is_none_of_its_files(closed: str) -> None:
    """The file that a command opens next does not get its number."""
    code = "import os, sys; from ringlog.cli import main; main._streams(); sys.exit(os.open(os.devnull, os.O_RDONLY))"
    command = f'exec "$0" -c "{code}" {closed}'
    ended = subprocess.run(["sh", "-c", command, sys.executable], capture_output=True, text=True, check=False)
    assert ended.returncode == 3, ended.stderr
    child = "[sys.executable, '-c', 'import os; os._exit(os.open(os.devnull, os.O_RDONLY))']"
    code = f"import subprocess, sys; from ringlog.cli import main; main._streams(); sys.exit(subprocess.call({child}))"
    command = f'exec "$0" -c "{code}" {closed}'
    ended = subprocess.run(["sh", "-c", command, sys.executable], capture_output=True, text=True, check=False)
    assert ended.returncode == 3, "nor does one that a process opens which it starts"
    ended = subprocess.run(
        ["sh", "-c", f'exec "$0" -m ringlog.cli cluster --help {closed}', sys.executable],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")

"""Stories as text: each transcript is typed into the command and must be answered exactly as written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ringlog.cli.main import app
from tests.cli.transcripts import REWRITE, Transcript, read, transcripts
from tests.tidy.files import ROOT

SOURCES = os.pathsep.join(str(ROOT / name) for name in ("services", "streaming", "schemas"))


def rehearse_in_a_process(typed: bytes, hash_seed: str, *arguments: str) -> tuple[bytes, int]:
    """(answers, exit status) of the command as a user runs it."""
    environment = {**os.environ, "PYTHONPATH": SOURCES, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-m", "ringlog.cli", "rehearse", *arguments]
    ended = subprocess.run(command, input=typed, env=environment, capture_output=True, check=False, timeout=120)
    assert ended.stderr == b"", ended.stderr.decode()
    return ended.stdout, ended.returncode


def typed(transcript: Transcript) -> str:
    return "".join(f"{line}\n" for line in transcript.inputs)


@pytest.mark.parametrize("path", transcripts(), ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    transcript = read(path)
    ended = CliRunner().invoke(app, ["rehearse"], input=typed(transcript))
    found = transcript.with_answers(ended.stdout.splitlines(), ended.exit_code)
    if REWRITE:
        path.write_text(found, encoding="utf-8")
    assert found == transcript.text


def test_the_same_bytes_in_processes_with_different_hash_seeds(tmp_path: Path) -> None:
    """All transcripts one after the other, as one plan: many operations, tables and writers in one state."""
    whole = "".join(typed(read(path)) for path in transcripts()).encode()
    plan = tmp_path / "plan"
    plan.write_bytes(whole)
    first, status = rehearse_in_a_process(whole, "1")
    assert rehearse_in_a_process(b"", "2", str(plan)) == (first, status)
    assert first.count(b"\n") == sum(1 for line in whole.splitlines() if line.strip())
    assert status == 2, "one of the transcripts types bad lines"

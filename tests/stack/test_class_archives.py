"""Class archives make a start faster and have no other effect, also if the archive is missing or does not fit."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ringlog.stack import java
from ringlog.stack.java import BROKER, RECORD, archive_options, find_java, options, path_of, recording_path


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java.sys, "prefix", str(tmp_path))
    monkeypatch.delenv(RECORD, raising=False)


def test_without_an_archive_a_jvm_has_no_options_for_one() -> None:
    assert options(BROKER) == archive_options(BROKER) == ()


def test_an_archive_is_written_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RECORD, "1")
    assert options(BROKER)[0] == f"-XX:ArchiveClassesAtExit={recording_path(BROKER)}"
    assert archive_options(BROKER) == (), "a tool records nothing"


def test_a_jvm_starts_silently_with_an_invalid_archive() -> None:
    java = find_java()
    assert java is not None
    path_of(BROKER).parent.mkdir(parents=True)
    path_of(BROKER).write_bytes(b"no archive")
    plain, given = (
        subprocess.run([java.path, *flags, "-version"], capture_output=True, text=True, check=True)
        for flags in ((), options(BROKER))
    )
    assert options(BROKER)
    assert given.stdout == plain.stdout
    assert given.stderr.splitlines()[0] == plain.stderr.splitlines()[0]

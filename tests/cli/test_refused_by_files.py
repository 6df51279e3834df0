"""File system errors become one line with a code; a defect still shows its traceback."""

from __future__ import annotations

import errno
import sys
from pathlib import Path

import pytest

from ringlog.cli import main as program
from ringlog.client.creation.creation import ClusterCreation
from tests.cli.test_commands import nothing_is_known

__all__ = ["nothing_is_known"]

FILE = "a-file"


def ended(words: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the exit status of the whole program."""
    monkeypatch.setattr(sys, "argv", ["ringlog", *words])
    with pytest.raises(SystemExit) as end:
        program.main()
    return int(end.value.code or 0)


@pytest.mark.parametrize("words", [["stack", "up", "--data"], ["demo", "--data"]], ids=" ".join)
@pytest.mark.parametrize("data", ["/proc/ringlog", "/dev/null/x", FILE, f"{FILE}/x"])
def test_a_folder_that_cannot_be_created(
    words: list[str], data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / FILE).touch()
    path = str(tmp_path / data)
    assert ended([*words, path], monkeypatch) == 1
    said = capsys.readouterr().err
    assert said.startswith((f"folder_unusable: {path}: ", f"file_unusable: {path}: "))
    assert len(said.splitlines()) == 1


def test_a_file_as_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / FILE).touch()
    for words in (["stack", "status"], ["stack", "reset", "--yes"]):
        assert ended([*words, "--data", str(tmp_path / FILE)], monkeypatch) == 1
        assert capsys.readouterr().err.startswith(f"file_unusable: {tmp_path / FILE}/settings.json: ")


@pytest.mark.parametrize("page", ["/proc/ringlog.md", f"{FILE}/x", "no-folder/x", "."])
def test_an_unwritable_page_of_planted_bugs_is_refused_before_the_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / FILE).touch()
    monkeypatch.setattr("ringlog_sim.mutants.plant.measure_all", lambda *_: pytest.fail("it measures"))
    assert ended(["sim", "mutants", "chain_not_checked", "--page", str(tmp_path / page)], monkeypatch) == 2
    assert capsys.readouterr().err.startswith(f"bad_file: --page {tmp_path / page}: ")


def test_context_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse() -> None:
        from ringlog.runtime.context import ClusterContext, store_cluster

        store_cluster(ClusterContext("b:1", "c", ""))

    monkeypatch.setenv("XDG_STATE_HOME", "/proc/ringlog")
    monkeypatch.setattr(program, "app", refuse)
    assert ended([], monkeypatch) == 1
    assert capsys.readouterr().err.startswith("folder_unusable: /proc/ringlog/ringlog: ")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "ringlog" / "context.json").mkdir(parents=True)
    assert ended([], monkeypatch) == 1
    assert capsys.readouterr().err.startswith(f"file_unusable: {tmp_path}/ringlog/context.json: ")


@pytest.mark.parametrize(
    "defect", [FileNotFoundError(errno.ENOENT, "No such file", "/a"), OSError(errno.EBADF, "Bad file descriptor")]
)
def test_a_defect_is_not_reported_as_a_full_disk(defect: OSError, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise defect

    monkeypatch.setattr(program, "app", fail)
    with pytest.raises(type(defect), match=str(defect.strerror)):
        program.main()


@pytest.mark.parametrize("folder", ["slip", "empty"])
def test_a_missing_archive_is_not_verified(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The check precedes the broker; a file that is not a segment does not make an archive."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "000000000001-000000000002.segment.7.part").touch()
    place = str(tmp_path / folder)
    where = ["--bootstrap", "127.0.0.1:1", "--cluster", "c"]
    for words in (["log", "verify"], ["audit"]):
        assert ended([*words, *where, "--archive", place], monkeypatch) == 1
        assert capsys.readouterr().err.startswith(f"archive_empty: {place} contains no segment of a log")


def test_a_cluster_is_not_stored(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    founding = ClusterCreation("an-id", "c", "", 0, here=True, copies=1)
    monkeypatch.setattr("ringlog.cli.cluster.app.create_cluster", lambda *_, **__: founding)
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/ringlog")
    assert ended(["cluster", "create", "c", "--bootstrap", "b:1", "--insecure"], monkeypatch) == 1
    said = capsys.readouterr()
    assert said.out.startswith("cluster c created on b:1, id an-id\n")
    assert said.err.startswith("folder_unusable: /proc/ringlog/ringlog: ")

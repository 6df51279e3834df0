"""Logs and settings of a process."""

from __future__ import annotations

import errno
import io
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import structlog

from ringlog.files import (
    STDIN,
    FileUnusable,
    FolderUnusable,
    InputTooLarge,
    default_data_dir,
    private_folder,
    read_input,
    read_lines,
    read_text,
    refused_by_files,
    write_private,
)
from ringlog.runtime.clock import ManualClock
from ringlog.runtime.logs import WARNING_INTERVAL_S, RateLimitedWarnings, setup_logs
from ringlog.runtime.settings import BadProcessSettings, ProcessSettings


@pytest.fixture
def fresh_logs() -> Iterator[None]:
    """Restore the log handlers of other tests."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.mark.usefixtures("fresh_logs")
def test_logs_for_machines_are_one_json_object_a_line() -> None:
    out = io.StringIO()
    setup_logs("json", "info", out)
    log = structlog.get_logger("test")
    log.debug("too_quiet")
    log.warning("entry_stale", offset=7)
    (line,) = out.getvalue().splitlines()
    event = json.loads(line)
    assert (event["event"], event["level"], event["offset"]) == ("entry_stale", "warning", 7)


def test_default_logs_do_not_use_standard_output() -> None:
    """Otherwise a warning precedes the JSON output of ``--json``."""
    program = "from ringlog.runtime.logs import get_logger as log; log('test').warning('passed_over'); print(7)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)
    assert ended.stdout == "7\n"
    assert "passed_over" in ended.stderr


@pytest.mark.usefixtures("fresh_logs")
def test_logs_for_people_have_no_colours_in_a_file() -> None:
    out = io.StringIO()
    setup_logs("console", "warning", out)
    structlog.get_logger("test").warning("replica_halted", code="log_replaced")
    assert "replica_halted" in out.getvalue()
    assert "\x1b" not in out.getvalue()
    with pytest.raises(ValueError, match="level must be one of"):
        setup_logs("console", "loud")


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("RINGLOG_CLUSTER", "orders")
    monkeypatch.setenv("RINGLOG_SESSION_TIMEOUT_S", "2")
    monkeypatch.setenv("RINGLOG_INSECURE", "")
    settings = ProcessSettings()
    assert (settings.cluster, settings.session_timeout_s, settings.insecure) == ("orders", 2.0, False)
    assert settings.data_dir == default_data_dir() == tmp_path / "ringlog"
    assert ProcessSettings(cluster="other").cluster == "other", "an explicit value overrides the environment"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CLUSTER", "not a name!"),
        ("INSECURE", "perhaps"),
        ("LOG_FORMAT", "xml"),
        ("METRICS_HOST", ""),
        ("METRICS_PORT", "65001"),
        ("METRICS_PORT", "a"),
        ("SESSION_TIMEOUT_S", "nan"),
    ],
)
def test_an_invalid_variable_is_reported(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"RINGLOG_{name}", value)
    with pytest.raises(BadProcessSettings, match=f"^RINGLOG_{name}: [A-Z]"):
        ProcessSettings()


@pytest.mark.usefixtures("fresh_logs")
def test_foreign_requests_do_not_fill_a_log() -> None:
    out, clock = io.StringIO(), ManualClock()
    setup_logs("json", "info", out)
    warnings = RateLimitedWarnings(structlog.get_logger("test"), clock.monotonic)
    for number in range(1_600):
        warnings.warn("unreadable_ack", offset=number)
    warnings.warn("unreadable_request", offset=7)
    clock.advance(WARNING_INTERVAL_S)
    warnings.warn("unreadable_ack", offset=1_600)
    first, other, again = (json.loads(line) for line in out.getvalue().splitlines())
    assert (first["offset"], first["event"], "so_far" in first) == (0, "unreadable_ack", False)
    assert other["event"] == "unreadable_request"
    assert (again["offset"], again["since_the_last"], again["so_far"]) == (1_600, 1_600, 1_601)


class Written(io.StringIO):
    """Records each write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []

    def write(self, text: str) -> int:
        self.writes.append(text)
        return super().write(text)


@pytest.mark.usefixtures("fresh_logs")
def test_a_line_is_written_with_its_end() -> None:
    """Otherwise lines of processes that share a file mix."""
    stream = Written()
    setup_logs("json", stream=stream)
    structlog.get_logger("t").warning("happened", n=1)
    (line,) = stream.writes
    assert json.loads(line)["event"] == "happened"
    assert line.endswith("}\n")


# Files that a user names use no more memory than their kind needs.


ENDLESS = Path("/dev/zero")


def test_a_file_is_read_to_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"1\r\n2\n")
    assert read_input(path, 5) == b"1\r\n2\n"
    assert read_text(path, 5) == "1\n2\n"
    with pytest.raises(InputTooLarge, match="it has more than 4 bytes"):
        read_input(path, 4)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"1\r\n2\n")))
    assert read_text(STDIN) == "1\n2\n"


def test_a_line_is_read_to_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"1\r\n22\n3")
    assert list(read_lines(path, 3)) == [b"1\r\n", b"22\n", b"3"]
    with pytest.raises(InputTooLarge, match="a line has more than 2 bytes"):
        list(read_lines(path, 2))


def test_a_device_has_no_end() -> None:
    with pytest.raises(InputTooLarge):
        read_input(ENDLESS, 1_000)
    with pytest.raises(InputTooLarge):
        next(read_lines(ENDLESS, 1_000))


# Stored files are private from their first byte, and every file system error has a code.


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_new_empty_and_own_folders_are_private(tmp_path: Path) -> None:
    empty, own, foreign, everybodys = (tmp_path / name for name in ("empty", "own", "foreign", "everybodys"))
    for folder in (empty, own, foreign, everybodys):
        folder.mkdir()
        folder.chmod(0o755)
    (own / "mark").touch()
    (foreign / "file").touch()
    everybodys.chmod(0o1777)
    private_folder(tmp_path / "a" / "b")
    for folder in (empty, own, foreign, everybodys):
        private_folder(folder, "mark")
    assert [mode(tmp_path / "a" / "b"), mode(empty), mode(own)] == [0o700] * 3
    assert [mode(foreign), mode(everybodys)] == [0o755, 0o1777]
    private_folder(foreign, ours=True)
    assert mode(foreign) == 0o700


def test_a_file_is_replaced_atomically_and_private(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    path.chmod(0o644)
    write_private(path, "after")
    assert (path.read_text(), mode(path), os.listdir(tmp_path)) == ("after", 0o600, ["file"])
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").touch()
    with pytest.raises(FileUnusable, match="folder"):
        write_private(tmp_path / "folder", "x")
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"], "no temporary file remains"


@pytest.mark.parametrize("path", ["/proc/ringlog", "/proc/self/status/x", "/dev/null/x"])
def test_a_failed_folder_creation_reports_path_and_reason(path: str) -> None:
    with pytest.raises(FolderUnusable) as refused:
        private_folder(Path(path))
    assert str(refused.value).startswith(f"{path}: ")
    assert refused.value.code == "folder_unusable"


def test_only_machine_errors_are_reported_as_its_fault() -> None:
    denied = OSError(errno.EROFS, "Read-only file system", "/a/b")
    assert str(refused_by_files(denied)) == "/a/b: Read-only file system"
    assert str(refused_by_files(OSError(errno.ENOSPC, "No space left on device"))) == "No space left on device"
    for defect in (OSError(errno.EBADF, "Bad file descriptor"), OSError(errno.ENOENT, "No such file", "/a")):
        assert refused_by_files(defect) is None
    unusable = FolderUnusable.of(denied, Path("/c"))
    assert refused_by_files(unusable) is unusable

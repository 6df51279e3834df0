"""What a program keeps is closed to others from its first byte on, and what a file system refuses has a code."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from ringlog.private import FileUnusable, FolderUnusable, private_folder, refused_by_files, write_private


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_folder_and_an_empty_one_and_our_own_are_closed(tmp_path: Path) -> None:
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


def test_a_file_is_replaced_whole_and_closed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    path.chmod(0o644)
    write_private(path, "after")
    assert (path.read_text(), mode(path), os.listdir(tmp_path)) == ("after", 0o600, ["file"])
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").touch()
    with pytest.raises(FileUnusable, match="folder"):
        write_private(tmp_path / "folder", "x")
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"], "nothing is left of the try"


@pytest.mark.parametrize("path", ["/proc/ringlog", "/proc/self/status/x", "/dev/null/x"])
def test_a_folder_that_cannot_be_made_says_path_and_reason(path: str) -> None:
    with pytest.raises(FolderUnusable) as refused:
        private_folder(Path(path))
    assert str(refused.value).startswith(f"{path}: ")
    assert refused.value.code == "folder_unusable"


def test_only_what_the_machine_has_to_mend_is_called_its_fault() -> None:
    denied = OSError(errno.EROFS, "Read-only file system", "/a/b")
    assert str(refused_by_files(denied)) == "/a/b: Read-only file system"
    assert str(refused_by_files(OSError(errno.ENOSPC, "No space left on device"))) == "No space left on device"
    for defect in (OSError(errno.EBADF, "Bad file descriptor"), OSError(errno.ENOENT, "No such file", "/a")):
        assert refused_by_files(defect) is None
    unusable = FolderUnusable.of(denied, Path("/c"))
    assert refused_by_files(unusable) is unusable

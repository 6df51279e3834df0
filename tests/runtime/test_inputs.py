"""Files that somebody names take no more memory than their kind may need."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ringlog.runtime.inputs import STDIN, InputTooLarge, read_input, read_lines, read_text

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

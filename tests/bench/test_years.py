"""The life of a log in small: entries, snapshots, archive and truncations, with nothing that grows but the archive."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.files import ROOT


@pytest.mark.soak(
    "tests/log/test_truncation.py, tests/node/test_log_copy.py and tests/log/test_archive.py, each for its part"
)
def test_nothing_but_the_archive_grows(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "bench" / "years.py"), "10000", str(tmp_path), "--every", "500"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    *table, end = done.stdout.splitlines()
    assert end.endswith("; flat")
    assert len(table) == 11
    archive = [float(line.split(" | ")[3]) for line in table[1:]]
    assert archive == sorted(archive)
    assert archive[-1] > archive[0]

"""The benchmark of registers, with few of them: it runs to its end and prints every figure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.tidy.files import ROOT


def test_the_small_version_prints_every_figure(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "bench" / "registers.py"), str(tmp_path), "3000", "0.1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert "MISSED" not in done.stdout or done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0].startswith("plain syncs: ")
    assert [line.split("|")[1].strip() for line in lines[3:7]] == ["1", "4", "16", "64"]
    assert lines[8].startswith("3,000 registers, ")
    told = [line.split("|")[1].strip() for line in lines[12:17]]
    assert told[0] == "nothing else happens"
    assert told[1].startswith("a thread counts")
    assert told[2].startswith("the journal grows and an image is written")
    assert "registers are streamed in" in told[3]
    assert told[4].startswith("the epoch comes by which 1,")

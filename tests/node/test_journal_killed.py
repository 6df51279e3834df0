"""Nodes killed at any moment, also during an image: acknowledged writes survive."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from ringlog.node.registers.frames import FRESH
from ringlog.node.registers.journal import IMAGE, recover
from ringlog.wire.data import Key, RegisterCell, key_of

CHILD = """
import sys
from pathlib import Path
from ringlog.node.registers import frames as framed_file
from ringlog.node.registers import journal
from ringlog.node.hosts.register_host import RegisterHost
from ringlog.wire.data import RegisterCell, key_of
from ringlog.wire.data import WriteRequest
from tests.node.test_register_host import ALONE, NODE

framed_file.SLICE_BYTES = 2_000
host = RegisterHost(NODE, Path(sys.argv[1]), compact_bytes=8_000)
host.adopt(ALONE)
first = int(sys.argv[2])
for number in range(first, first + 100_000):
    key = key_of("shop", b"k%d" % (number % 400))
    cell = RegisterCell(number, b"v" * (number % 300))
    assert host.answered(WriteRequest("", NODE, ALONE.epoch, "", key, cell)).refused == ""
    print(number, flush=True)
"""


def killed(folder: Path, first: int, after: int, in_image: bool) -> int:
    """Kill a node after some writes, or during an image, and return the last acknowledged write."""
    command = [sys.executable, "-c", CHILD, str(folder), str(first)]
    last = first - 1
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            last = int(line)
            if last - first >= after and (not in_image or any(folder.glob(f"*{FRESH}"))):
                break
        child.kill()
        for line in child.stdout:  # Acknowledgements in flight count too.
            last = int(line) if line.endswith("\n") else last
    return last


@pytest.mark.parametrize("seed", [1, 2])
def test_acknowledged_writes_survive_kill_9(tmp_path: Path, seed: int) -> None:
    draw, folder, first, images = Random(seed), tmp_path / "cells", 1, set()
    answered: dict[Key, int] = {}
    for life in range(1, 5):
        last = killed(folder, first, draw.randrange(250), in_image=life % 2 == 0)
        answered |= {key_of("shop", b"k%d" % (number % 400)): number for number in range(first, last + 1)}
        images |= {path.name for path in folder.glob(f"*{IMAGE}")}
        image = recover(folder)[0]
        assert image.start == life
        for key, number in answered.items():
            held = image.cells.get(key)
            assert held is not None, f"write {number} was answered"
            assert held.timestamp >= number
            assert held == RegisterCell(held.timestamp, b"v" * (held.timestamp % 300)), "the value is whole"
        first = last + 10
    assert len(images) > 1, "images were written"

"""What one sync for many writes is worth: acknowledged writes a second of a node's journal, against syncs of the disk.

    python bench/registers.py [FOLDER]

Measured in FOLDER (a temporary one if left out), all in one run: plain syncs a second of a file that grows by a frame
each; then writes a second that ``RegisterHost`` acknowledges, by so many writers that each wait for their answer. The
ratio to the plain syncs is what group commit gains; the first line, one writer, is what the node costs.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

from ringlog.cli.rehearsal import Rehearsal
from ringlog.kernel.state import ClusterState
from ringlog.node.frames import frame
from ringlog.node.register_host import RegisterHost
from ringlog.wire.cells import Cell, key_of

SECONDS = 2.0
WRITERS = (1, 4, 16, 64)
VALUE = b"x" * 100
LINES = (
    '{"command": "RegisterNode", "name": "n1"}',
    '{"command": "Join", "node": "n1", "tokens": [0]}',
    '{"do": "finish"}',
    '{"command": "CreateKeyspace", "name": "ks", "replication": {"strategy": "simple", "factor": 1}}',
)


def one_node() -> ClusterState:
    """A cluster of one node, which replicates everything."""
    rehearsal = Rehearsal()
    for number, line in enumerate(LINES, start=1):
        rehearsal.line(line, number)
    return rehearsal.state


def syncs(folder: Path) -> float:
    """Frames a second, each with a sync of its own."""
    data = frame(VALUE, 0)
    file = os.open(folder / "plain", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    count, end = 0, time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        os.write(file, data)
        os.fdatasync(file)
        count += 1
    os.close(file)
    return count / SECONDS


def writes(host: RegisterHost, epoch: int, writers: int) -> float:
    """Acknowledged writes a second of so many writers."""
    counts = [0] * writers
    end = time.perf_counter() + SECONDS

    def write(number: int) -> None:
        key, cell = key_of("ks", b"writer-%d" % number), Cell(0, VALUE)
        while time.perf_counter() < end:
            counts[number] += 1
            host.write(key, replace(cell, timestamp=counts[number]), epoch)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / SECONDS


def measure(folder: Path) -> None:
    """Print the table."""
    state = one_node()
    plain = syncs(folder)
    host = RegisterHost(next(iter(state.nodes)), folder / "cells")
    host.adopt(state)
    print(f"plain syncs: {plain:.0f} a second")
    print("| writers | writes a second | per plain sync |")
    print("|---|---|---|")
    for writers in WRITERS:
        found = writes(host, state.epoch, writers)
        print(f"| {writers} | {found:.0f} | {found / plain:.2f} |")
    host.close()


def main() -> None:
    """Measure in the folder that is named, or in a temporary one."""
    if len(sys.argv) > 1:
        measure(Path(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder))


if __name__ == "__main__":
    main()

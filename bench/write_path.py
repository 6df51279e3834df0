"""The write path of a node compared with an earlier commit: the cost to validate and store a record.

    python bench/write_path.py [COMMIT]

The default COMMIT is the last one before rows were durable: nodes kept rows in memory, and read the mutations topic
from its beginning after a restart. The bench takes its sources from the history of the repository. Both versions run in
turn, in their own processes, with the same records: 2,000 at a time, as from Kafka, each validated, and a commit after
each turn if there is one. The best round of each counts, in processor time. Wall time is printed too.

The status is 1 if a record now costs more processor time than then, 2 if the history does not have the commit.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import time
from inspect import signature
from io import BytesIO
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parents[1]
BEFORE = "1307b48e6392"
"""A batch dies where its rows are written: the commit before rows were in a file."""
RECORDS, TURN, TURNS, ROUNDS = 40_000, 2_000, 3, 3
PARTS = "services", "schemas", "tests"
CHILD = "--child"


def child(folder: Path) -> None:
    """Print microseconds of the processor and of the clock for each record, by the first sources in the path."""
    from tests.node.world import APPENDED, cluster, name_of, write

    from ringlog.node.rows.replica import KEPT, RowReplica
    from ringlog.wire.records import Cell, encode_mutation

    draw, cells = Random(1), (Cell("note", b"v" * 100),)
    names = [f"k{draw.getrandbits(60)}" for _ in range(RECORDS)]
    values = [encode_mutation(write(name, at, APPENDED + at, cells=cells)) for at, name in enumerate(names)]
    keys = [b"shop.orders\0" + name.encode() for name in names]
    # Earlier versions do not take the key of the record.
    takes_key = "key" in signature(RowReplica.validate_record).parameters
    node, state = name_of(1), cluster((0,), factor=1)
    for number in range(TURNS):
        try:
            from ringlog.node.rows.disk_rows import DiskRows

            row_replica = RowReplica(node, DiskRows(folder / f"rows-{number}", node))
        except ImportError:
            row_replica = RowReplica(node)
        commit = getattr(row_replica, "commit", lambda: None)
        row_replica.adopt(state)
        processor, clock = time.process_time(), time.perf_counter()
        for first in range(0, RECORDS, TURN):
            for offset, value in enumerate(values[first : first + TURN], start=first):
                key = (keys[offset],) if takes_key else ()
                assert row_replica.validate_record(value, APPENDED, *key) == KEPT
                row_replica.advance_position(0, offset + 1)
            commit()
        taken = time.process_time() - processor, time.perf_counter() - clock
        print(*(round(seconds * 1e6 / RECORDS, 2) for seconds in taken))


def measured(root: Path) -> list[tuple[float, float]]:
    """Output of the child process with the sources of ``root``."""
    where = os.pathsep.join(map(str, (root / "services", root / "schemas", root)))
    with tempfile.TemporaryDirectory() as folder:
        told = subprocess.run(
            [sys.executable, __file__, CHILD, folder],
            env={**os.environ, "PYTHONPATH": where, "PYTHONSAFEPATH": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
    lines = (line.split() for line in told.stdout.splitlines())
    return [(float(processor), float(clock)) for processor, clock in lines]


def main(commit: str) -> int:
    """Measure both; the exit status."""
    found = subprocess.run(["git", "-C", str(ROOT), "archive", commit, *PARTS], capture_output=True, check=False)
    if found.returncode:
        print(f"this repository has no commit {commit}: {found.stderr.decode().strip()}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        then = Path(folder)
        with tarfile.open(fileobj=BytesIO(found.stdout)) as archive:
            archive.extractall(then, filter="data")
        runs: dict[str, list[tuple[float, float]]] = {"then": [], "now": []}
        for _ in range(ROUNDS):
            runs["then"] += measured(then)
            runs["now"] += measured(ROOT)
    best = {name: [min(one) for one in zip(*taken, strict=True)] for name, taken in runs.items()}
    for name, (processor, clock) in best.items():
        print(f"{name}: {processor:.1f} µs of the processor for a record, {clock:.1f} µs on the clock")
    ratio = best["then"][0] / best["now"][0]
    print(f"ratio of the rates: {ratio:.2f}, on the clock {best['then'][1] / best['now'][1]:.2f}")
    return int(ratio < 1)


if __name__ == "__main__":
    if sys.argv[1:2] == [CHILD]:
        child(Path(sys.argv[2]))
        sys.exit(0)
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else BEFORE))

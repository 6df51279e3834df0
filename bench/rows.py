"""The cost and the gain of durable rows: the write path compared with memory, and the start of a node.

    python bench/rows.py [ROWS [FOLDER]]

Everything runs once, in FOLDER (default: a temporary one):

- **writes**: a node validates the same records of the mutations topic, 2,000 at a time, with a commit after each turn,
  and stores the rows in memory or on disk. The runs alternate, and the best of each counts. The ratio is the cost of
  the disk. A start without the file would validate all records again at the speed of memory.
- **start**: a new process opens a file of ROWS rows (1,000,000) of 100 bytes, adopts the newest state and answers a
  read: seconds, and the greatest memory use. The file was written in the order of tokens.
- **with these rows**: writes per second under random tokens; seconds until a page of a stream is ready; seconds of a
  synced commit; seconds until a sixteenth of the ring is deleted.

The status is 1 if a node with these rows takes more than 10 s to start, or writes at less than half the speed of
memory.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.node.world import APPENDED, TABLE, cluster, name_of, write
from tests.record_keys import record_key

from ringlog.node.rows.disk_rows import DiskRows
from ringlog.node.rows.memory_rows import MemoryRows
from ringlog.node.rows.replica import KEPT, RowReplica
from ringlog.node.rows.store import RowStore
from ringlog.wire.data import PAGE_BYTES_MAX, RowVersion
from ringlog.wire.records import Cell, encode_mutation

ROWS, RECORDS, TURN, TURNS = 1_000_000, 40_000, 2_000, 3
START_S, RATIO = 10.0, 0.5
"""The most that a start may take, and the least share of memory's rate."""
VALUE = b"v" * 100
NODE, STATE = name_of(1), cluster((0,), factor=1)
START = "--start"
KEY = b"known"


def records(seed: int) -> list[bytes]:
    """Encoded writes of as many keys, in no order."""
    draw = Random(seed)
    cells = (Cell("note", VALUE),)
    return [
        encode_mutation(write(f"k{draw.getrandbits(60)}", number, APPENDED + number, cells=cells))
        for number in range(RECORDS)
    ]


def judged(store: RowStore, values: list[bytes]) -> float:
    """Records a second."""
    row_replica, keys = RowReplica(NODE, store), [record_key(value) for value in values]
    row_replica.adopt(STATE)
    begun = time.perf_counter()
    for first in range(0, len(values), TURN):
        for offset, value in enumerate(values[first : first + TURN], start=first):
            assert row_replica.validate_record(value, APPENDED, keys[offset]) == KEPT
            row_replica.advance_position(0, offset + 1)
        row_replica.commit()
    return len(values) / (time.perf_counter() - begun)


def write_path(folder: Path) -> float:
    """Print both rates; their ratio."""
    values = records(1)
    memory = disk = 0.0
    for turn in range(TURNS):
        memory = max(memory, judged(MemoryRows(), values))
        store = DiskRows(folder / f"written-{turn}", NODE)
        disk = max(disk, judged(store, values))
        store.close()
    print(f"writes: {memory:,.0f} a second in memory, {disk:,.0f} on disk, ratio {disk / memory:.2f}")
    return disk / memory


def filled(path: Path, rows: int) -> None:
    """Make the file."""
    store, step, begun = DiskRows(path, NODE), 2**64 // (rows + 1), time.perf_counter()
    known = encode_mutation(write(KEY.decode(), 0))
    row_replica = RowReplica(NODE, store)
    row_replica.adopt(STATE)
    assert row_replica.validate_record(known, APPENDED, record_key(known)) == KEPT
    for number in range(1, rows):
        clustering = (number.to_bytes(8, "big"),)
        store.add(RowVersion(TABLE, number * step - 2**63, b"k%d" % number, clustering, number, VALUE))
        if number % 100_000 == 0:
            row_replica.advance_position(0, number)
            row_replica.commit()
    row_replica.advance_position(0, rows)
    row_replica.commit(sync=True)
    store.close()
    size = path.stat().st_size
    print(f"file: {rows:,} rows, {size / rows:.0f} bytes each, made in {time.perf_counter() - begun:.0f} s")


def start(path: Path) -> None:
    """Work of a starting process; the measuring process reads its output line."""
    begun = time.perf_counter()
    row_replica = RowReplica(NODE, DiskRows(path, NODE))
    row_replica.adopt(STATE)
    row_replica.caught_up = True
    assert row_replica.read(TABLE, KEY)[1], "it has what was written"
    taken = time.perf_counter() - begun
    print(len(row_replica.store), taken, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)


def timed(work: Callable[[], object]) -> float:
    """Seconds."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def with_rows(path: Path) -> None:
    """Print the figures of a node with these rows."""
    store = DiskRows(path, NODE)
    draw, mark = Random(2), store.mark
    row_replica = RowReplica(NODE, store)
    row_replica.adopt(STATE)
    found = judged(store, records(3))
    print(f"with these rows: {found:,.0f} writes a second under tokens in no order")
    some = [(0, 2**60)]
    page = timed(lambda: list(zip(range(PAGE_BYTES_MAX // 200), store.listed(some), strict=False)))
    store.add(RowVersion(TABLE, draw.getrandbits(40), b"k", (), 1, VALUE))
    synced = timed(lambda: store.commit(mark, sync=True))
    before = len(store)
    dropped = timed(lambda: (store.drop(TABLE, some), store.commit(mark)))
    print(f"a page {page * 1000:.0f} ms, a synced commit {synced * 1000:.0f} ms", end=", ")
    print(f"{before - len(store):,} rows dropped in {dropped:.2f} s")
    store.close()


def main(rows: int, folder: Path) -> int:
    """Measure everything in a folder; the exit status."""
    ratio = write_path(folder)
    path = folder / "rows.sqlite"
    filled(path, rows)
    told = subprocess.run([sys.executable, __file__, START, str(path)], capture_output=True, text=True, check=True)
    count, seconds, megabytes = told.stdout.split()
    print(f"start: {int(count):,} rows in {float(seconds):.3f} s, {megabytes} MB at most")
    with_rows(path)
    return int(float(seconds) > START_S or ratio < RATIO)


if __name__ == "__main__":
    if sys.argv[1:2] == [START]:
        start(Path(sys.argv[2]))
        sys.exit(0)
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    if len(sys.argv) > 2:
        sys.exit(main(wanted, Path(sys.argv[2])))
    with tempfile.TemporaryDirectory() as temporary:
        sys.exit(main(wanted, Path(temporary)))

"""The start of a replica from a snapshot and the entries after it, compared with the whole log.

    python bench/snapshots.py [SCALE] [--expired] [--json]

A cluster grows to 1,000 nodes of 16 tokens as in ``replay.py``, with a CDC generation for each join, and gets 10,000
tables. Then the bench takes a snapshot, and 10,000 entries follow that change nothing. Both starts are timed in one
run, in processor time, from bytes in memory, without a broker. The digests of both states are compared. ``SCALE``
multiplies all three numbers.

No generation of that life expires. ``--expired`` keeps only the last three of them, as in a cluster without a recent
join. The whole log is not folded then.
"""

from __future__ import annotations

import gc
import json
import sys
import time

from placement import LIFE, SETTINGS, grow, uuid_of
from replay import Writing

from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.commands.cluster.snapshots import TakeSnapshot
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.schema.tables import CreateTable
from ringlog.kernel.encoding.encoder import digest
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState
from ringlog.kernel.values import CdcOptions, Column, replace
from ringlog.log.folding import Start, follow
from ringlog.log.port import LogRecord
from ringlog.log.snapshots import decode_snapshot, encode_snapshot

GOAL_S = 3.0
KEPT = 3
TABLES, TAIL = 10_000, 10_000
COLUMNS = (Column("k", "text"), Column("v", "text"))


def made(scale: float) -> tuple[list[LogRecord], Start]:
    """The log, and the state and position behind its ``TakeSnapshot``."""
    author = Writing(EMPTY_STATE)
    grow(author, max(9, round(LIFE[0] * scale)), LIFE[1])
    author.append(CreateKeyspace("tables", SETTINGS[0]))
    for number in range(round(TABLES * scale)):
        author.append(CreateTable("tables", f"t{number}", uuid_of(number, 4), COLUMNS, ("k",), (), CdcOptions(False)))
    author.append(TakeSnapshot())
    taken = Start(author.state, len(author.records))
    for _ in range(round(TAIL * scale)):
        author.append(Noop())
    return [LogRecord(offset, data) for offset, data in enumerate(author.records)], taken


def folded(records: list[LogRecord], state: ClusterState = EMPTY_STATE) -> ClusterState:
    """The folded state."""
    for one in follow(records, state):
        state = one.after
    return state


def main() -> None:
    """Measure and print."""
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    scale = float(words[0]) if words else 1.0
    gc.disable()  # as in the simulator: states hold no cycles
    log, taken = made(scale)
    is_expired = "--expired" in sys.argv
    if is_expired:
        taken = Start(replace(taken.state, generations=taken.state.generations[-KEPT:]), taken.position)
    begin = time.process_time()
    head, chunks = encode_snapshot(taken, "bench", "keeper", 0, "bench")
    cutting = time.process_time() - begin
    begin = time.process_time()
    state = decode_snapshot(head, chunks)
    restoring = time.process_time() - begin
    from_snapshot = folded(log[head.position :], state)
    starting = time.process_time() - begin
    begin = time.process_time()
    from_beginning = None if is_expired else folded(log)
    replaying = time.process_time() - begin
    assert from_beginning is None or digest(from_snapshot) == digest(from_beginning)
    size = sum(part.size for part in head.parts)
    nodes, tables = len(state.nodes), len(state.tables)
    print(f"{nodes:,} nodes, {tables:,} tables, {len(log):,} entries, {len(log) - head.position:,} behind the snapshot")
    print(f"snapshot: {size / 1e6:.1f} MB, made in {cutting:.2f} s, restored in {restoring:.2f} s")
    print(f"start from it {starting:.2f} s (goal {GOAL_S} s)", end="\n" if is_expired else "")
    if not is_expired:
        print(f", from the beginning {replaying:.2f} s: {replaying / starting:.1f} times")
    if "--json" in sys.argv:
        figures = {"start_s": round(starting, 2), "replay_s": round(replaying, 2), "restore_s": round(restoring, 2)}
        print(json.dumps(figures | {"cut_s": round(cutting, 2), "bytes": size}))


if __name__ == "__main__":
    main()

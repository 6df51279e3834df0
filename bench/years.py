"""A log over many years: memory, disk and start time must stay constant.

    python bench/years.py [ENTRIES] [FOLDER] [--every N] [--json]

Folds one million entries (``ENTRIES``) that change nothing, a write lease, or a node, in a cluster of three nodes with
a full history. After each 10,000 (``--every``) the code of agents takes a snapshot, confirms it, extends the archive,
and truncates the log. Log and snapshots are in memory; the archive and the copy of a log replica are files in
``FOLDER``. Ten times during the run the bench prints memory, bytes of log, snapshots and copy, bytes of the
archive, and processor seconds of a start of a replica and of the copy. Only the archive grows. The exit status is 1 if
a figure of the last line exceeds that of the second line by more than a quarter.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from replay import KINDS, small

from ringlog.agents.maintenance.truncation import LogEnds
from ringlog.kernel.commands.cluster.snapshots import TakeSnapshot
from ringlog.kernel.commands.cluster.truncation import ConfirmSnapshot, TruncateLog
from ringlog.kernel.encoding.encoder import digest
from ringlog.kernel.values import Value, asdict
from ringlog.log.archive.archive import Archive
from ringlog.log.folding import Start
from ringlog.log.memory import MemoryKeyed, MemoryLog
from ringlog.log.port import LogRecord
from ringlog.log.replicas.replica import LogReplica
from ringlog.log.replicas.start_point import SnapshotTopic, StartPointFinder
from ringlog.node.log.log_copy import COPY, reopen_copy
from ringlog.node.log.member_copy import open_copy
from ringlog.runtime.draw import SystemDraw, draw_uuid
from ringlog.runtime.logs import setup_logs
from ringlog.runtime.process import reduce_gc
from ringlog.wire.records import SnapshotConfirmation

ENTRIES, EVERY, BATCH = 1_000_000, 10_000, 500
TENTHS = 10
SLACK = 1.25
NOISE = {"memory_mb": 5.0, "disk_mb": 0.5, "start_s": 0.1, "copy_start_s": 0.1}
"""Differences that mean nothing."""
SAID_BY = "keeper", "publisher"


class Figures(Value):
    """At one moment. ``disk_mb``: log, snapshots and copy; ``archive_mb`` grows with the entries."""

    entries: int
    memory_mb: float
    disk_mb: float
    archive_mb: float
    start_s: float
    copy_start_s: float


class Life:
    """The log, and all that agents and a member keep of it."""

    def __init__(self, folder: Path) -> None:
        self.author = small()
        self.log, self.snapshots = MemoryLog(), MemoryKeyed()
        self.archived, self.copy = folder / "archive", folder / COPY
        self.archive = Archive(self.archived)
        self._flush()
        self._file = open_copy(self.copy, self.log, self.start_finder())
        self._ends = LogEnds(
            self.log,
            lambda: SnapshotTopic(self.snapshots),
            self.log.delete_before,
            self.archive,
            lambda: self.author.state.epoch,
            lambda: True,
            lambda *_, **__: None,
        )
        self._sources = [kind(self.author.state) for kind in KINDS.values()]

    def start_finder(self) -> StartPointFinder:
        """Start position of a reader."""
        return StartPointFinder(lambda: SnapshotTopic(self.snapshots), warns=False)

    def live(self, count: int) -> None:
        """That many entries."""
        for number in range(count):
            self.author.append(next(self._sources[number % len(self._sources)]))
            if len(self.author.records) == BATCH:
                self._flush()
                self._keep()

    def truncate(self) -> None:
        """Take a snapshot, archive the log up to it, and truncate the log."""
        self.author.append(TakeSnapshot())
        self._flush()
        taken = Start(self.author.state, self.log.end_offset())
        topic, state, identity = SnapshotTopic(self.snapshots), taken.state, self.log.identity()
        writer, reader = SAID_BY
        begin = self.log.begin_offset()
        head = topic.store(taken, identity, writer, 0, draw_uuid(SystemDraw()), begin)
        said = state.cluster_id, identity, state.epoch, state.state_id, taken.position, head.digest
        topic.confirm(SnapshotConfirmation(*said, reader, 0))
        self.author.append(ConfirmSnapshot(head.epoch, head.state_id, head.position, head.digest, SAID_BY))
        self._flush()
        archived = self._ends.archive(state.epoch, lambda: head.digest)
        assert archived is not None
        self.author.append(archived)
        self.author.append(TruncateLog(state.epoch))
        self._flush()
        self._keep()
        self._ends.truncate(self.author.state)
        self.snapshots.compact()

    def figures(self) -> Figures:
        """Present cost."""
        gc.collect()
        begin = time.process_time()
        with LogReplica(self.log, start_finder=self.start_finder()) as replica:
            found = replica.read_barrier(600.0)
        start = time.process_time() - begin
        assert digest(found) == digest(self.author.state)
        self._file.close()
        begin = time.process_time()
        again = reopen_copy(self.copy)
        copy_start = time.process_time() - begin
        assert again is not None
        assert again.state.at.state.state_id == found.state_id
        self._file = again
        held = sum(len(one.data) for log in (self.log, self.snapshots) for one in kept(log))
        archive = sum(path.stat().st_size for path in self.archived.iterdir())
        disk = held + self.copy.stat().st_size
        sizes = round(disk / 1e6, 2), round(archive / 1e6, 1)
        return Figures(found.epoch, memory_mb(), *sizes, round(start, 2), round(copy_start, 2))

    def _flush(self) -> None:
        self.log.append(self.author.records)
        self.author.records.clear()

    def _keep(self) -> None:
        with closing(self.log.tail(self._file.state.next)) as tail:
            while tail.position < self.log.end_offset():
                self._file.append(tail.poll(0.0))


def kept(log: MemoryLog) -> list[LogRecord]:
    """The records that a log has."""
    found, _ = log.read(log.begin_offset(), 0.0, sys.maxsize)
    return found


def memory_mb() -> float:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGESIZE") / 1e6, 1)


def grown(second: Figures, last: Figures) -> list[str]:
    """Figures that grew."""
    before, after = asdict(second), asdict(last)
    return [name for name, noise in NOISE.items() if after[name] > before[name] * SLACK + noise]


def main() -> int:
    """Live, measure and print."""
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    every = EVERY
    if "--every" in sys.argv:
        every = int(sys.argv[sys.argv.index("--every") + 1])
        words.remove(str(every))
    entries = int(words[0]) if words else ENTRIES
    setup_logs(level="warning")
    reduce_gc()
    with tempfile.TemporaryDirectory() as made:
        life = Life(Path(words[1]) if len(words) > 1 else Path(made))
        print("entries | memory MB | log, snapshots, copy MB | archive MB | start s | start of the copy s")
        found: list[Figures] = []
        begun = time.process_time()
        rounds = max(entries // every, TENTHS)
        for number in range(1, rounds + 1):
            life.live(every)
            life.truncate()
            if number * TENTHS // rounds > len(found):
                now = life.figures()
                found.append(now)
                print(
                    f"{now.entries:,} | {now.memory_mb} | {now.disk_mb} | {now.archive_mb} | {now.start_s:.2f} | "
                    f"{now.copy_start_s:.2f}",
                    flush=True,
                )
        worse = grown(found[1], found[-1])
        print(f"{time.process_time() - begun:.0f} s of processor time; " + (f"GROWN: {worse}" if worse else "flat"))
        if "--json" in sys.argv:
            print(json.dumps([asdict(one) for one in found]))
        return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())

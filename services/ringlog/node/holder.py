"""What a data node decides, apart from any process: which rows it keeps, what it acknowledges, what it must fetch.

A node reads the mutations topic in order and judges every record under the epoch it has adopted, one at a time.
Hence, when it adopts epoch e, every write that it admitted below e is applied: it may acknowledge (applied,
drained) = (e, e) at once.

Streaming (CEP-21: bootstrap between steps 2 and 3): when a gaining node adopts the epoch that makes it a write
replica, it notes its position in each partition of the mutations topic. From there on it keeps the rows itself;
everything below comes from the replica whose place it takes, which takes its snapshot only after its own positions
have passed the noted ones. No row falls in between. Rows that come both ways are one version in the store.

Rows of ranges that the node no longer writes are dropped when the epoch that says so is adopted; a cancelled
operation thereby drops what was streamed for it, and a stream that ends late is refused.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ringlog.kernel.commands.model import StreamReport
from ringlog.kernel.generations.acceptance import Refused, accept
from ringlog.kernel.operations.stages import WRITE_BOTH_READ_OLD
from ringlog.kernel.ownership.placements import placement_of_keyspace, replication_key, write_ranges_of
from ringlog.kernel.ring.murmur3 import token_of
from ringlog.kernel.ring.partition_key import compose
from ringlog.kernel.ring.ranges import in_range
from ringlog.kernel.settings import setting
from ringlog.kernel.state import ClusterState, Operation
from ringlog.node.store import RowStore, Version, checksum
from ringlog.wire.records import Mutation

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Fetch:
    """One stream that a gaining node needs: rows of ``ranges`` under ``replication``, from ``source``.

    ``positions``: partition of the mutations topic to the first offset that the node keeps by itself.
    """

    operation: str
    epoch: int
    source: str
    replication: str
    ranges: tuple[Range, ...]
    positions: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Rows of a range at a source, with what the receiver must find too."""

    versions: tuple[Version, ...]
    checksum: str


class NotReady(Exception):
    """The source may not take its snapshot yet; ``detail`` says what it waits for."""


class Holder:
    """The rows of one node and the epoch it has adopted. Thread-safe."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.lock = threading.RLock()
        self.store = RowStore()
        self.state = ClusterState()
        self.positions: dict[int, int] = {}
        self.reports: dict[str, StreamReport] = {}
        self._fetching: dict[str, list[Fetch]] = {}
        self._received: dict[str, list[Snapshot]] = {}
        self._ranges: dict[str, tuple[Range, ...]] = {}

    # -------------------------------------------------------------------------------------------- epochs

    def adopt(self, state: ClusterState) -> list[Fetch]:
        """Serve under a newer state from now on; returns the streams that this epoch makes necessary."""
        with self.lock:
            if state.epoch <= self.state.epoch:
                return []
            self.state = state
            self._ranges = {name: self._write_ranges(table.keyspace) for name, table in state.tables.items()}
            for table in self.store.tables():
                self.store.drop_outside(table, self._ranges.get(table, ()))
            current = {op.id: op for op in state.operations.values() if self._gains(op)}
            self.reports = {name: report for name, report in self.reports.items() if name in current}
            self._fetching = {name: fetches for name, fetches in self._fetching.items() if name in current}
            self._received = {name: parts for name, parts in self._received.items() if name in current}
            return [fetch for name in sorted(current) for fetch in self._begin(current[name])]

    def _gains(self, operation: Operation) -> bool:
        if operation.stage != WRITE_BOTH_READ_OLD:
            return False
        return operation.node == self.node or any(s.target == self.node for s in operation.plan.sources)

    def _begin(self, operation: Operation) -> list[Fetch]:
        if operation.id in self.reports or operation.id in self._fetching:
            return []
        fetches = self._fetches(operation)
        self._fetching[operation.id] = list(fetches)
        if not fetches:
            self._report(operation.id, 0, checksum(()))
        return fetches

    def _fetches(self, operation: Operation) -> list[Fetch]:
        wanted: dict[tuple[str, str], list[Range]] = {}
        for source in operation.plan.sources:
            if source.target == self.node:
                wanted.setdefault((source.source, source.replication), []).append((source.start, source.end))
        positions = tuple(sorted(self.positions.items()))
        return [
            Fetch(operation.id, operation.stage_epoch, source, replication, tuple(sorted(ranges)), positions)
            for (source, replication), ranges in sorted(wanted.items())
        ]

    def _write_ranges(self, keyspace: str) -> tuple[Range, ...]:
        placement = placement_of_keyspace(self.state, keyspace)
        return () if placement is None else tuple(write_ranges_of(placement, self.node))

    # -------------------------------------------------------------------------------------------- writes

    def admit(self, mutation: Mutation, append_time_us: int, value: bytes) -> str:
        """Judge one write under the adopted epoch: ``kept``, ``not_mine`` or the code of the rule that refuses it.

        The rules are those of the CDC pipeline (same order, same clock: the broker's append time), so that a row
        and its CDC record are refused together.
        """
        with self.lock:
            name = f"{mutation.keyspace}.{mutation.table}"
            table = self.state.tables.get(name)
            if table is None:
                return "unknown_table"
            if any(part is None for part in mutation.partition_key):
                return "null_partition_key"
            parts = [part for part in mutation.partition_key if part is not None]
            if len(parts) != len(table.partition_key) or len(mutation.clustering_key) > len(table.clustering_key):
                return "bad_key"
            if table.cdc.enabled:
                starts = [generation.timestamp for generation in self.state.generations]
                verdict = accept(mutation.timestamp, append_time_us, starts, setting(self.state, "cdc_leeway_us"))
                if isinstance(verdict, Refused):
                    return verdict.code
            key = compose(parts)
            token = _token(key)
            if not _inside(token, self._ranges[name]):
                return "not_mine"
            self.store.add(Version(name, token, key, tuple(mutation.clustering_key), mutation.timestamp, value))
            return "kept"

    # ----------------------------------------------------------------------------------------- streaming

    def snapshot(
        self, operation: str, replication: str, ranges: Sequence[Range], positions: Mapping[int, int]
    ) -> Snapshot:
        """The rows of ``ranges`` for a gaining node; raises NotReady until this source may answer.

        It may once it has adopted the operation's write_both_read_old and applied the writes below ``positions``.
        """
        with self.lock:
            present = self.state.operations.get(operation)
            if present is None or present.stage != WRITE_BOTH_READ_OLD:
                raise NotReady(f"epoch {self.state.epoch} does not have {operation} in {WRITE_BOTH_READ_OLD}")
            behind = [p for p, offset in sorted(positions.items()) if self.positions.get(p, 0) < offset]
            if behind:
                raise NotReady(f"writes below the receiver's positions are not applied yet in partitions {behind}")
            tables = [
                name
                for name, table in self.state.tables.items()
                if replication_key(self.state.keyspaces[table.keyspace].replication) == replication
            ]
            versions = tuple(self.store.versions(ranges, tables))
            return Snapshot(versions, checksum(versions))

    def receive(self, fetch: Fetch, snapshot: Snapshot) -> bool:
        """Keep streamed rows if the operation still wants them; False refuses a late stream."""
        with self.lock:
            waiting = self._fetching.get(fetch.operation)
            if waiting is None or fetch not in waiting:
                return False
            for version in snapshot.versions:
                self.store.add(version)
            received = self._received.setdefault(fetch.operation, [])
            received.append(snapshot)
            waiting.remove(fetch)
            if not waiting:
                digests = "".join(sorted(part.checksum for part in received))
                rows = sum(len(part.versions) for part in received)
                self._report(fetch.operation, rows, hashlib.sha256(digests.encode()).hexdigest())
                del self._received[fetch.operation]
            return True

    def rows(self) -> int:
        """Number of row versions held."""
        with self.lock:
            return len(self.store)

    def wants(self, key: bytes | None) -> bool:
        """False if the Kafka key alone shows that the row of a record belongs to others (saves decoding it)."""
        if key is None or b"\0" not in key:
            return True
        name, partition_key = key.split(b"\0", 1)
        ranges = self._ranges.get(name.decode("utf-8", "replace"))
        if ranges is None or not partition_key:
            return True
        return _inside(_token(partition_key), ranges)

    def _report(self, operation: str, rows: int, digest: str) -> None:
        self.reports[operation] = StreamReport(self.node, operation, rows, digest)


@lru_cache(maxsize=65_536)
def _token(key: bytes) -> int:
    return token_of(key)


def _inside(token: int, ranges: Sequence[Range]) -> bool:
    return any(in_range(token, start, end) for start, end in ranges)

"""What a data node decides, apart from any process: which rows it keeps, whom it answers, what it must fetch.

A node reads the mutations topic in order and judges every record once what it has adopted is settled for it
(``kernel.generations.verdicts``), one at a time; until then it holds the record and all behind it. Hence, when it
adopts epoch e, every write that it admitted below e is applied: it may acknowledge (applied, drained) = (e, e) at once.

Streaming (CEP-21: bootstrap between steps 2 and 3): when a gaining node adopts the epoch that makes it a write
replica, it notes its position in each partition of the mutations topic. From there on it keeps the rows itself;
everything below comes from the sources that the operation's plan names, each of which takes its snapshot only after its
own positions have passed the noted ones. No row falls in between. Rows that come both ways, or from several sources,
are one version in the store. A rebuild streams the same way, into ranges that the node has already.

Rows of ranges that the node no longer writes are dropped when the epoch that says so is adopted; a cancelled
operation thereby drops what was streamed for it, and a stream that ends late is refused. Reads are answered under the
same lock, so none is still in hand when rows go.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ringlog.kernel.generations.admission import Rules, rules_of, used, verdict
from ringlog.kernel.generations.statements import TableShape
from ringlog.kernel.generations.verdicts import History
from ringlog.kernel.operations.gates import REPORTED_STAGES, gaining_nodes
from ringlog.kernel.ownership.placements import placement_key, placement_of_keyspace
from ringlog.kernel.ring.partition_key import compose
from ringlog.kernel.state import ClusterState, Operation
from ringlog.kernel.values import StreamReport
from ringlog.node.checks import token_of_partition
from ringlog.node.owned import NOTHING, Owned, Served, loses, owned_by
from ringlog.node.peek import peek, plain
from ringlog.node.store import RowStore, Version, checksum
from ringlog.wire.errors import WireError
from ringlog.wire.records import Mutation, decode_mutation

Range = tuple[int, int]
KEPT, NOT_MINE, DROPPED = "kept", "not_mine", "dropped"
"""What is said of writes that no rule refuses; those of a table that was dropped meanwhile are rows of nobody."""
HELD = "held"
"""It is too early to judge the write: with a later settled time it is to be judged again."""
UNREADABLE = "unreadable"
"""The verdict on bytes that are no write."""
RULED_BY = ("cluster_id", "tables", "generations", "settings", "settled", "table_lives")
OWNED_BY = ("tables", "keyspaces", "placements")
"""The parts of the state that writes are judged by, and those that say whose the rows are. Most epochs change none."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """One stream that a gaining node needs: rows of ``ranges`` under ``replication``, from ``source``.

    ``epoch``: that of the stage. ``positions``: partition of the mutations topic to the first offset that the node
    keeps by itself.
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
    """This node may not answer yet; the text says what it waits for."""


class NotServed(Exception):
    """This node does not answer that at all at its epoch; the text says why."""


class Holder:
    """The rows of one node and the epoch it has adopted. Thread-safe.

    ``caught_up`` is for the process to set, once the node knows again what it knew before a restart: until then it
    answers no reads and acknowledges nothing.
    """

    def __init__(self, node: str) -> None:
        self.node = node
        self.lock = threading.RLock()
        self.store = RowStore()
        self.state = ClusterState()
        self.positions: dict[int, int] = {}
        self.reports: dict[str, StreamReport] = {}
        self.caught_up = False
        self._fetching: dict[str, list[Fetch]] = {}
        self._received: dict[str, list[Snapshot]] = {}
        self._owned: dict[str, Owned] = {}
        self._served: dict[str, Served] = {}
        self._rules = Rules(history=History())

    # -------------------------------------------------------------------------------------------- epochs

    def adopt(self, state: ClusterState) -> list[Fetch]:
        """Serve under a newer state from now on; returns the streams that this epoch makes necessary."""
        with self.lock:
            if state.epoch <= self.state.epoch:
                return []
            old, before, self.state = self.state, self._owned, state
            if any(getattr(state, part) is not getattr(old, part) for part in RULED_BY):
                self._rules = rules_of(state, (old, self._rules))
            if any(getattr(state, part) is not getattr(old, part) for part in OWNED_BY):
                self._owned = self._owned_under(state)
                self._forget(old, before)
            current = {op.id: op for op in state.operations.values() if self._gains(op)}
            self.reports = {name: report for name, report in self.reports.items() if name in current}
            self._fetching = {name: fetches for name, fetches in self._fetching.items() if name in current}
            self._received = {name: parts for name, parts in self._received.items() if name in current}
            return [fetch for name in sorted(current) for fetch in self._begin(current[name])]

    def _owned_under(self, state: ClusterState) -> dict[str, Owned]:
        """What the node serves of each table. Worked out once for each placement, and only where that has changed."""
        served: dict[str, Served] = {}
        owned: dict[str, Owned] = {}
        for name, table in state.tables.items():
            placement = placement_of_keyspace(state, table.keyspace)
            if placement is None:
                owned[name] = NOTHING
                continue
            if placement.key not in served:
                served[placement.key] = (placement, owned_by(placement, self.node, self._served.get(placement.key)))
            owned[name] = served[placement.key][1]
        self._served = served
        return owned

    def _forget(self, old: ClusterState, before: dict[str, Owned]) -> None:
        """Drop the rows that are not the node's any more. Only tables of which it has lost a range are looked at."""
        for table in self.store.tables():
            present = self.state.tables.get(table)
            owned = self._owned.get(table, NOTHING)
            if present is not None and present.id != old.tables[table].id:
                self.store.keep(table, NOTHING.takes)  # another table of that name: these rows are none of it
            elif loses(before.get(table, NOTHING), owned):
                self.store.keep(table, owned.takes)

    def serves(self) -> bool:
        """True if the node replicates any range of any table."""
        with self.lock:
            return any(owned.some() for owned in self._owned.values())

    def _gains(self, operation: Operation) -> bool:
        return operation.stage in REPORTED_STAGES and self.node in gaining_nodes(operation)

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

    # -------------------------------------------------------------------------------------------- writes

    def passes_over(self, value: bytes) -> bool:
        """True if the head of an encoded mutation shows already that its row belongs to others."""
        head = peek(value)
        if head is None:
            return False
        owned = self._owned.get(head[0])
        return owned is not None and not owned.takes(token_of_partition(compose(head[1])))

    def judge(self, value: bytes, append_time_us: int) -> str:
        """Judge one record of the mutations topic: a verdict of ``admit``, or ``unreadable``."""
        if self.passes_over(value):
            return NOT_MINE
        try:
            return self.admit(self._seen(value), append_time_us, value)
        except WireError:
            return UNREADABLE

    def _seen(self, value: bytes) -> Mutation:
        """As much of a write as ``admit`` looks at: values only where the table has a rule for them."""
        found = plain(value)
        if found is not None:
            name = f"{found.keyspace}.{found.table}"
            shape = self._rules.tables.get(name)
            if name not in self.state.table_lives and (shape is None or not shape.is_special):
                return found
        return decode_mutation(value)

    def needed(self, value: bytes, append_time_us: int) -> int:
        """The time above which the settled time must be before a record that is held can be judged."""
        try:
            return used(self._rules, decode_mutation(value), append_time_us)
        except WireError:
            return append_time_us

    def admit(self, mutation: Mutation, append_time_us: int, value: bytes) -> str:
        """Judge one write: ``kept``, ``not_mine``, ``dropped``, the code of the rule that refuses it, or ``held``.

        The rules are those of the CDC pipeline (same order, same clock: the broker's append time), so that a row
        and its CDC record are refused together.
        """
        with self.lock:
            found = verdict(self._rules, mutation, append_time_us)
            if found is None:
                return HELD
            if found.version is None:
                return found.code
            name = f"{mutation.keyspace}.{mutation.table}"
            table = self.state.tables.get(name)
            if table is None or table.id != found.version.id:
                return DROPPED
            key = compose([part for part in mutation.partition_key if part is not None])
            token = token_of_partition(key)
            if not self._owned[name].takes(token):
                return NOT_MINE
            self.store.add(Version(name, token, key, mutation.clustering_key, mutation.timestamp, value))
            return KEPT

    def passed(self, partition: int, position: int) -> None:
        """All records of ``partition`` below ``position`` are judged."""
        with self.lock:
            self.positions[partition] = max(position, self.positions.get(partition, 0))

    # ---------------------------------------------------------------------------------------------- reads

    def read(self, table: str, partition_key: bytes) -> tuple[int, list[Version]]:
        """(epoch, versions of a partition); raises NotReady, or NotServed where this node is no read replica."""
        with self.lock:
            if not self.caught_up:
                raise NotReady("the node has not read again yet what it held before it was restarted")
            owned = self._owned.get(table)
            if owned is None:
                raise NotServed(f"epoch {self.state.epoch} has no table {table}")
            if not owned.answers(token_of_partition(partition_key)):
                raise NotServed(f"not a read replica of this key of {table} at epoch {self.state.epoch}")
            return self.state.epoch, self.store.partition(table, partition_key)

    def shape(self, table: str) -> TableShape:
        """The shape of a table that there is at the adopted epoch."""
        return self._rules.tables[table]

    # ----------------------------------------------------------------------------------------- streaming

    def snapshot(
        self, operation: str, replication: str, ranges: Sequence[Range], positions: Mapping[int, int]
    ) -> Snapshot:
        """The rows of ``ranges`` for a gaining node; raises NotReady until this source may answer, or NotServed.

        It may once it has adopted the stage in which the operation streams and applied the writes below ``positions``.
        """
        with self.lock:
            present = self.state.operations.get(operation)
            if present is None or present.stage not in REPORTED_STAGES:
                raise NotReady(f"epoch {self.state.epoch} does not have {operation} in a stage that streams")
            mine = {
                (s.start, s.end) for s in present.plan.sources if (s.source, s.replication) == (self.node, replication)
            }
            if not mine.issuperset((start, end) for start, end in ranges):
                raise NotServed(f"{operation} does not have this node as the source of these ranges")
            if positions.keys() != self.positions.keys():
                raise NotServed(f"the mutations topic has the partitions {sorted(self.positions)}")
            behind = [p for p, offset in sorted(positions.items()) if self.positions[p] < offset]
            if behind:
                raise NotReady(f"writes below the receiver's positions are not applied yet in partitions {behind}")
            tables = [
                name
                for name, table in self.state.tables.items()
                if placement_key(self.state.keyspaces[table.keyspace]) == replication
            ]
            versions = tuple(self.store.versions(ranges, tables))
        return Snapshot(versions, checksum(versions))

    def receive(self, fetch: Fetch, snapshot: Snapshot) -> bool:
        """Keep streamed rows if the operation still wants them; False refuses a late stream.

        A table that was dropped meanwhile has none: the source may not know that yet.
        """
        with self.lock:
            waiting = self._fetching.get(fetch.operation)
            if waiting is None or fetch not in waiting:
                return False
            for version in snapshot.versions:
                if self._owned.get(version.table, NOTHING).takes(version.token):
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

    def wants(self, fetch: Fetch) -> bool:
        """True while the rows of ``fetch`` are waited for."""
        with self.lock:
            return fetch in self._fetching.get(fetch.operation, ())

    def _report(self, operation: str, rows: int, digest: str) -> None:
        self.reports[operation] = StreamReport(self.node, operation, rows, digest)

"""The rows of a data node, independent of any process: the writes that it keeps, the reads and streams that it serves.

A node reads the mutations topic in order. It validates one record at a time, once the validation watermark of its
adopted state allows that (``kernel.generations.verdicts``). Until then the record and all later ones of its partition
wait. So when the node adopts epoch e, every write that it admitted below e is applied. It may acknowledge (applied,
drained) = (e, e) immediately.

Streaming (CEP-21: bootstrap between steps 2 and 3): a gaining node adopts the epoch that makes it a write replica, and
notes its position in each partition of the mutations topic. From there on, it keeps the rows itself. Everything below
comes from the sources in the operation's plan. A source takes its snapshot only after its own positions have passed the
noted ones, so no row is missed. Rows that arrive twice become one version in the store. A rebuild streams in the same
way, into ranges that the node already has.

When the node adopts an epoch, it drops the rows of ranges that it no longer writes. This also drops the streamed rows
of a cancelled operation; a stream that completes late is refused. Reads hold the same lock, so no read is in progress
when rows are dropped.

A restarted node begins with the rows and the positions of one commit (``ringlog.node.rows.store``). It then behaves
like a node that was running and adopts the newest epoch late. It drops lost ranges and streams gained ones, and it
reads everything above its positions from the topic. Rows are synced before an epoch is acknowledged, so everything
acknowledged is durable.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from itertools import islice
from time import thread_time_ns

from ringlog.kernel.balance.model import READS, WRITES
from ringlog.kernel.generations.admission import RULED_BY, AdmissionRules, needed_watermark, rules_of, verdict
from ringlog.kernel.generations.statements import TableShape
from ringlog.kernel.generations.verdicts import SchemaHistory
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.ownership.placements import placement_of_keyspace
from ringlog.kernel.ring.murmur3 import compose
from ringlog.kernel.schema.stored import as_stored
from ringlog.kernel.tablets.groups import map_of
from ringlog.kernel.values import Epoch, StreamReport, Token, Value
from ringlog.node.checks import token_of_partition
from ringlog.node.registers.registers import PLACED_BY
from ringlog.node.registers.served import ServedRequests
from ringlog.node.rows.compaction import COMPACTED_AFTER, Compactor, PartitionScan, partition_read
from ringlog.node.rows.memory_rows import MemoryRows
from ringlog.node.rows.pages import grouped
from ringlog.node.rows.partial_decode import Head, head_of, partition_of, plain
from ringlog.node.rows.store import RowsMark, RowStore, checksum
from ringlog.protocol.nodes.ownership import NOTHING, Owned, OwnedTablets, Served, lost_ranges, owned_by
from ringlog.protocol.nodes.stream_work import StreamingWork, tables_under, work_by_name, works_for_node
from ringlog.wire.data import Rows, RowVersion
from ringlog.wire.errors import WireError
from ringlog.wire.records import Mutation, decode_mutation, encode_mutation, is_key_of, mutation_key

Range = tuple[int, int]
Place = tuple[bytes, Token]
"""A composed partition key, and its token."""
PORTION = 5_000
"""The number of tokens that are measured while the lock is held."""
KEPT, NOT_OWNED, DROPPED = "kept", "not_mine", "dropped"
"""Verdicts on valid writes. ``DROPPED``: the table was dropped in the meantime, so the row has no owner."""
HELD = "held"
"""The verdict on a write that needs a later validation watermark."""
UNREADABLE = "unreadable"
"""The verdict on bytes that are not a mutation."""


class RowFetch(Value):
    """A stream that a gaining node needs: rows of ``ranges`` under ``replication`` from ``source``.

    Attributes:
        operation: The name of the work: the id of an operation, or the name of a session.
        epoch: The epoch of the stage.
        positions: Partition of the mutations topic to the first offset that the node reads itself.
    """

    operation: str
    epoch: int
    source: str
    replication: str
    ranges: tuple[Range, ...]
    positions: tuple[tuple[int, int], ...]


class NotReady(Exception):
    """The node cannot answer yet. The message states the reason."""


class SourceBehind(NotReady):
    """The source of a stream has not adopted an epoch that the receiver has."""


class NotServed(Exception):
    """The node does not serve the request at its epoch. The message states the reason."""


class RowReplica:
    """The rows of one node and its adopted epoch. Thread-safe.

    Args:
        store: The rows on disk.
        compacted_after: See ``Compactor``.

    Attributes:
        changed: Notified after each adopted epoch and each commit.
        caught_up: Set by the process when the node has recovered its earlier state. Before that it answers no reads and
            acknowledges nothing.
        topic_id: The id of the mutations topic.
        positions: Offsets by partition of the topic: all records below are validated.
        reports: Reports of completed streams.
    """

    def __init__(self, node: str, store: RowStore | None = None, compacted_after: int = COMPACTED_AFTER) -> None:
        self.node = node
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.store = MemoryRows() if store is None else store
        self.served = ServedRequests()
        self.state = ClusterState()
        self.topic_id = self.store.mark.topic_id
        self.positions: dict[int, int] = dict(self.store.mark.positions)
        self.reports: dict[str, StreamReport] = {}
        self.caught_up = False
        self._fetching: dict[str, list[RowFetch]] = {}
        self._received: dict[str, list[tuple[int, str]]] = {}
        self._is_dirty = False
        self._owned: dict[str, Owned | OwnedTablets] = {}
        self._served: dict[str, Served] = {}
        self._rules = AdmissionRules(history=SchemaHistory())
        self.drops = 0
        self.scans: list[PartitionScan] = []
        self._compactor = Compactor(compacted_after)

    # -------------------------------------------------------------------------------------------- epochs

    def adopt(self, state: ClusterState) -> list[RowFetch]:
        """Serve under ``state`` if it is newer. Return the streams that it makes necessary."""
        with self.lock:
            if state.epoch <= self.state.epoch or state.epoch < self.store.mark.epoch:
                return []
            old, before, self.state = self.state, self._owned, state
            if any(getattr(state, part) is not getattr(old, part) for part in RULED_BY):
                self._rules = rules_of(state, (old, self._rules))
            if any(getattr(state, part) is not getattr(old, part) for part in PLACED_BY):
                self._owned = self._owned_under(state)
                # Drop lost rows under the same lock as the change of the state, so no read returns them under the new
                # epoch.
                self._forget(before)
            self.changed.notify_all()
            current = works_for_node(state, self.node)
            self.reports = {name: report for name, report in self.reports.items() if name in current}
            self._fetching = {name: fetches for name, fetches in self._fetching.items() if name in current}
            self._received = {name: parts for name, parts in self._received.items() if name in current}
            return [fetch for name in sorted(current) for fetch in self._begin(current[name])]

    def _owned_under(self, state: ClusterState) -> dict[str, Owned | OwnedTablets]:
        """Return the ranges that the node serves of each table. Computes each changed placement once."""
        served: dict[str, Served] = {}
        under: dict[str, Owned] = {}  # keyspace to its ranges
        owned: dict[str, Owned | OwnedTablets] = {}
        for name, table in state.tables.items():
            tablets = map_of(state, table)
            if tablets is not None:
                owned[name] = OwnedTablets(tablets, self.node)
                continue
            if table.keyspace not in under:
                under[table.keyspace] = self._owned_in(state, table.keyspace, served)
            owned[name] = under[table.keyspace]
        self._served = served
        return owned

    def _owned_in(self, state: ClusterState, keyspace: str, served: dict[str, Served]) -> Owned:
        """Return the ranges that the node serves under the placement of a keyspace, and add them to ``served``."""
        placement = placement_of_keyspace(state, keyspace)
        if placement is None:
            return NOTHING
        if placement.key not in served:
            served[placement.key] = (placement, owned_by(placement, self.node, self._served.get(placement.key)))
        return served[placement.key][1]

    def _forget(self, before: dict[str, Owned | OwnedTablets]) -> None:
        """Drop the rows that no longer belong to the node.

        Only tables with lost ranges are examined; in the first epoch after a start, all tables.
        """
        found: dict[tuple[int, int], list[Range]] = {}  # Tables of one keyspace lose the same ranges.
        for table in self.store.tables():
            present = self.state.tables.get(table)
            owned, owner = self._owned.get(table, NOTHING), before.get(table)
            if present is None or present.id != self.store.ids.get(table):
                # The table was dropped, or replaced by one of the same name: drop all of its rows.
                owned, owner = NOTHING, None
            pair = id(owner), id(owned)
            if pair not in found:
                found[pair] = lost_ranges(owner, owned)
            if gone := found[pair]:
                self.store.drop(table, gone)
                self.drops += 1
                self._is_dirty = True

    def serves(self) -> bool:
        """Return True if the node replicates any range of any table."""
        with self.lock:
            return any(owned.is_replica() for owned in self._owned.values())

    def _begin(self, work: StreamingWork) -> list[RowFetch]:
        """Return the streams of new work. If a source was replaced, return all streams of the work again."""
        waiting = self._fetching.get(work.name)
        if work.name in self.reports or (waiting is not None and _serve(work, self.node, waiting)):
            return []
        # The node keeps every write from these positions on itself. The sources must have applied everything below.
        positions = tuple(sorted(self.positions.items()))
        fetches = [
            RowFetch(work.name, work.epoch, source, replication, ranges, positions)
            for (source, replication), ranges in work.ranges_to(self.node).items()
        ]
        self._fetching[work.name] = list(fetches)
        self._received.pop(work.name, None)
        if not fetches:
            self._report(work.name, 0, checksum(()))
        return fetches

    # -------------------------------------------------------------------------------------------- writes

    def _is_of_others(self, table: str, place: Place) -> bool:
        owned = self._owned.get(table)
        return owned is not None and not owned.accepts_writes(place[1])

    def validate_record(self, value: bytes, append_time_us: int, key: bytes | None) -> str:
        """Validate one record of the mutations topic. Return a verdict of ``admit``, or ``unreadable``.

        Args:
            key: Key of the record.
        """
        head = head_of(value)
        place = None
        if head is not None and (found := partition_of(head)) is not None:
            place = _place(found[1])
            # Most records belong to other nodes. Skip them after decoding only the head.
            if self._is_of_others(found[0], place):
                return NOT_OWNED
        try:
            mutation = self._seen(value, head)
            if place is None:
                return self.admit(mutation, append_time_us, value, None, is_key_of(mutation, key))
            own_key = key == mutation_key(mutation.keyspace, mutation.table, place[0])
            return self.admit(mutation, append_time_us, value, place, own_key)
        except WireError:
            return UNREADABLE

    def _seen(self, value: bytes, head: Head | None) -> Mutation:
        """Decode as much of a write as ``admit`` needs: its id only if the full decoder is needed."""
        found = plain(value, head)
        if found is not None:
            name = f"{found.keyspace}.{found.table}"
            shape = self._rules.tables.get(name)
            if name not in self.state.table_lives and (shape is None or not shape.is_special):
                return found
        return decode_mutation(value)

    def watermark_needed(self, value: bytes, append_time_us: int) -> int:
        """Return the time that the watermark must exceed before a waiting record can be validated."""
        try:
            return needed_watermark(self._rules, decode_mutation(value), append_time_us)
        except WireError:
            return append_time_us

    def admit(
        self, mutation: Mutation, append_time_us: int, value: bytes, place: Place | None = None, own_key: bool = True
    ) -> str:
        """Validate one write, and keep it if it is accepted and owned.

        The rules, their order and their clock (the broker's append time) are those of the CDC pipeline, so a row and
        its CDC record are always rejected together.

        Args:
            place: The place of the partition, if it is known.
            own_key: Whether the record's key is that of the write.

        Returns:
            ``kept``, ``not_mine``, ``dropped``, ``held``, or the code of the rule that rejects the write.
        """
        with self.lock:
            began = thread_time_ns()
            found = verdict(self._rules, mutation, append_time_us, own_key)
            if found is None:
                return HELD
            if found.version is None:
                return found.code
            name = f"{mutation.keyspace}.{mutation.table}"
            table = self.state.tables.get(name)
            if table is None or table.id != found.version.id:
                return DROPPED
            key, token = place or _place([part for part in mutation.partition_key if part is not None])
            owned = self._owned[name]
            if not owned.accepts_writes(token):
                return NOT_OWNED
            if stored := found.version.shape.stored:
                value = encode_mutation(as_stored(decode_mutation(value), stored))
            self._put(RowVersion(name, token, key, mutation.clustering_key, mutation.timestamp, value), table.id)
            if isinstance(owned, OwnedTablets):
                self.served.count_request(WRITES, self.state, name, token, began)
            return KEPT

    def _put(self, version: RowVersion, table_id: str) -> None:
        if self.store.ids.get(version.table) != table_id:
            self.store.identify(version.table, table_id)
        self.store.add(version)
        self._compactor.count_write(version.table, version.partition_key)
        for scan in self.scans:
            if scan.name == (version.table, version.partition_key):
                scan.add(version)

    def remove(self, versions: Sequence[RowVersion]) -> None:
        """Remove redundant versions (``ringlog.node.rows.compaction``)."""
        if versions:
            self.store.remove(versions)
            self._is_dirty = True

    def advance_position(self, partition: int, position: int) -> None:
        """Record that all records of ``partition`` below ``position`` are validated."""
        with self.lock:
            if position > self.positions.get(partition, -1):
                self.positions[partition] = position
                self._is_dirty = True

    def commit(self, sync: bool = False) -> None:
        """Make rows and positions durable in one transaction.

        Args:
            sync: True to sync the disk, even without changes.
        """
        with self.lock:
            state = self.state
            self.changed.notify_all()
            if state.epoch == 0 or not (sync or self._is_dirty):
                return
            adopted = state.cluster_id, state.epoch, state.state_id, self.topic_id
            self.store.commit(RowsMark(*adopted, dict(self.positions)), sync)
            self._is_dirty = False

    def compact(self) -> None:
        """Remove some redundant versions of partitions with many writes. Call from one thread only."""
        self._compactor.step(self)

    def sizes(self, table: str) -> Iterator[tuple[Token, int]]:
        """Yield each token of a table that has rows, with the bytes of its writes.

        Releases the lock between portions, so that requests are answered in the meantime.
        """
        after: Token | None = None
        while True:
            with self.lock:
                found = list(islice(self.store.sizes(table, after), PORTION))
            yield from found
            if len(found) < PORTION:
                return
            after = found[-1][0]

    # ---------------------------------------------------------------------------------------------- reads

    def read(self, table: str, partition_key: bytes) -> tuple[int, list[RowVersion]]:
        """Return the epoch and the versions of a partition. Raises NotReady or NotServed."""
        with self.lock:
            self._check_read(table, partition_key)
        began = thread_time_ns()
        with partition_read(self, (table, partition_key), None) as versions:
            self._check_read(table, partition_key)
            self.count_read(table, partition_key, began)
            return self.state.epoch, versions or []

    def _check_read(self, table: str, partition_key: bytes) -> None:
        if not self.caught_up:
            raise NotReady("the node has not yet read all writes from before its restart")
        owned = self._owned.get(table)
        if owned is None:
            raise NotServed(f"epoch {self.state.epoch} has no table {table}")
        if not owned.serves_reads(token_of_partition(partition_key)):
            raise NotServed(f"this node is not a read replica of the key of {table} at epoch {self.state.epoch}")

    def has(self, table: str, token: Token, is_write: bool) -> bool:
        """Return True if the node is a write replica (``is_write``) or a read replica of a key."""
        owned = self._owned.get(table, NOTHING)
        return owned.accepts_writes(token) if is_write else owned.serves_reads(token)

    def partition(self, table: str, partition_key: bytes, bytes_max: int | None = None) -> list[RowVersion] | None:
        """Return the versions of a partition, or None if they exceed ``bytes_max`` bytes."""
        return self.store.partition(table, token_of_partition(partition_key), partition_key, bytes_max)

    def count_read(self, table: str, partition_key: bytes, began_ns: int) -> None:
        """Count a read of a partition. ``began_ns``: ``thread_time_ns()`` when it began."""
        self.served.count_request(READS, self.state, table, token_of_partition(partition_key), began_ns)

    def has_table(self, table: str) -> bool:
        """Return True if the adopted epoch has a table of that name."""
        return table in self._rules.tables

    def shape(self, table: str) -> TableShape:
        """Return the shape of a table at the adopted epoch. Raises NotServed if it does not exist."""
        if table not in self._rules.tables:
            raise NotServed(f"epoch {self.state.epoch} has no table {table}")
        return self._rules.tables[table]

    # ----------------------------------------------------------------------------------------- streaming

    def page(self, fetch: RowFetch, newest: Epoch, after: RowVersion | None, page_bytes: int) -> Rows:
        """Return the next rows of a stream after ``after``, or none at its end.

        The source answers after it has adopted the streaming stage and ``newest``, the newest epoch of the receiver. It
        must also have applied all writes below the receiver's positions.

        Raises:
            NotReady: The source cannot answer yet.
            NotServed: The node is not the source of these rows.
        """
        with self.lock:
            if self.state.epoch < newest:
                raise SourceBehind(f"epoch {newest} is not adopted yet")
            work, positions = work_by_name(self.state, fetch.operation), dict(fetch.positions)
            if work is None:
                raise NotReady(f"epoch {self.state.epoch} does not have {fetch.operation} in a stage that streams")
            if not work.ranges_from(self.node, fetch.replication).issuperset(fetch.ranges):
                raise NotServed(f"{fetch.operation} does not have this node as the source of these ranges")
            behind = [p for p, offset in sorted(positions.items()) if self.positions.get(p, -1) < offset]
            if behind:
                raise NotReady(f"writes below the receiver's positions are not applied yet in partitions {behind}")
            found = self.store.listed(fetch.ranges, tables_under(self.state, fetch.replication), after)
            sizes = ((one, len(one.partition_key) + len(one.value)) for one in found)
            rows = next(grouped(sizes, page_bytes), ())
            return Rows(rows, tuple((name, self.store.ids[name]) for name in sorted({one.table for one in rows})))

    def take_in(self, fetch: RowFetch, page: Rows) -> bool:
        """Keep rows of a stream. Return False if the operation no longer wants them.

        Rows of an incomplete stream are valid. Rows of a different table with the same name are skipped: a source that
        is behind sends rows of the dropped table. A source that is ahead sends rows of the next table, and this node
        reads all writes to that table from the topic.
        """
        with self.lock:
            if not self.wants(fetch):
                return False
            tables = self.state.tables
            same = {name for name, table_id in page.tables if name in tables and tables[name].id == table_id}
            for version in page.rows:
                if version.table in same and self._owned[version.table].accepts_writes(version.token):
                    self._put(version, tables[version.table].id)
            self._is_dirty = True
            return True

    def complete(self, fetch: RowFetch, rows: int, digest: str) -> bool:
        """Complete a stream with its number of rows and their checksum. Return False if it is late."""
        with self.lock:
            if not self.wants(fetch):
                return False
            waiting = self._fetching[fetch.operation]
            waiting.remove(fetch)
            received = self._received.setdefault(fetch.operation, [])
            received.append((rows, digest))
            # The report combines all sources. Sorting makes the digest independent of their order.
            if not waiting:
                digests = "".join(sorted(one for _, one in received))
                total = sum(count for count, _ in received)
                self._report(fetch.operation, total, hashlib.sha256(digests.encode()).hexdigest())
                del self._received[fetch.operation]
            return True

    @property
    def streams(self) -> int:
        """The number of incomplete streams of rows. Takes no lock."""
        return sum(len(waiting) for waiting in tuple(self._fetching.values()))

    def wants(self, fetch: RowFetch) -> bool:
        """Return True while the rows of ``fetch`` are needed."""
        with self.lock:
            return fetch in self._fetching.get(fetch.operation, ())

    def _report(self, operation: str, rows: int, digest: str) -> None:
        self.reports[operation] = StreamReport(self.node, operation, rows, digest)


def _place(components: Sequence[bytes]) -> Place:
    key = compose(components)
    return key, token_of_partition(key)


def _serve(work: StreamingWork, node: str, waiting: Sequence[RowFetch]) -> bool:
    """Return True if the streams in progress still match those of the work."""
    wanted = work.ranges_to(node)
    return all(wanted.get((fetch.source, fetch.replication)) == fetch.ranges for fetch in waiting)

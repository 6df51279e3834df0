"""The comparison of every write with its CDC rows or its dead letter. It reads each topic once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ringlog.kernel.values import Value
from ringlog_audit.base import BaseRows
from ringlog_audit.letters import DeadLetters
from ringlog_audit.report import AuditCheck, AuditReport
from ringlog_audit.sources.heads import CDC_TAILS, MUTATION_TAILS, RecordHead, before_last_number
from ringlog_audit.sources.topics import HEADER, AuditError, AuditTopics, Decoder, Record
from ringlog_audit.writes.parts import Parts, RowPlace
from ringlog_audit.writes.published import published_rules
from ringlog_audit.writes.refusals import CDC_OPERATIONS, as_logged
from ringlog_audit.writes.writes import AuditWrite, MutationsReading, Position, Writes

SHARE_MIN = 0.10
BEFORE_ALL = (-1, 0, 0)
UUID_EPOCH_100NS = 0x01B21DD213814000
"""Hundreds of nanoseconds from the start of the Gregorian calendar, the zero of a timeuuid, to 1970."""

ROW_FIELDS = (
    "stream_id",
    "generation",
    "time",
    "batch_seq_no",
    "operation",
    "ttl",
    "end_of_batch",
    "keyspace",
    "table",
    "mutation_id",
    "source_topic",
    "source_partition",
    "source_offset",
    "timestamp",
    "partition_key",
)

Say = Callable[[str], None]


class Expected(Value):
    """The caller's knowledge of the input. A field that is None is not checked.

    ``leeway_us``: the allowed lateness of a cluster without a metadata log; otherwise the log contains it. ``base``:
    number of partitions of each table whose rows on the nodes are compared, 0 for all. ``archived``: records that were
    removed from the metadata log.
    """

    written: int | None = None
    rejected: int | None = None
    generations: int | None = None
    leeway_us: int | None = None
    base: int | None = None
    archived: Iterable[bytes] = ()


def audit(topics: AuditTopics, expected: Expected, say: Say, decoder: Decoder | None = None) -> AuditReport:
    """Compare the CDC log of a cluster with its mutations. Raise AuditError if a topic cannot be read.

    ``decoder``: None for a decoder with the cluster's schemas.
    """
    report = AuditReport()
    decoder = decoder or Decoder(topics)
    rules = published_rules(topics, decoder, expected.leeway_us, expected.archived)
    say(f"{len(rules.generations)} published generations")
    letters = DeadLetters(topics, decoder)
    writes = MutationsReading(decoder, rules, letters.reasons).all(topics)
    say(f"{len(writes.by_position):,} mutations read and hashed with the Cassandra driver")
    base = None if expected.base is None else BaseRows(writes, rules, expected.base, letters.reasons)
    rows = _Rows(writes, decoder, topics.name("mutations"), report, base)
    for message in topics.records("cdc"):
        rows.check(message)
    report.counts |= {"cdc_rows": rows.count, "repeated_rows": rows.repetitions, "streams_used": len(rows.homes)}
    say(f"{rows.count:,} CDC rows compared")
    rejected = letters.check(topics, writes, rules, report)
    _check_complete(writes, rows.seen, rejected, rules.history.decided, expected, report)
    _check_counts(writes, rows.seen, expected, report)
    if base is not None:
        say("comparing the rows of the nodes with the rows that the log defines")
        base.check(topics, decoder, report)
    return report


class _Rows:
    """The checks of CDC rows. Each row has one unchanged write, and is in the right stream, generation and order."""

    def __init__(
        self, writes: Writes, decoder: Decoder, source_topic: str, report: AuditReport, base: BaseRows | None
    ) -> None:
        self._base = base
        self._writes = writes.by_position
        self._parts = Parts(writes.reading)
        self._decoder = decoder
        self._source_topic = source_topic
        self._source = AuditCheck("source", "every CDC row comes from one write, key and cells unchanged")
        self._once = AuditCheck(
            "exactly_once",
            "no write has two CDC rows, except repetitions of the same bytes; no identity has two",
        )
        self._stream = AuditCheck(
            "stream", "every row is in the stream of its token, in the generation that was active at its timestamp"
        )
        self._partition = AuditCheck("partition", "every stream is in exactly one partition of the CDC topic")
        self._order = AuditCheck("order", "writes of one partition key appear in the order of the mutations topic")
        report.checks += [self._source, self._once, self._stream, self._partition, self._order]
        self._heads: dict[bytes, RecordHead] = {}
        self._tails: dict[bytes, RecordHead] = {}
        self._last: dict[tuple[int, int, int], tuple[int, int, int]] = {}
        self._identities: dict[bytes, bytes | None] = {}
        self._records: dict[tuple[int, int, int, int], bytes] = {}
        self.homes: dict[bytes, int] = {}
        self.seen: set[Position] = set()
        self.count = self.repetitions = 0

    def check(self, message: Record) -> None:
        """Count every failure that one record of the CDC topic shows."""
        self.count += 1
        value, key = message.value() or b"", message.key() or b""
        where = f"CDC {message.partition()}/{message.offset()}"
        try:
            row, tail = self._read_head(value)
        except AuditError as broken:
            self._source.fail(f"{where}: {broken}")
            return
        position = (row["source_partition"], row["source_offset"])
        if self._is_repetition(message, row):
            self.repetitions += 1
            return
        where = f"source {position[0]}/{position[1]}, {where}"
        write = self._writes.get(position)
        if self._base is not None and write is not None:
            self._base.take(write, lambda: self._decoder.decode(value))
        place = self._place_of(write, position, row, value, tail) if write is not None else None
        if write is None or place is None:
            self._source.fail(where)
            return
        identity = key + row["time"] + row["batch_seq_no"].to_bytes(4, "big")
        # A producer may send one mutation twice under one id. Otherwise two rows with one identity are a failure.
        mutation_id = row["mutation_id"]
        is_other = identity in self._identities and (mutation_id is None or mutation_id != self._identities[identity])
        self._identities[identity] = mutation_id
        if place.is_repeated or position in self.seen or is_other:
            self._once.fail(where)
        if place.is_last:
            self.seen.add(position)
        self._check_place(message.partition() or 0, key, row, place, where)
        # Rows of another generation are in another stream, which is read after this one is closed.
        base, here = (row["generation"], position[0], write.base), (position[1], row["timestamp"], row["batch_seq_no"])
        if self._last.get(base, BEFORE_ALL) > here:
            self._order.fail(where)
        self._last[base] = here

    def _is_repetition(self, message: Record, row: dict[str, Any]) -> bool:
        """Return True if the partition already has the same record. A restarted job writes its current part again."""
        place = message.key() or b"", message.value() or b""
        own = hashlib.blake2b(b"".join(place), digest_size=16, salt=(message.partition() or 0).to_bytes(4, "big"))
        name = row["source_partition"], row["source_offset"], row["timestamp"], row["batch_seq_no"]
        before = self._records.setdefault(name, b"")
        self._records[name] = before or own.digest()
        return before == own.digest()

    def _place_of(
        self, write: AuditWrite, position: Position, row: dict[str, Any], value: bytes, tail: int
    ) -> RowPlace | None:
        """Return the place of a row that matches its write, and None for a row that does not match."""
        if write.version is None:
            return None
        if write.plain and self._unchanged(write, row, value, tail):
            return RowPlace(write.generation, write.stream, write.refusal)
        return self._parts.place(write, position, self._decoder.decode(value)) if self._common(write, row) else None

    def _check_place(self, partition: int, key: bytes, row: dict[str, Any], place: RowPlace, where: str) -> None:
        stream = place.stream or key
        if place.refusal or key != stream or row["stream_id"] != key or row["generation"] != place.generation:
            self._stream.fail(f"{where}: key {key.hex()}, expected {stream.hex()} {place.refusal}")
        if self.homes.setdefault(key, partition) != partition:
            self._partition.fail(f"{where}: stream {key.hex()} is also in partition {self.homes[key]}")

    def _read_head(self, value: bytes) -> tuple[dict[str, Any], int]:
        """Return the fields before the clustering key and its position, 0 if the row was decoded completely."""
        head = self._heads.get(value[:HEADER])
        if head is None:
            head = self._heads[value[:HEADER]] = RecordHead(self._decoder.schema(value), CDC_TAILS, ROW_FIELDS)
        if head.usable:
            try:
                fields, tail = head.read(value, HEADER)
                return dict(zip(ROW_FIELDS, fields, strict=True)), tail
            except (IndexError, ValueError):
                pass
        return self._decoder.decode(value), 0

    def _shared(self, value: bytes, at: int, tails: tuple[tuple[str, ...], ...]) -> bytes | None:
        """Return the clustering key and cells of a record whose tail begins at ``at``, or None if more fields have
        values.
        """
        head = self._tails.get(value[:HEADER])
        if head is None:
            head = self._tails[value[:HEADER]] = RecordHead(self._decoder.schema(value), tails, ())
        tail = before_last_number(value[at:]) if head.has_epoch else value[at:]
        return tail[: len(tail) - len(head.rest)] if tail.endswith(head.rest) else None

    def _common(self, write: AuditWrite, row: dict[str, Any]) -> bool:
        """Return True if the fields that all rows of a write share are equal to the write's fields."""
        mutation_id, _, keyspace, table, *_, partition_key = write.head
        fields = (row["mutation_id"], row["keyspace"], row["table"], row["partition_key"], row["source_topic"])
        return fields == (mutation_id, keyspace, table, partition_key, self._source_topic) and (
            _time_of(row["time"]) == row["timestamp"]
        )

    def _unchanged(self, write: AuditWrite, row: dict[str, Any], value: bytes, tail: int) -> bool:
        timestamp, ttl, operation = write.head[4:7]
        if (row["timestamp"], row["ttl"], row["operation"]) != (timestamp, ttl, CDC_OPERATIONS.get(operation)):
            return False
        if (row["batch_seq_no"], row["end_of_batch"]) != (0, True) or not self._common(write, row):
            return False
        if tail and write.tail:
            expected_tail = self._shared(write.value, write.tail, MUTATION_TAILS)
            if expected_tail is not None and expected_tail == self._shared(value, tail, CDC_TAILS):
                return True
        try:
            mutation = self._decoder.decode(write.value)
            assert write.version is not None, "the write is accepted"
            mutation = as_logged(mutation, write.version)
            if write.version.table.keys_only:
                mutation["cells"] = []
            return _same(mutation, self._decoder.decode(value))
        except (AuditError, KeyError):
            return False


def _time_of(timeuuid: bytes) -> int:
    """Return the microseconds since 1970 of a version-1 UUID, or -1 for any other UUID."""
    low, mid, high = timeuuid[0:4], timeuuid[4:6], timeuuid[6:8]
    ticks = int.from_bytes(bytes((high[0] & 0x0F, high[1])) + mid + low, "big")
    micros, rest = divmod(ticks - UUID_EPOCH_100NS, 10)
    return micros if high[0] >> 4 == 1 and rest == 0 else -1


def _same(mutation: dict[str, Any], row: dict[str, Any]) -> bool:
    """Return True if a row matches its mutation: clustering key, cells with values, and names of null cells."""
    values = [(cell["column"], cell["value"]) for cell in mutation["cells"]]
    return (
        not any(mutation[name] for name in ("deleted_elements", "replaced", "bounds", "more"))
        and not row["deleted_elements"]
        and mutation["clustering_key"] == row["clustering_key"]
        and [pair for pair in values if pair[1] is not None] == [(c["column"], c["value"]) for c in row["cells"]]
        and [column for column, value in values if value is None] == row["deleted"]
    )


def _check_complete(
    writes: Writes,
    written: set[Position],
    rejected: set[Position],
    decided: Mapping[int, int] | None,
    expected: Expected,
    report: AuditReport,
) -> None:
    """Check that each write has rows or a dead letter, and not both.

    ``decided``: source partition to the offset below which the job has processed all writes. None: all writes.
    """
    every = writes.by_position
    whole = f"{len(written):,} written + {len(rejected):,} rejected = {len(every):,} mutations"
    check, done = AuditCheck("complete", whole), AuditCheck("carried_out", "the CDC job has processed every mutation")
    report.checks += [check, done]
    report.counts |= {"mutations": len(every), "written": len(written), "rejected": len(rejected)}
    for position in sorted(every.keys() - written - rejected):
        refusal, alternatives = writes.reading.whole(every[position], position)
        if not refusal and alternatives is not None and [] in alternatives:
            writes.skipped.add(position)  # the write changes nothing, so it has no row
        elif decided is not None and position[1] >= decided.get(position[0], 0):
            done.fail(
                f"write {position[0]}/{position[1]} is not processed yet; check that the job runs, or pass "
                "--wait-seconds"
            )
        else:
            check.fail(f"write {position[0]}/{position[1]} is in neither topic")
    report.counts |= {"skipped": len(writes.skipped), "not_carried_out": done.failures}
    for position in sorted(written & rejected):
        check.fail(f"write {position[0]}/{position[1]} is in both topics")
    for statement, found, wanted in (
        ("written", len(written), expected.written),
        ("rejected", len(rejected), expected.rejected),
    ):
        if wanted is not None and found != wanted:
            check.fail(f"{found:,} {statement}, expected {wanted:,}")


def _check_counts(writes: Writes, written: set[Position], expected: Expected, report: AuditReport) -> None:
    used: dict[int, int] = {}
    for position in written:
        generation = writes.by_position[position].generation
        used[generation] = used.get(generation, 0) + 1
    report.generations = [{"timestamp": timestamp, "rows": used[timestamp]} for timestamp in sorted(used)]
    if expected.generations is None:
        return
    check = AuditCheck(
        "both_generations", f"{expected.generations} generations have at least {SHARE_MIN:.0%} of the rows each"
    )
    report.checks.append(check)
    if len(used) != expected.generations:
        check.fail(f"rows are in {len(used)} generations")
    for timestamp, rows in sorted(used.items()):
        if rows < SHARE_MIN * len(written):
            check.fail(f"generation {timestamp} has {rows:,} of {len(written):,} rows")

"""The mutations, each with what must become of it.

Kept per write: its bytes as they came, the stream and generation it belongs to or the reason to refuse it: about
0.7 KB each.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from confluent_kafka import Message

from ringlog.audit.compound import AuditLogRow, is_compound, log_rows, plain_row
from ringlog.audit.heads import MUTATION_TAILS, RecordHead, components_at, names_at
from ringlog.audit.images import Images, Wanted
from ringlog.audit.rules import NAMES, SKIPPED, AuditRules
from ringlog.audit.streams import compose, generation_for, hash_of, stream_for
from ringlog.audit.topics import HEADER, AuditError, Decoder, records

MUTATION = "Mutation"
HEAD_FIELDS = ("mutation_id", "cluster_id", "keyspace", "table", "timestamp", "ttl", "operation", "partition_key")
UNREADABLE = "unreadable"

Position = tuple[int, int]


@dataclass(frozen=True, slots=True)
class AuditWrite:
    """What a mutation says and where it belongs.

    ``stream`` (empty: that of an expired generation, not known any more) and ``generation`` count where ``refusal`` is
    empty. ``tail``: where the clustering key begins in
    ``value``; 0 if only whole decoding tells. ``base`` stands for table and partition key.
    ``key``: that of the record. ``now``: its append time. ``plain``: what comes before the cells says that it is one
    row, unless there is more behind them.
    """

    value: bytes
    head: tuple[Any, ...]
    tail: int
    base: int
    stream: bytes
    generation: int
    refusal: str
    key: bytes | None
    now: int
    plain: bool


@dataclass(frozen=True, slots=True)
class ExpectedRow:
    """A row that the log must have of a compound write, and where."""

    row: AuditLogRow
    generation: int
    stream: bytes


@dataclass(slots=True)
class Writes:
    """All writes by position; ``skipped``: those of tables without a CDC log, which are not among them."""

    reading: MutationsReading
    by_position: dict[Position, AuditWrite] = field(default_factory=dict)
    skipped: set[Position] = field(default_factory=set)


class MutationsReading:
    """Reads the mutations topic."""

    def __init__(self, decoder: Decoder, rules: AuditRules) -> None:
        self._decoder = decoder
        self._rules = rules
        self._heads: dict[bytes, RecordHead] = {}
        self._bases: dict[tuple[str, str, bytes], int] = {}
        self._streams: dict[tuple[int, int, str], bytes] = {}
        self._token_of = lru_cache(maxsize=200_000)(hash_of)
        self._images = Images()
        self._imaged: dict[Position, list[ExpectedRow]] = {}

    def all(self, bootstrap: str, cluster: str) -> Writes:
        """Every write with what must become of it."""
        found = Writes(self)
        for message in records(bootstrap, f"{cluster}.mutations"):
            position = (message.partition() or 0, message.offset() or 0)
            write = self._write(message, position)
            if write.refusal == SKIPPED:
                found.skipped.add(position)
            else:
                found.by_position[position] = write
        return found

    def _write(self, message: Message, position: Position) -> AuditWrite:
        value, key, now = message.value() or b"", message.key(), message.timestamp()[1] * 1_000
        compound = False
        try:
            mutation, tail = self._look(value)
            plain = not self._is_doubtful(mutation)
            if not plain:
                mutation = self._decoder.decode(value)
                compound = self._is_compound(mutation)
                plain = not compound and self._wanted(mutation) is None
        except AuditError:
            return AuditWrite(value, (), 0, 0, b"", 0, UNREADABLE, key, now, True)
        head = tuple([mutation[name] for name in HEAD_FIELDS])
        refusal = self._rules.refusal(mutation, now, compound)
        if refusal:
            return AuditWrite(value, head, tail, 0, b"", 0, refusal, key, now, plain)
        composed = compose(mutation["partition_key"])
        if self._wanted(mutation) is not None:
            self._imaged[position] = self._with_images(self._decoder.decode(value), composed, now)
        start, stream = self._place(mutation["timestamp"], composed, f"{mutation['keyspace']}.{mutation['table']}")
        base = self._bases.setdefault((mutation["keyspace"], mutation["table"], composed), len(self._bases))
        return AuditWrite(value, head, tail, base, stream, start, "", key, now, plain)

    def _place(self, timestamp: int, composed: bytes, name: str) -> tuple[int, bytes]:
        """(start of the generation, stream) of an acceptable timestamp, a composed partition key, a table's name."""
        generation = generation_for(self._rules.generations, timestamp)
        assert generation is not None, "a write without a generation is refused"
        token, known = self._token_of(composed), self._rules.tables.get(name)
        table = known.id if known is not None and known.id in generation.tables else ""
        stream = self._streams.get((generation.timestamp, token, table))
        if stream is None:
            stream = stream_for(generation, token, table) if generation.ranges else b""
            self._streams[generation.timestamp, token, table] = stream
        return generation.timestamp, stream

    def _is_doubtful(self, head: dict[str, Any]) -> bool:
        """True if a write may be compound for what comes before its cells."""
        table = self._rules.tables.get(f"{head['keyspace']}.{head['table']}")
        special = table is not None and (table.columns.special or table.images is not None or table.respelled)
        return special or head["ttl"] is not None or bool(head["operation"] == "RANGE_DELETE")

    def _is_compound(self, mutation: dict[str, Any]) -> bool:
        table = self._rules.tables.get(f"{mutation['keyspace']}.{mutation['table']}")
        return table is not None and is_compound(mutation, table.columns)

    def _wanted(self, mutation: dict[str, Any]) -> Wanted | None:
        """The images that the log has of a write, None if its table keeps none."""
        table = self._rules.tables.get(f"{mutation['keyspace']}.{mutation['table']}")
        return None if table is None else table.images

    def _with_images(self, mutation: dict[str, Any], composed: bytes, now: int) -> list[ExpectedRow]:
        """The rows of a write that is not refused, which must be the next one of its partition key."""
        name = f"{mutation['keyspace']}.{mutation['table']}"
        table = self._rules.tables[name]
        assert table.images is not None, "its table keeps images"
        compound, mutation = is_compound(mutation, table.columns), self._rules.as_logged(mutation, now, None)
        logged = (
            log_rows(mutation, table.columns, table.keys_only) if compound else plain_row(mutation, table.keys_only)
        )
        rows = self._images.rows(name, composed, mutation, logged, table.columns, table.images, now)
        return [ExpectedRow(row, *self._place(row.timestamp, composed, name)) for row in rows]

    def whole(
        self, write: AuditWrite, position: Position, epoch: int | None = None, decided: int | None = None
    ) -> tuple[str, list[ExpectedRow] | None]:
        """(the reason to refuse a write, decoded whole; the rows that the log must have of it, None: as it stands).

        ``epoch``: at which it was judged, None: unknown; ``decided``: that a row of it names, if any.
        """
        if position in self._imaged and epoch is None:
            return "", self._imaged[position]
        try:
            mutation = self._decoder.decode(write.value)
        except AuditError:
            return UNREADABLE, None
        if not self._is_compound(mutation):
            return write.refusal if epoch is None else self._rules.refusal(mutation, write.now, epoch=epoch), None
        refusal = self._rules.refusal(mutation, write.now, compound=True, epoch=epoch)
        if refusal:
            return refusal, None
        name = f"{mutation['keyspace']}.{mutation['table']}"
        table = self._rules.tables[name]
        composed = compose(mutation["partition_key"])
        logged = self._rules.as_logged(mutation, write.now, decided)
        rows = log_rows(logged, table.columns, table.keys_only)
        return "", [ExpectedRow(row, *self._place(row.timestamp, composed, name)) for row in rows]

    def collections(self, write: AuditWrite) -> dict[str, str]:
        """Name to type of the unfrozen collections of the write's table."""
        return self._rules.tables[f"{write.head[2]}.{write.head[3]}"].columns.collections

    def keys_only(self, write: AuditWrite) -> bool:
        """True if the log of the write's table holds only keys."""
        return self._rules.tables[f"{write.head[2]}.{write.head[3]}"].keys_only

    def _look(self, value: bytes) -> tuple[dict[str, Any], int]:
        """The fields before the cells, and where the clustering key begins; raises AuditError for no mutation."""
        head = self._heads.get(value[:HEADER])
        if head is None:
            if self._decoder.name(value).rpartition(".")[2] != MUTATION:
                raise AuditError("a record of another kind")
            head = self._heads[value[:HEADER]] = RecordHead(self._decoder.schema(value), MUTATION_TAILS, HEAD_FIELDS)
        if head.usable:
            try:
                fields, tail = head.read(value, HEADER)
                mutation: dict[str, Any] = dict(zip(HEAD_FIELDS, fields, strict=True))
                mutation["clustering_key"], cells = components_at(value, tail)
                mutation[NAMES], _ = names_at(value, cells)
                return mutation, tail
            except (IndexError, ValueError):
                pass
        return self._decoder.decode(value), 0

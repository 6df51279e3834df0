"""The mutations, each with its expected result.

A write takes about 0.7 KB: its bytes, and its stream and generation or the reason to reject it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from ringlog.kernel.values import Value
from ringlog_audit.rules.compound import AuditLogRow, is_compound, log_rows, plain_row
from ringlog_audit.rules.images import Images, Wanted
from ringlog_audit.rules.streams import compose, generation_for, hash_of, stream_for
from ringlog_audit.sources.heads import MUTATION_TAILS, RecordHead, cells_at, components_at
from ringlog_audit.sources.topics import HEADER, AuditError, AuditTopics, Decoder, Record
from ringlog_audit.writes.history import AuditVersion
from ringlog_audit.writes.refusals import SKIPPED, AuditRules, as_logged

MUTATION = "Mutation"
HEAD_FIELDS = ("mutation_id", "cluster_id", "keyspace", "table", "timestamp", "ttl", "operation", "partition_key")
UNREADABLE = "unreadable"
PLAIN: dict[str, Any] = {"deleted_elements": [], "replaced": [], "bounds": None, "more": []}
"""Fields after the cells that have their defaults."""
BY_THE_JOB = ("generation_closed", "oversized")
"""Reasons that do not follow from the mutation and the metadata. The job decides them. The log has no row of the write.
"""

Position = tuple[int, int]


class AuditWrite(Value):
    """A mutation and its expected place in the log.

    ``stream`` and ``generation`` are valid if ``refusal`` is empty. ``stream`` is empty if the generation has expired
    and its streams are not known. ``version``: the table version that reads the write, None for none. ``tail``:
    position of the clustering key in ``value``, 0 if the write must be decoded completely. ``base``: number of the
    table and partition key. ``key``: key of the record. ``now``: append time of the write. ``plain``: the write is one
    row.
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
    version: AuditVersion | None = None


class ExpectedRow(Value):
    """A row that a compound write must have in the log, with its generation and stream."""

    row: AuditLogRow
    generation: int
    stream: bytes


@dataclass(slots=True)
class Writes:
    """All writes by position. ``skipped``: positions of writes without log rows, for example of tables without a CDC
    log.
    """

    reading: MutationsReading
    by_position: dict[Position, AuditWrite] = field(default_factory=dict)
    skipped: set[Position] = field(default_factory=set)


class MutationsReading:
    """The reader of the mutations topic. ``letters``: the reason of each dead letter."""

    def __init__(self, decoder: Decoder, rules: AuditRules, letters: Mapping[Position, str]) -> None:
        self._decoder = decoder
        self._rules = rules
        self._letters = letters
        self._heads: dict[bytes, RecordHead] = {}
        self._bases: dict[tuple[str, bytes], int] = {}
        self._streams: dict[tuple[int, int, str], bytes] = {}
        self._token_of = lru_cache(maxsize=200_000)(hash_of)
        self._images: dict[tuple[str, int, int], Images] = {}
        self._imaged: dict[Position, list[list[ExpectedRow]]] = {}

    def all(self, topics: AuditTopics) -> Writes:
        """Return every write with its expected result."""
        found = Writes(self)
        for message in topics.records("mutations"):
            position = (message.partition() or 0, message.offset() or 0)
            write = self._write(message, position)
            if write.refusal == SKIPPED:
                found.skipped.add(position)
            else:
                found.by_position[position] = write
        return found

    def _write(self, message: Record, position: Position) -> AuditWrite:
        value, key, now = message.value() or b"", message.key(), message.timestamp()[1] * 1_000
        compound, wanted, switches = False, None, 0
        try:
            if self._letters.get(position) == UNREADABLE and self._decoder.breaks_avro(value):
                raise AuditError("the record breaks the rules of Avro")
            mutation, tail = self._read_head(value)
            version = self._rules.history.read_by(mutation, now, None)
            wanted, switches = self._wanted(mutation, version, now)
            plain = wanted is None and not _is_doubtful(mutation, version)
            if not plain:
                mutation = self._decoder.decode(value)
                compound = isinstance(version, AuditVersion) and is_compound(mutation, version.table.columns)
                plain = not compound and wanted is None
        except AuditError:
            return AuditWrite(value, (), 0, 0, b"", 0, UNREADABLE, key, now, True)
        head = tuple([mutation[name] for name in HEAD_FIELDS])
        refusal = self._rules.refusal(mutation, version, now, key, compound)
        if refusal or isinstance(version, str):
            known = None if isinstance(version, str) else version
            return AuditWrite(value, head, tail, 0, b"", 0, refusal, key, now, plain, known)
        composed = compose(mutation["partition_key"])
        if wanted is not None and self._letters.get(position) not in BY_THE_JOB:
            begun = (position[0], 0), (position[0], switches)
            rows = self._with_images(mutation, version, wanted, begun, composed, now)
            self._imaged[position] = [self._placed(one, composed, version) for one in rows]
        start, stream = self._place(mutation["timestamp"], composed, version)
        base = self._bases.setdefault((version.table.id, composed), len(self._bases))
        return AuditWrite(value, head, tail, base, stream, start, "", key, now, plain, version)

    def _place(self, timestamp: int, composed: bytes, version: AuditVersion) -> tuple[int, bytes]:
        """Return (start of the generation, stream) of an accepted timestamp and a composed partition key of a table."""
        generation = generation_for(self._rules.generations, timestamp)
        assert generation is not None, "a write without a generation is refused"
        token = self._token_of(composed)
        table = version.table.id if version.table.id in generation.tables else ""
        stream = self._streams.get((generation.timestamp, token, table))
        if stream is None:
            stream = stream_for(generation, token, table) if generation.ranges else b""
            self._streams[generation.timestamp, token, table] = stream
        return generation.timestamp, stream

    def _placed(self, rows: list[AuditLogRow], composed: bytes, version: AuditVersion) -> list[ExpectedRow]:
        return [ExpectedRow(row, *self._place(row.timestamp, composed, version)) for row in rows]

    def _wanted(self, mutation: dict[str, Any], version: AuditVersion | str, now: int) -> tuple[Wanted | None, int]:
        """Return (the images of a write in the log, how often images of its table were switched on before)."""
        if isinstance(version, str):
            return None, 0
        life = self._rules.history.life_of(mutation, now, None)
        assert life is not None, "a version of the table reads the write"
        return self._rules.history.images_for(version, life, now)

    def _with_images(
        self,
        mutation: dict[str, Any],
        version: AuditVersion,
        wanted: Wanted,
        begun: Sequence[tuple[int, int]],
        composed: bytes,
        now: int,
    ) -> list[list[AuditLogRow]]:
        """Return the rows of an accepted write, which must be the next write of its partition key.

        If images were switched off and on again, the job may or may not start new images there. The second list has the
        rows of a log that starts new images. ``begun``: pairs (source partition, how often images were switched on).
        """
        found = []
        for place in dict.fromkeys(begun):
            images = self._images.setdefault((version.table.id, *place), Images())
            rows = self._rows(mutation, version)
            name = f"{mutation['keyspace']}.{mutation['table']}"
            write = as_logged(mutation, version)
            own = version.table.logged_names
            found.append(images.rows(name, composed, write, rows, version.table.columns, wanted, now, own))
        return found

    def _rows(self, mutation: dict[str, Any], version: AuditVersion) -> list[AuditLogRow]:
        """Return the rows of a write without images."""
        columns, keys_only = version.table.columns, version.table.keys_only
        logged = as_logged(mutation, version)
        return log_rows(logged, columns, keys_only) if is_compound(mutation, columns) else plain_row(logged, keys_only)

    def whole(
        self, write: AuditWrite, position: Position, epoch: int | None = None, decided: int | None = None
    ) -> tuple[str, list[list[ExpectedRow]] | None]:
        """Decode a write completely. Return (reason to reject it, alternatives of its rows in the log).

        The alternatives are None for a plain write. ``epoch``: the epoch of its validation, None if not
        known. ``decided``: the epoch that a row of the write names, None if there is none.
        """
        if position in self._imaged and epoch is None:
            return "", self._imaged[position]
        if write.refusal == UNREADABLE:
            return UNREADABLE, None
        try:
            mutation = self._decoder.decode(write.value)
        except AuditError:
            return UNREADABLE, None
        version = self._rules.history.read_by(mutation, write.now, decided if epoch is None else epoch)
        compound = isinstance(version, AuditVersion) and is_compound(mutation, version.table.columns)
        refusal = self._rules.refusal(mutation, version, write.now, write.key, compound, epoch)
        if refusal or isinstance(version, str) or not compound:
            return refusal, None
        composed = compose(mutation["partition_key"])
        return "", [self._placed(self._rows(mutation, version), composed, version)]

    def _read_head(self, value: bytes) -> tuple[dict[str, Any], int]:
        """Return the fields before the cells and the position of the clustering key. Raise AuditError for other
        records.

        A write with values after its cells is decoded completely. It may name a version or be compound.
        """
        head = self._heads.get(value[:HEADER])
        if head is None:
            if self._decoder.name(value).rpartition(".")[2] != MUTATION:
                raise AuditError("the record is not a mutation")
            head = self._heads[value[:HEADER]] = RecordHead(self._decoder.schema(value), MUTATION_TAILS, HEAD_FIELDS)
        if head.usable:
            try:
                fields, tail = head.read(value, HEADER)
                mutation: dict[str, Any] = dict(zip(HEAD_FIELDS, fields, strict=True))
                mutation["clustering_key"], cells = components_at(value, tail)
                mutation["cells"], end = cells_at(value, cells)
                if value[end:] == head.rest:
                    return mutation | PLAIN, tail
            except (IndexError, ValueError):
                pass
        return self._decoder.decode(value), 0


def _is_doubtful(head: dict[str, Any], version: AuditVersion | str) -> bool:
    """Return True if the fields up to the cells do not rule out a compound write, or the write is decoded already."""
    names = [cell["column"] for cell in head["cells"]]
    if "epoch" in head or len(set(names)) < len(names):
        return True
    special = isinstance(version, AuditVersion) and version.table.columns.special
    return special or head["ttl"] is not None or bool(head["operation"] == "RANGE_DELETE")

"""The mutations, each with what must become of it.

Kept per write: its bytes as they came, the stream and generation it belongs to or the reason to refuse it: about
0.7 KB each.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from confluent_kafka import Message

from ringlog.audit.heads import MUTATION_TAILS, Head, components_at
from ringlog.audit.rules import SKIPPED, Rules
from ringlog.audit.streams import compose, generation_for, hash_of, stream_for
from ringlog.audit.topics import HEADER, AuditError, Decoder, records

MUTATION = "Mutation"
HEAD_FIELDS = ("mutation_id", "cluster_id", "keyspace", "table", "timestamp", "ttl", "operation", "partition_key")
UNREADABLE = "unreadable"

Position = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Write:
    """What a mutation says and where it belongs.

    ``stream`` (empty: that of an expired generation, not known any more) and ``generation`` count where ``refusal`` is
    empty. ``tail``: where the clustering key begins in
    ``value``; 0 if only whole decoding tells. ``base`` stands for table and partition key.
    ``key``: that of the record.
    """

    value: bytes
    head: tuple[Any, ...]
    tail: int
    base: int
    stream: bytes
    generation: int
    refusal: str
    key: bytes | None


@dataclass(slots=True)
class Writes:
    """All writes by position; ``skipped``: those of tables without a CDC log, which are not among them."""

    by_position: dict[Position, Write] = field(default_factory=dict)
    skipped: set[Position] = field(default_factory=set)


class Reading:
    """Reads the mutations topic."""

    def __init__(self, decoder: Decoder, rules: Rules) -> None:
        self._decoder = decoder
        self._rules = rules
        self._heads: dict[bytes, Head] = {}
        self._bases: dict[tuple[str, str, bytes], int] = {}
        self._streams: dict[tuple[int, int], bytes] = {}
        self._token_of = lru_cache(maxsize=200_000)(hash_of)

    def all(self, bootstrap: str, cluster: str) -> Writes:
        """Every write with what must become of it."""
        found = Writes()
        for message in records(bootstrap, f"{cluster}.mutations"):
            position = (message.partition() or 0, message.offset() or 0)
            write = self._write(message)
            if write.refusal == SKIPPED:
                found.skipped.add(position)
            else:
                found.by_position[position] = write
        return found

    def _write(self, message: Message) -> Write:
        value, key, now = message.value() or b"", message.key(), message.timestamp()[1] * 1_000
        try:
            mutation, tail = self._look(value)
        except AuditError:
            return Write(value, (), 0, 0, b"", 0, UNREADABLE, key)
        head = tuple([mutation[name] for name in HEAD_FIELDS])
        refusal = self._rules.refusal(mutation, now)
        if refusal:
            return Write(value, head, tail, 0, b"", 0, refusal, key)
        generation = generation_for(self._rules.generations, mutation["timestamp"])
        assert generation is not None, "a write without a generation is refused"
        composed = compose(mutation["partition_key"])
        token = self._token_of(composed)
        stream = self._streams.get((generation.timestamp, token))
        if stream is None:
            stream = stream_for(generation, token) if generation.ranges else b""
            self._streams[generation.timestamp, token] = stream
        base = self._bases.setdefault((mutation["keyspace"], mutation["table"], composed), len(self._bases))
        return Write(value, head, tail, base, stream, generation.timestamp, "", key)

    def _look(self, value: bytes) -> tuple[dict[str, Any], int]:
        """The fields before the cells, and where the clustering key begins; raises AuditError for no mutation."""
        head = self._heads.get(value[:HEADER])
        if head is None:
            if self._decoder.name(value).rpartition(".")[2] != MUTATION:
                raise AuditError("a record of another kind")
            head = self._heads[value[:HEADER]] = Head(self._decoder.schema(value), MUTATION_TAILS, HEAD_FIELDS)
        if head.usable:
            try:
                fields, tail = head.read(value, HEADER)
                mutation: dict[str, Any] = dict(zip(HEAD_FIELDS, fields, strict=True))
                mutation["clustering_key"], _ = components_at(value, tail)
                return mutation, tail
            except (IndexError, ValueError):
                pass
        return self._decoder.decode(value), 0

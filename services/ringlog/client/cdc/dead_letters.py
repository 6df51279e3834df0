"""Dead letters: find and count them, and send their records to the mutations topic again.

The topic ``dead-letters`` has one partition and keeps its records permanently. A letter has two names: its offset in
that topic (the id that the commands print), and the position of the rejected record (``topic/partition/offset``).

A record is sent again in one Kafka transaction with its *mark*. The mark is the letter once more, with the header
``RESENT``. Readers of the topic already accept a repeated letter, because a restarted job repeats its last batch.

Invariants:

- Without ``again``, a record is sent again once, also if two processes do it at the same time or one is killed. A
  process first fences the other one, and then reads all marks.
- Key and value are unchanged. A letter that has only a part of its original is not sent.
- Memory does not grow with the topic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

from ringlog.client.cdc.errors import NotResendable, ResendFailed, UnknownLetter
from ringlog.client.cdc.topics import bounds_of, messages_between
from ringlog.kernel.values import Micros, Value, replace
from ringlog.log.errors import LogUnavailable
from ringlog.log.kafka.adapter import reader_config
from ringlog.log.kafka.topics import DEAD_LETTERS, MUTATIONS, admin_client, describe, topic_name, transactional_id
from ringlog.runtime.kafka.config import connection
from ringlog.wire.errors import WireError
from ringlog.wire.records import (
    KEY_KEPT,
    VALUE_KEPT,
    DeadLetter,
    decode_dead_letter,
    decode_mutation,
    mutation_partition,
)

RESENT = "ringlog.resent"
"""The header of a mark."""
NOT_A_LETTER = "not_a_letter"
"""The reason of a record that is not a dead letter."""
OTHERS = "(others)"
"""The name of the group that counts everything beyond ``GROUPS_MAX`` groups."""
GROUPS_MAX, KEYS_MAX, TEXT_MAX, DETAIL_MAX = 1_000, 200_000, 200, 1_000
CHUNK = 1_000
"""Records of one step of a backward scan."""
BATCH, BATCH_BYTES = 100, 8 * 1024 * 1024
"""Letters and bytes of one transaction."""
ANSWER_S = 30.0


class LetterSummary(Value):
    """A letter without its original.

    ``offset``: its id. ``time``: when it was written, in microseconds. ``position``: that of the rejected record.
    ``table``: ``keyspace.table`` of the write, empty if unreadable. ``is_resent``: the record was sent again.
    """

    offset: int
    time: Micros
    reason: str
    detail: str
    table: str
    position: str
    append_time: Micros
    writer: str
    is_resent: bool = False


class LetterRecord(Value):
    """A record of the topic. If ``summary.is_resent``, it is a mark. ``data``: the encoded letter."""

    summary: LetterSummary
    letter: DeadLetter
    data: bytes


class LetterFilter(Value):
    """Conditions that all must hold. Empty: any. ``since``: letters that were written at that time or later."""

    reasons: frozenset[str] = frozenset()
    tables: frozenset[str] = frozenset()
    since: Micros = 0

    def matches(self, found: LetterSummary) -> bool:
        """Return whether a letter fulfills the conditions."""
        return (
            found.time >= self.since
            and (not self.reasons or found.reason in self.reasons)
            and (not self.tables or found.table in self.tables)
        )


class LetterChoice(Value):
    """Letters to send again, in the order of the topic.

    ``resent``: letters left out because they were sent again. ``unfit``: letters left out because they cannot be sent.
    ``has_more``: more letters match than the limit.
    """

    letters: tuple[LetterSummary, ...]
    resent: int
    unfit: int
    has_more: bool


class KeySet:
    """A set of texts with at most ``KEYS_MAX`` members. It forgets the oldest first."""

    def __init__(self) -> None:
        self._hashes: dict[int, None] = {}

    def add(self, key: str) -> bool:
        """Add a text. Return False if it was in the set."""
        name = hash(key)
        if name in self._hashes:
            return False
        self._hashes[name] = None
        if len(self._hashes) > KEYS_MAX:
            del self._hashes[next(iter(self._hashes))]
        return True

    def __contains__(self, key: str) -> bool:
        return hash(key) in self._hashes


@dataclass(slots=True)
class LetterCounts:
    """The number of letters by (reason, table), and of those the number that was sent again."""

    letters: Counter[tuple[str, str]] = field(default_factory=Counter)
    resent: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, found: LetterSummary) -> None:
        """Count a letter."""
        group = (found.reason, found.table)
        if group not in self.letters and len(self.letters) >= GROUPS_MAX:
            group = (OTHERS, OTHERS)
        self.letters[group] += 1
        self.resent[group] += found.is_resent

    def by_reason(self) -> dict[str, int]:
        """Return the number of letters by reason."""
        return _by_reason(self.letters)

    def waiting(self) -> dict[str, int]:
        """Return the number of letters that were not sent again, by reason."""
        return _by_reason(self.letters - self.resent)


def _by_reason(counts: Counter[tuple[str, str]]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for (reason, _), count in counts.items():
        found[reason] += count
    return dict(sorted(found.items()))


class DeadLetterReader:
    """A reader of the dead letters of a cluster. Not thread-safe. Raises LogUnavailable, TopicMissing."""

    def __init__(self, bootstrap_servers: str, cluster: str) -> None:
        self.source = topic_name(cluster, MUTATIONS.suffix)
        self.topic = topic_name(cluster, DEAD_LETTERS.suffix)
        self._bootstrap, self._cluster = bootstrap_servers, cluster
        admin = admin_client(bootstrap_servers)
        self._partitions = describe(admin, [self.topic, self.source])[self.source].partitions
        config = reader_config(bootstrap_servers, "read_committed")
        self._consumer = Consumer(config | {"queued.max.messages.kbytes": 16_384})

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()

    def __enter__(self) -> DeadLetterReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------------ reading

    def bounds(self, since: Micros = 0) -> tuple[int, int]:
        """Return the first offset that was written at ``since`` or later, and the end of the committed records."""
        low, high = bounds_of(self._consumer, TopicPartition(self.topic, 0))
        if since > 0:
            asked = [TopicPartition(self.topic, 0, since // 1_000)]
            try:
                found = self._consumer.offsets_for_times(asked, timeout=ANSWER_S)[0].offset
            except KafkaException as error:
                raise LogUnavailable(f"cannot read {self.topic}: {error.args[0].str()}", "try again") from error
            low = found if found >= 0 else high
        return min(low, high), high

    def records(self, begin: int, end: int) -> Iterator[LetterRecord]:
        """Yield the records from ``begin`` to before ``end`` in order, repetitions and marks included."""
        for message in messages_between(self._consumer, self.topic, begin, end):
            yield _record(message, self.source)

    def newest(self, wanted: LetterFilter, steps: int | None = None) -> Iterator[LetterSummary]:
        """Yield the letters that match, newest first, each once. ``steps``: read at most that many chunks.

        ``is_resent`` is missing in a letter that a job wrote once more after its mark; ``find`` and ``choose`` see it.
        """
        marks, seen = KeySet(), KeySet()
        begin, end = self.bounds(wanted.since)
        while begin < end and steps != 0:
            first = max(begin, end - CHUNK)
            for found in reversed([record.summary for record in self.records(first, end)]):
                if found.is_resent:
                    marks.add(found.position)
                elif seen.add(found.position) and wanted.matches(found):
                    yield replace(found, is_resent=found.position in marks)
            end, steps = first, None if steps is None else steps - 1

    def latest(self, wanted: LetterFilter, limit: int) -> tuple[LetterSummary, ...]:
        """Return the newest letters that match, newest first."""
        return tuple(islice(self.newest(wanted), limit))

    def count(self, wanted: LetterFilter, steps: int | None = None) -> LetterCounts:
        """Count the letters that match. ``steps``: as in ``newest``."""
        counts = LetterCounts()
        for found in self.newest(wanted, steps):
            counts.add(found)
        return counts

    def find(self, name: str) -> LetterRecord:
        """Return a letter by its offset or by the position of its record. Raises UnknownLetter."""
        begin, end = self.bounds()
        if name.isdecimal() and len(name) < 19:
            record = next(self.records(int(name), min(int(name) + 1, end)), None) if begin <= int(name) < end else None
            if record is None:
                raise UnknownLetter(name)
            name = record.summary.position
            begin = record.summary.offset
        else:
            record = None
        is_resent = False
        for other in self.records(begin, end):
            if other.summary.position == name:
                record = record or other
                is_resent = is_resent or other.summary.is_resent
        if record is None:
            raise UnknownLetter(name)
        return replace(record, summary=replace(record.summary, is_resent=is_resent))

    # ------------------------------------------------------------------------------------------------ sending

    def choose(self, wanted: LetterFilter, limit: int, again: bool = False) -> LetterChoice:
        """Return the oldest letters that match and may be sent again. ``again``: also those that were sent again."""
        begin, end = self.bounds(wanted.since)
        marks, seen = KeySet(), KeySet()
        chosen: dict[str, LetterSummary] = {}
        resent = unfit = 0
        has_more = False
        for record in self.records(begin, end):
            found = record.summary
            if found.is_resent:
                marks.add(found.position)
                resent += not again and chosen.pop(found.position, None) is not None
            elif not wanted.matches(found) or not seen.add(found.position) or (found.position in marks and not again):
                continue
            elif self.unfit(record):
                unfit += 1
            elif len(chosen) < KEYS_MAX:
                chosen[found.position] = found
            else:
                has_more = True
        letters = tuple(islice(chosen.values(), limit))
        return LetterChoice(letters, resent, unfit, has_more or len(letters) < len(chosen))

    def unfit(self, record: LetterRecord) -> str:
        """Return why the record of a letter cannot be sent again; empty if it can."""
        letter = record.letter
        if letter.topic != self.source:
            return f"it is not a mutation, but a record of {letter.topic[:TEXT_MAX]!r}: import it again"
        if (
            len(letter.value or b"") >= VALUE_KEPT or len(letter.key or b"") >= KEY_KEPT
        ) and "SHA-256" in letter.detail:
            return "the letter has only a part of the original, which was too large"
        return ""

    def resend(
        self, letters: Collection[LetterSummary], again: bool, report: Callable[[LetterSummary], None]
    ) -> tuple[int, int]:
        """Send the records of letters again, in the order of the topic. Return (number sent, number left out).

        A letter is left out if another process has sent it meanwhile. ``report``: called for each letter after its
        transaction. Raises NotResendable, UnknownLetter or ResendFailed; earlier transactions of the call remain.
        """
        producer = Producer(
            {
                **connection(self._bootstrap),
                # One name for all processes: a new one fences the others, so each sees all marks.
                "transactional.id": transactional_id(self._cluster, "dead-letters", "resend"),
                "message.max.bytes": 2 * BATCH_BYTES,
                "compression.type": "lz4",
            }
        )
        wanted = {found.position: found for found in letters}
        try:
            producer.init_transactions(ANSWER_S)
            left = wanted if again else self._unmarked(wanted)
            pending: list[LetterSummary] = []
            size = 0
            for found in sorted(left.values(), key=lambda one: one.offset):
                record = next(self.records(found.offset, found.offset + 1), None)
                if record is None:
                    raise UnknownLetter(str(found.offset))
                if why := self.unfit(record):
                    raise NotResendable(str(found.offset), why)
                if not pending:
                    producer.begin_transaction()
                self._produce(producer, record)
                pending.append(found)
                size += len(record.data)
                if len(pending) >= BATCH or size >= BATCH_BYTES:
                    self._commit(producer, pending, report)
                    size = 0
            self._commit(producer, pending, report)
        except BaseException as error:
            with suppress(KafkaException):
                producer.abort_transaction(ANSWER_S)
            if isinstance(error, KafkaException):
                raise ResendFailed(error.args[0].str()) from error
            raise
        return len(left), len(wanted) - len(left)

    def _unmarked(self, wanted: dict[str, LetterSummary]) -> dict[str, LetterSummary]:
        """Return the letters without a mark."""
        begin, end = self.bounds()
        summaries = (record.summary for record in self.records(begin, end))
        marked = {found.position for found in summaries if found.is_resent and found.position in wanted}
        return {position: found for position, found in wanted.items() if position not in marked}

    def _produce(self, producer: Producer, record: LetterRecord) -> None:
        """Produce the original record and the mark."""
        letter, key = record.letter, record.letter.key
        place = letter.partition if key is None else mutation_partition(key, self._partitions)
        producer.produce(self.source, letter.value, key, place)
        producer.produce(self.topic, record.data, record.summary.position.encode(), 0, headers=[(RESENT, b"")])

    def _commit(
        self, producer: Producer, pending: list[LetterSummary], report: Callable[[LetterSummary], None]
    ) -> None:
        if pending:
            producer.commit_transaction(ANSWER_S)
        for found in pending:
            report(found)
        pending.clear()


RECENT_STEPS = 2
"""Steps of ``recent_counts``, which cover the last 2,000 records."""


def recent_counts(bootstrap_servers: str, cluster: str) -> LetterCounts:
    """Count the letters among the last records of the topic. Raises LogUnavailable, TopicMissing."""
    with DeadLetterReader(bootstrap_servers, cluster) as letters:
        return letters.count(LetterFilter(), RECENT_STEPS)


def _record(message: Message, source: str) -> LetterRecord:
    """Decode a record. One that is not a dead letter becomes a letter with the reason ``NOT_A_LETTER``."""
    data, offset = message.value() or b"", message.offset() or 0
    try:
        letter = decode_dead_letter(data)
    except WireError as error:
        letter = DeadLetter(NOT_A_LETTER, str(error), "", 0, offset, 0, None, None, "", 0)
    summary = LetterSummary(
        offset,
        message.timestamp()[1] * 1_000,
        letter.reason[:TEXT_MAX],
        letter.detail[:DETAIL_MAX],
        _table(letter, source),
        f"{letter.topic}/{letter.partition}/{letter.offset}",
        letter.append_time,
        letter.writer[:TEXT_MAX],
        any(header[0] == RESENT for header in message.headers() or ()),
    )
    return LetterRecord(summary, letter, data)


def _table(letter: DeadLetter, source: str) -> str:
    """Return the table of a rejected mutation; empty if it cannot be read."""
    if letter.topic != source or letter.value is None:
        return ""
    try:
        found = decode_mutation(letter.value)
    except WireError:
        return ""
    return f"{found.keyspace}.{found.table}"[:TEXT_MAX]

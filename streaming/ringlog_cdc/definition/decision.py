"""The outcome of a record of the mutations topic: CDC rows, a dead letter, or nothing. One record at a time.

This is the definition of the job. ``ringlog_cdc.bulk`` gives the same bytes for many plain writes at once, and passes
all other records to ``decide``. The simulator and the tests of the audit run this module.

Invariants:

* The outcome is a pure function of the record, the routing table, and for tables with images the states of rows. A
  replay therefore writes the same bytes.
* *Now* in all rules is the broker's append time of the record.
* A write is accepted or rejected as a whole, by the rules that base nodes use
  (``ringlog.kernel.generations.admission``). One statement outside the acceptance window, in a closed generation or
  with too large a row rejects it all. A rejected write changes no state.
* The timestamp of a piece selects its generation, so one write may have rows in streams of two generations.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from ringlog.kernel.generations.acceptance import index_at
from ringlog.kernel.generations.admission import refused, shape_for
from ringlog.kernel.generations.statements import is_compound, stored_shape
from ringlog.kernel.ring.murmur3 import compose, token_of
from ringlog.kernel.schema.stored import as_stored
from ringlog.kernel.values import Micros, Value
from ringlog.wire.errors import WireError
from ringlog.wire.records import (
    KEY_KEPT,
    VALUE_KEPT,
    DeadLetter,
    Mutation,
    dead_letter_key,
    decode_mutation,
    encode_cdc_row,
    encode_dead_letter,
    is_key_of,
)
from ringlog_cdc.definition.cdc_time import cdc_time
from ringlog_cdc.definition.images import States, imaged
from ringlog_cdc.definition.reasons import NUMBERS, ROUTED, RULES, SKIPPED
from ringlog_cdc.definition.routing_table import RoutingTable
from ringlog_cdc.definition.row import plain_piece, row_of
from ringlog_cdc.definition.split import keys_only, split

NAME_SHOWN = 100
"""Characters of a name in the detail of a dead letter. A hostile name can be as long as the record."""


class Input(Value):
    """A record of the mutations topic.

    Attributes:
        appended: The broker's append time, microseconds.
        mutation: None if the value is not a mutation.
    """

    partition: int
    offset: int
    appended: Micros
    key: bytes | None
    value: bytes | None
    mutation: Mutation | None

    def use(self, leeway: int) -> Micros:
        """Return the largest time that routing the record uses, microseconds. Without a mutation it is the append time.

        A write with one timestamp after the acceptance window is rejected under every set of generations. Its largest
        timestamp therefore decides.
        """
        if self.mutation is None:
            return self.appended
        own = [change.timestamp for change in self.mutation.more if change.timestamp is not None]
        return use_of(max([self.mutation.timestamp, *own]), self.appended, leeway)


class PartContext(Value):
    """Facts about a plan part for its rows and dead letters.

    Attributes:
        incarnation: The writer's incarnation.
        epoch: Metadata epoch of the plan part.
        row_bytes_max: Most bytes of an encoded row.
    """

    source_topic: str
    incarnation: str
    epoch: int
    row_bytes_max: int


class Outgoing(Value):
    """A record that leaves the job, or the fact that there is none.

    Attributes:
        reason: ``ROUTED`` for a row, the number of a dead letter's reason, or ``SKIPPED``.
        generation: Start of the row's generation, microseconds.
        partition: Partition of the CDC topic.
    """

    reason: int
    generation: int = 0
    partition: int = 0
    key: bytes = b""
    value: bytes = b""


NOTHING = (Outgoing(SKIPPED),)
"""The outcome of an accepted write without rows."""


def use_of(timestamp: int, appended: int, leeway: int) -> int:
    """Return the largest time that routing a write uses. A higher horizon lets the write pass. All in microseconds.

    A timestamp after ``appended + leeway`` is rejected under every set of generations, so it does not count.
    """
    return max(appended, timestamp) if timestamp <= appended + leeway else appended


def read_mutation(value: bytes | None) -> Mutation | None:
    """Return the mutation in a record's value, or None if it is not one."""
    if value is None:
        return None
    try:
        return decode_mutation(value)
    except WireError:
        return None


def decide(table: RoutingTable, item: Input, part: PartContext, states: States | None = None) -> tuple[Outgoing, ...]:
    """Return what leaves the job for one record: its rows in order, a dead letter, or ``NOTHING``.

    Args:
        table: The routing table.
        item: The record.
        part: Context of the plan part.
        states: States of rows, for tables that keep images. None if no table does. Changed only by accepted writes.
    """
    mutation, now = item.mutation, item.appended
    if mutation is None:
        return _rejected("unreadable", item, part)
    code, column = refused(table.rules, mutation, now, is_key_of(mutation, item.key))
    if code:
        return _rejected(code, item, part, column)
    shape = shape_for(table.rules, mutation, now)
    assert not isinstance(shape, str), "a write without a table is refused"
    name = f"{mutation.keyspace}.{mutation.table}"
    earlier = table.earlier_version(mutation, now)
    images = table.images_of(mutation, now, earlier)
    if earlier is not None and images is None and states is not None:
        # The write changes rows without updating a state, so states of its table would be wrong.
        states.forget(name, earlier.id)
    if not shape.cdc:
        return NOTHING
    compound, mutation = is_compound(mutation, shape), as_stored(mutation, shape.stored)
    pieces = split(mutation, stored_shape(shape)) if compound else (plain_piece(mutation),)
    key = compose([component for component in mutation.partition_key if component is not None])
    changed: Mapping[bytes, Any] = {}
    if images is not None:
        assert states is not None, "a table with images has states"
        found = imaged(states, name, images, key, pieces, now, shape.delta == "keys")
        pieces, changed = found.pieces, found.states
    elif shape.delta == "keys":
        pieces = keys_only(pieces)
    if not pieces:
        return NOTHING

    starts, token = table.rules.starts, token_of(key)
    table_id = earlier.id if earlier is not None else table.ids.get(name, "")
    # A row names the epoch whose table version reads it.
    epoch = part.epoch if earlier is None else earlier.epoch
    rows: list[Outgoing] = []
    for piece in pieces:
        generation = index_at(starts, piece.timestamp)
        if generation in table.closed:
            return _rejected("generation_closed", item, part)
        stream, partition = table.stream_of(generation, token, table_id)
        time = cdc_time(part.source_topic, item.partition, item.offset, mutation.mutation_id, piece.timestamp)
        row = row_of(mutation, part.source_topic, item, epoch, piece, starts[generation], stream, time)
        rows.append(Outgoing(ROUTED, starts[generation], partition, stream, encode_cdc_row(row)))
    if max(len(row.value) for row in rows) > part.row_bytes_max:
        return _rejected("oversized", item, part)
    if states is not None:
        for state in changed.items():
            states.put(*state)
    return tuple(rows)


# ------------------------------------------------------------------------------------------------- dead letters


def _rejected(code: str, item: Input, part: PartContext, column: str = "") -> tuple[Outgoing, ...]:
    """Return the dead letter of a record. ``column``: the column that breaks the rule, if there is one."""
    letter = encode_dead_letter(dead_letter(item, code, part, column))
    key = dead_letter_key(part.source_topic, item.partition, item.offset)
    return (Outgoing(NUMBERS[code], key=key, value=letter),)


def dead_letter(item: Input, code: str, part: PartContext, column: str = "") -> DeadLetter:
    """Return the dead letter of a record.

    Args:
        item: The record.
        code: Reason.
        part: Context of the plan part.
        column: The column that breaks the rule, if there is one.
    """
    found = (f"column {column[:NAME_SHOWN]!r}; " if column else "") + _description(item, part)
    cuts = _cut("key", item.key, KEY_KEPT) + _cut("value", item.value, VALUE_KEPT)
    return DeadLetter(
        reason=code,
        detail=f"{RULES[NUMBERS[code]]} ({found}{cuts})",
        topic=part.source_topic,
        partition=item.partition,
        offset=item.offset,
        append_time=item.appended,
        key=None if item.key is None else item.key[:KEY_KEPT],
        value=None if item.value is None else item.value[:VALUE_KEPT],
        writer=part.incarnation,
        epoch=part.epoch,
    )


def _description(item: Input, part: PartContext) -> str:
    """Return the text that describes the write."""
    mutation = item.mutation
    if mutation is None:
        return f"{len(item.value or b'')} bytes"
    return (
        f"{mutation.keyspace[:NAME_SHOWN]}.{mutation.table[:NAME_SHOWN]}, {mutation.operation}, "
        f"timestamp {mutation.timestamp}, appended at {item.appended}; epoch {part.epoch}; "
        f"rows have at most {part.row_bytes_max} bytes"
    )


def _cut(name: str, data: bytes | None, kept: int) -> str:
    """Return the text about a truncated key or value, or empty if it was kept whole."""
    if data is None or len(data) <= kept:
        return ""
    return f"; first {kept} of {len(data)} bytes of the {name}, SHA-256 {hashlib.sha256(data).hexdigest()}"

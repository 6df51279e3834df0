"""Which writes have their images made quickly, and the way through a batch of them in the order of the topic.

What ``ringlog_cdc.columnar`` has found out about plain mutations, as columns, is laid out write by write; then each
goes to ``quick`` or to the definition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ringlog.client.cdc.rows import ROW_DELETE
from ringlog.kernel.rows.writes import expiry
from ringlog_cdc.columnar.encode import composed_keys
from ringlog_cdc.columnar.mutations import Mutations
from ringlog_cdc.columnar.pieces import Pieces, encoded_numbers
from ringlog_cdc.columnar.route import Named, named, operation_codes
from ringlog_cdc.columnar.scan import Span
from ringlog_cdc.columnar.words import I64, Flags
from ringlog_cdc.images.define import States
from ringlog_cdc.images.quick import Cells, Plain, changed, live, rows_of
from ringlog_cdc.images.state import common_key, partition_prefix
from ringlog_cdc.images.tables import ImageTable
from ringlog_cdc.routing import RoutingTable
from ringlog_cdc.rows import Input, Out, Part, outgoing

HEAD = 10 + 16
"""Bytes of a row before its generation: header and stream."""
TIME = 16


def is_easy(mutations: Mutations, rows: I64, tables: Named, images: Mapping[str, ImageTable]) -> Flags:
    """Which of the plain mutations with these numbers, which name ``tables``, are for ``quick``, if they are rows."""
    flat = np.array([*(name in images and images[name].is_flat for name in tables.names), False])
    codes = operation_codes()[mutations.operation[rows].clip(0)]
    easy: Flags = flat[tables.codes] & (codes > 0) & (codes <= ROW_DELETE)
    return easy


@dataclass(frozen=True, slots=True)
class Easy:
    """Easy writes: their numbers in the batch, ascending; and, in that order, what ``quick`` wants of each."""

    numbers: I64
    writes: Sequence[Plain]
    tables: Sequence[str]
    composed: Sequence[bytes]
    clustering: Sequence[bytes]
    appended: Sequence[int]
    inputs: Callable[[int], Input]


def easy_writes(
    mutations: Mutations,
    numbers: I64,
    rows: Sequence[bytes],
    generations: I64,
    places: tuple[I64, I64, I64],
    topic: str,
    inputs: Callable[[int], Input],
) -> Easy:
    """The easy ones among the mutations, whose rows without images are there. ``places``: source partition, offset,
    append time of each; ``inputs``: the write with that number, decoded.
    """
    tables = named(mutations, numbers)
    partitions, offsets, appended = places
    ttls = mutations.ttl.length[numbers]
    at = HEAD + encoded_numbers(generations)[1] + TIME
    begin = at + 2 + ttls + 1
    source = len(topic.encode()) + encoded_numbers(np.array([len(topic.encode())]))[1][0]
    end = begin + mutations.names.length[numbers] + mutations.mutation_id.length[numbers] + source
    end += encoded_numbers(partitions)[1] + encoded_numbers(offsets)[1] + mutations.timestamp_at.length[numbers]
    end += encoded_numbers(mutations.partition_key.count[numbers])[1] + 1 + mutations.clustering_at.length[numbers]
    for span in mutations.partition_key.inner:
        end += span.length[numbers]
    codes = operation_codes()[mutations.operation[numbers]].tolist()
    timestamps, values = mutations.timestamp[numbers].tolist(), mutations.ttl_value[numbers].tolist()
    expires = [expiry(time, ttl) for time, ttl in zip(timestamps, values, strict=True)]
    shared = zip(begin.tolist(), end.tolist(), strict=True)
    columns = (rows, at.tolist(), shared, codes, timestamps, expires, _cells(mutations, numbers))
    return Easy(
        numbers,
        [*map(Plain._make, zip(*columns, strict=True))],
        [tables.names[code] for code in tables.codes.tolist()],
        composed_keys(mutations, numbers).to_pylist(),
        _clustering(mutations, numbers),
        appended.tolist(),
        inputs,
    )


def _clustering(mutations: Mutations, numbers: I64) -> list[bytes]:
    """The clustering keys as ``row_key`` has them: each component behind its length, four bytes."""
    pieces = Pieces(len(numbers), mutations.data)
    key = mutations.clustering_key
    pieces.constant(b"\1")
    for place, span in enumerate(key.content):
        there = key.count[numbers] > place
        length = span.length[numbers]
        pieces.rows(length.astype(">u4").view(np.uint8).reshape(-1, 4), there * np.int64(4))
        pieces.spans(Span(span.start[numbers], length))
    return list(pieces.joined().to_pylist())


def _cells(mutations: Mutations, numbers: I64) -> Sequence[Cells]:
    """(column, value) of the cells of each."""
    found: list[list[tuple[str, bytes | None]]] = [[] for _ in range(len(numbers))]
    data, cells = mutations.data.tobytes(), mutations.cells
    names: dict[bytes, str] = {}
    for place, (whole, name, null) in enumerate(zip(cells.whole, cells.content, cells.is_null, strict=True)):
        some = np.flatnonzero(cells.count[numbers] > place)
        mine = numbers[some]
        name_end = name.start[mine] + name.length[mine]
        end = whole.start[mine] + whole.length[mine]
        start = name_end + 1 + _length_bytes(end - name_end - 1)
        columns = (some, name.start[mine], name_end, null[mine], start, end)
        for index, first, behind, is_null, begin, stop in zip(*(c.tolist() for c in columns), strict=True):
            column = data[first:behind]
            if column not in names:
                names[column] = column.decode()
            found[index].append((names[column], None if is_null else data[begin:stop]))
    return found


def _length_bytes(sizes: I64) -> I64:
    """How many bytes the length takes of a value that has so many with it."""
    found = np.ones(len(sizes), dtype=np.int64)
    for more in range(1, 5):
        found += sizes - more > (1 << 7 * more - 1) - 1
    return found


# --------------------------------------------------------------------------------------------------- through a batch


@dataclass(slots=True)
class Made:
    """What goes out for writes of tables with images: ``rows`` of easy ones, of each the place among them, and what
    the definition gave for ``numbers`` of the batch. ``ringlog_cdc.arrow`` puts them in order.
    """

    places: list[int]
    rows: list[bytes]
    numbers: list[int]
    outs: list[Out]


def through(easy: Easy, others: Mapping[int, Input], table: RoutingTable, part: Part, states: States) -> Made:
    """All writes of tables with images, in the order of their numbers. ``others``: those that are not easy."""
    keys = _keys(easy, table.images, states)
    states.fetch(key for key, _ in keys)
    states.fetch(key for _, key in keys if key and states.has_common(key))
    made = Made([], [], [], [])
    waiting = sorted(others, reverse=True)
    for place, number in enumerate(easy.numbers.tolist()):
        while waiting and waiting[-1] < number:
            _define(waiting[-1], others[waiting.pop()], table, part, states, made)
        rows = _quick(easy, place, keys[place], table.images[easy.tables[place]], states, part.row_bytes_max)
        if rows is None:
            _define(number, easy.inputs(number), table, part, states, made)
        else:
            made.places += [place] * len(rows)
            made.rows += rows
    while waiting:
        _define(waiting[-1], others[waiting.pop()], table, part, states, made)
    return made


def _define(number: int, item: Input, table: RoutingTable, part: Part, states: States, made: Made) -> None:
    """A write that the definition is asked about."""
    outs = outgoing(table, [item], part, states)
    made.numbers += [number] * len(outs)
    made.outs += outs


def _keys(easy: Easy, images: Mapping[str, ImageTable], states: States) -> list[tuple[bytes, bytes]]:
    """(key of the row, of what its partition has in common: empty in a table without clustering key) of each."""
    numbers = {name: states.number(name, images[name]) for name in dict.fromkeys(easy.tables)}
    common = {name: images[name].shape.has_rows for name in numbers}
    found = []
    for name, composed, clustering in zip(easy.tables, easy.composed, easy.clustering, strict=True):
        prefix = partition_prefix(numbers[name], composed)
        found.append((prefix + clustering, common_key(prefix) if common[name] else b""))
    return found


def _quick(
    easy: Easy, place: int, keys: tuple[bytes, bytes], table: ImageTable, states: States, row_bytes_max: int
) -> list[bytes] | None:
    """The rows of an easy write, whose state changes; None: it is not that easy, and nothing has changed."""
    key, common = keys
    write, now = easy.writes[place], easy.appended[place]
    row = states.get(key)
    if row is not None and row[0] <= now:
        row = None
    if common and states.has_common(common) and states.get(common) is not None:
        return None
    if row is not None and (row[4] or row[5]):
        return None
    after = changed(row, write, now, table.ttl)
    rows = rows_of(write, live(row, now), live(after, now) if table.postimage else None, table)
    for one in rows:
        if len(one) > row_bytes_max:
            return None
    states.put(key, after)
    return rows

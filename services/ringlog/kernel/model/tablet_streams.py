"""The streams of tables in tablets: a generation that describes a table has one stream for each of its tablets.

A generation describes the ring, and each table in tablets that keeps a CDC log. It stores the table's id and the last
tokens of its tablets; the ids of the streams follow from these and from the generation's timestamp. A stream's token is
the last one of its tablet; its index is the number of the tablet. The random bits are BLAKE2b over (timestamp, last
token, table id). So two tables with the same tablets, and two generations of a table, have different streams. A
collision (probability 2**-38) makes two tables share a stream, which is harmless: rows name their table.

Invariants: while a generation has streams, its description of a table does not change and the table does not leave it.
The tablets of a table cover the ring up to their last token.

Source: ScyllaDB, "CDC with tablets": a stream for each tablet, new ones with each split and merge.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from ringlog.kernel.model.stream_id import RANDOM_BITS, StreamId, encode
from ringlog.kernel.values import GenerationRange, Micros, Token, Value

TABLES_CACHED_MAX: Final = 256
"""Number of tables whose streams are cached: they are needed whenever their generation changes."""

assert RANDOM_BITS <= 64, "a digest of eight bytes has enough random bits"


class DescribedTable(Value):
    """A table in tablets as a generation describes it: its id, and the last tokens of its tablets, ascending."""

    table: str
    ends: tuple[Token, ...]


class TabletStream(Value):
    """The stream of the tablet of ``table`` (an id) that ends at the token ``end``."""

    table: str
    end: Token
    stream: bytes


@lru_cache(maxsize=TABLES_CACHED_MAX)
def ranges_of(timestamp: Micros, described: DescribedTable) -> tuple[GenerationRange, ...]:
    """Return the tablets of a table as ranges of the generation that starts at ``timestamp``: one stream each."""
    own = timestamp.to_bytes(8, "big"), described.table.encode()
    return tuple(
        GenerationRange(end, 0, (encode(StreamId(end, _random(own, end), index)),))
        for index, end in enumerate(described.ends)
    )


@lru_cache(maxsize=TABLES_CACHED_MAX)
def streams_of(timestamp: Micros, described: DescribedTable) -> tuple[TabletStream, ...]:
    """Return the streams of a table in the generation that starts at ``timestamp``, by tablet."""
    return tuple(TabletStream(described.table, one.end, one.streams[0]) for one in ranges_of(timestamp, described))


def described_as(tables: Sequence[DescribedTable], table: str) -> DescribedTable | None:
    """Return the description of the table with that id; None: its rows are in the streams of the ring."""
    return next((one for one in tables if one.table == table), None)


def _random(own: tuple[bytes, bytes], end: Token) -> int:
    timestamp, table = own
    digest = hashlib.blake2b(timestamp + end.to_bytes(8, "big", signed=True) + table, digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - RANDOM_BITS)

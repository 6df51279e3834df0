"""Which stream a write belongs to, worked out the plain way from the published generations.

A generation operates from its timestamp to the next one's. A token belongs to the range (previous end, end]; within
the range the slot is the shard that the range's owner would give the token (biased token round robin); slots are in
the order in which the stream ids were published. A table in tablets that a generation names has ranges of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cassandra.metadata import Murmur3Token


@dataclass(frozen=True, slots=True)
class PublishedRange:
    """One range of a published generation."""

    end: int
    ignore_msb: int
    streams: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class PublishedGeneration:
    """A generation as the change topics describe it; without ``ranges`` if it expired and its streams are deleted.

    ``committed``: at that epoch. ``tables``: by id the tablets of tables that have streams of their own.
    """

    timestamp: int
    ranges: tuple[PublishedRange, ...]
    committed: int
    tables: dict[str, tuple[PublishedRange, ...]] = field(default_factory=dict)
    is_closed: bool = False


def hash_of(partition_key: bytes) -> int:
    """Token of a composed partition key, by the Cassandra driver."""
    token = Murmur3Token.hash_fn(partition_key)
    assert isinstance(token, int)
    return token


def compose(components: list[bytes]) -> bytes:
    """A partition key as it is hashed.

    One column as it is, several each with its length before and a zero byte after.
    """
    if len(components) == 1:
        return components[0]
    whole = b""
    for component in components:
        whole += len(component).to_bytes(2, "big") + component + b"\x00"
    return whole


def generation_for(generations: list[PublishedGeneration], timestamp: int) -> PublishedGeneration | None:
    """The generation that operates at ``timestamp``."""
    found = None
    for generation in generations:
        if generation.timestamp <= timestamp:
            found = generation
    return found


def stream_for(generation: PublishedGeneration, token: int, table: str = "") -> bytes:
    """The stream of a token in the table with that id."""
    ranges = generation.tables.get(table, generation.ranges)
    owner = ranges[0]
    for candidate in ranges:
        if candidate.end >= token:
            owner = candidate
            break
    return owner.streams[_slot(token, len(owner.streams), owner.ignore_msb)]


def _slot(token: int, slots: int, ignore_msb: int) -> int:
    if slots == 1:
        return 0
    unsigned = token + 2**63
    return (((unsigned << ignore_msb) % 2**64) * slots) // 2**64

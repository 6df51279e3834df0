"""The stream of a write, computed directly from the published generations.

A generation is active from its timestamp to the next one's. A token belongs to the range (previous end, end]. Within
the range, the slot is the shard that the range's owner gives the token (biased token round robin). Slots have the order
in which the stream ids were published. A table in tablets has its own ranges if the generation names it.
"""

from __future__ import annotations

from cassandra.metadata import Murmur3Token

from ringlog.kernel.values import Value, field


class PublishedRange(Value):
    """One range of a published generation."""

    end: int
    ignore_msb: int
    streams: tuple[bytes, ...]


class PublishedGeneration(Value):
    """A generation as described by the change topics. It has no ``ranges`` if it expired and its streams are deleted.

    ``committed``: the epoch of its commit. ``tables``: table id to tablets, for tables with their own streams.
    """

    timestamp: int
    ranges: tuple[PublishedRange, ...]
    committed: int
    tables: dict[str, tuple[PublishedRange, ...]] = field(default_factory=dict)
    is_closed: bool = False


def hash_of(partition_key: bytes) -> int:
    """Return the token of a composed partition key, computed by the Cassandra driver."""
    token = Murmur3Token.hash_fn(partition_key)
    assert isinstance(token, int)
    return token


def compose(components: list[bytes]) -> bytes:
    """Return a partition key in the form that is hashed.

    A single column is used unchanged. Several columns each have their length in front and a zero byte behind.
    """
    if len(components) == 1:
        return components[0]
    whole = b""
    for component in components:
        whole += len(component).to_bytes(2, "big") + component + b"\x00"
    return whole


def generation_for(generations: list[PublishedGeneration], timestamp: int) -> PublishedGeneration | None:
    """Return the generation that is active at ``timestamp``."""
    found = None
    for generation in generations:
        if generation.timestamp <= timestamp:
            found = generation
    return found


def stream_for(generation: PublishedGeneration, token: int, table: str = "") -> bytes:
    """Return the stream of a token in the table with that id."""
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

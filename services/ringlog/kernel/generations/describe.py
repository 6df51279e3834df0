"""The description of a new generation: which streams exist, and which token writes to which.

The range ends are the tokens of all owners, present and coming, so that every range lies within one range of the ring
before and after the movements in flight: a CDC row then has the same replicas as its write. Range i is ``(end[i - 1],
end[i]]``; range 0 wraps. Each range has one stream for each shard of the node that owns its end, in slot order, and
the stream's token is the first in the range that the shard owns (the range's end if it owns none): rows and writes
share a shard, too.

A description is a pure function of owners, nodes and a seed that came with the command: the 38 random bits of a
stream are BLAKE2b over (seed, range end, slot, attempt), so that whoever continues an interrupted preparation makes
the same bytes.

The ring is one way to come to ranges, and ``generate`` the only place that knows it. A table on tablets will have
another one (a range and one stream a tablet, index 0); all that follows sees ranges with streams: parts, digest,
look-up, routing table, expiry.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from struct import Struct

from ringlog.kernel.generations.stream_id import RANDOM_BITS, StreamId, encode
from ringlog.kernel.operations.rings import target_owners
from ringlog.kernel.operations.stages import COMMIT_CDC_GENERATION, in_flight
from ringlog.kernel.ring.ranges import ranges_between
from ringlog.kernel.ring.shards import first_token_of_shard
from ringlog.kernel.state import ClusterState, Forgotten, Generation, Node
from ringlog.kernel.values import GenerationId, GenerationRange, NodeId, Token

_HEAD = Struct(">qII")


def generate(owners: Mapping[Token, NodeId], nodes: Mapping[NodeId, Node], seed: bytes) -> tuple[GenerationRange, ...]:
    """The ranges, by ascending end, for the token ``owners`` (not empty; coming ones included), from ``seed``.

    Raises ``StreamIdError`` when there are more ranges than an index can count (2**22).
    """
    assert owners, "a ring without tokens has no streams"
    ends = sorted(owners)
    assert all(owner in nodes for owner in owners.values()), "only registered nodes own tokens"
    return tuple(
        _describe(index, start, end, nodes[owners[end]], seed)
        for index, (start, end) in enumerate(ranges_between(ends))
    )


def generate_for(state: ClusterState, seed: bytes) -> tuple[GenerationRange, ...]:
    """The ranges of a generation that ``state`` would let commit: for its tokens and those of operations in flight."""
    return generate(target_owners(state), state.nodes, seed)


def _describe(index: int, start: Token, end: Token, owner: Node, seed: bytes) -> GenerationRange:
    streams: list[bytes] = []
    taken: set[bytes] = set()
    for slot in range(owner.shards):
        token = first_token_of_shard(start, end, slot, owner.shards, owner.ignore_msb)
        attempt = 0
        stream = encode(StreamId(token, _random(seed, end, slot, attempt), index))
        # Slots whose shard owns nothing in the range share its end; only the random bits keep their ids apart.
        while stream in taken:
            attempt += 1
            stream = encode(StreamId(token, _random(seed, end, slot, attempt), index))
        taken.add(stream)
        streams.append(stream)
    return GenerationRange(end, owner.ignore_msb, tuple(streams))


def _random(seed: bytes, end: Token, slot: int, attempt: int) -> int:
    """The random bits of one stream, as a number of ``RANDOM_BITS`` bits."""
    place = end.to_bytes(8, "big", signed=True) + slot.to_bytes(4, "big") + attempt.to_bytes(4, "big")
    return int.from_bytes(hashlib.blake2b(seed + place, digest_size=8).digest(), "big") >> (64 - RANDOM_BITS)


def ranges_digest(ranges: Sequence[GenerationRange]) -> str:
    """Hex SHA-256 of a generation's ranges: of each its end, ignored bits, number of streams, and those by slot."""
    digest = hashlib.sha256()
    for part in ranges:
        head = _HEAD.pack(part.end, part.ignore_msb, len(part.streams))
        digest.update(b"".join((head, *part.streams)))
    return digest.hexdigest()


def size_of(generation: Generation) -> Forgotten:
    """Numbers of ranges and streams of a generation, and their digest: also when they have left the state."""
    if generation.forgotten is not None:
        return generation.forgotten
    ranges = generation.ranges
    return Forgotten(len(ranges), sum(len(described.streams) for described in ranges), ranges_digest(ranges))


def current(state: ClusterState) -> Generation | None:
    """The last committed generation."""
    return state.generations[-1] if state.generations else None


def is_optimal(state: ClusterState) -> bool:
    """True if no new generation is needed: the last one's range ends are the tokens of all owners, present and coming.

    Numbers of shards are not compared. A ring without tokens needs none.
    """
    owners = target_owners(state)
    last = current(state)
    if last is None:
        return not owners
    return len(last.ranges) == len(owners) and all(described.end in owners for described in last.ranges)


def to_prepare(state: ClusterState) -> tuple[GenerationId, bytes] | None:
    """Id and seed of the generation whose data is wanted now, None if none is.

    It is the prepared one (requested, or begun and perhaps left by its author); else that of the first operation that
    waits for one, unless the last generation still waits for its publication. There is something to describe: what is
    prepared is dropped with the last token that there is or that comes.
    """
    if state.prepared is not None:
        return state.prepared.id, state.prepared.seed
    last = current(state)
    if last is not None and last.published is None:
        return None
    for operation in in_flight(state):
        if operation.stage == COMMIT_CDC_GENERATION and operation.generation is None:
            return f"generation-of-{operation.id}", operation.seed
    return None

"""The description of a new generation: which streams exist, and which token writes to which.

The range ends are the tokens of all owners, present and coming, so that every range lies within one range of the ring
before and after the movements in flight: a CDC row then has the same replicas as its write. Range i is ``(end[i - 1],
end[i]]``; range 0 wraps. Each range has one stream for each shard of the node that owns its end, in slot order, and
the stream's token is the first in the range that the shard owns (the range's end if it owns none): rows and writes
share a shard, too.

A description is a pure function of owners, nodes and a seed that came with the command: the 38 random bits of a
stream are BLAKE2b over (seed, range end, slot, attempt), so that a process that continues an interrupted preparation
makes the same bytes.

Tables in tablets have streams of their own beside those of the ring (``tablet_streams``). They need no author: the
commit describes each such table that keeps a CDC log as it is cut then, and a table that is made with a log comes to
all generations that are not closed, for nobody has routed a row of it. So a table is without streams of its own only in
what was committed before its log was switched on; and a generation is not optimal any more as soon as a table is cut
otherwise. A table that was dropped stays described, since writes to it may still be routed. The next generation leaves
it out, and one is made when such tables have more ranges than all others. All that follows, from the switch to the
expiry, is that of the generation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from struct import Struct

from ringlog.kernel.generations.packed import PackedRanges, digest_of, ends_of, joined, streams_in
from ringlog.kernel.model.state import ClusterState, Forgotten, Generation, Node, in_order
from ringlog.kernel.model.stream_id import RANDOM_BITS, StreamId, encode
from ringlog.kernel.model.tables import Table
from ringlog.kernel.model.tablet_map import TabletMap
from ringlog.kernel.model.tablet_streams import DescribedTable, described_as, ranges_of
from ringlog.kernel.operations.rings import target_owners, target_tokens
from ringlog.kernel.operations.stages import COMMIT_CDC_GENERATION, in_flight
from ringlog.kernel.ring.ranges import ranges_between
from ringlog.kernel.ring.shards import first_token_of_shard
from ringlog.kernel.values import GenerationId, GenerationRange, NodeId, Token

_HEAD = Struct(">qII")

UNUSED_RANGES_MAX = 1_024
"""Ranges of dropped tables that a generation may describe before a new one replaces it, however few others it has."""


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


def ranges_digest(ranges: Iterable[GenerationRange]) -> str:
    """Hex SHA-256 of a generation's ranges: of each its end, ignored bits, number of streams, and those by slot."""
    if isinstance(ranges, PackedRanges):
        return digest_of(ranges)
    digest = hashlib.sha256()
    for part in ranges:
        head = _HEAD.pack(part.end, part.ignore_msb, len(part.streams))
        digest.update(b"".join((head, *part.streams)))
    return digest.hexdigest()


def size_of(generation: Generation) -> Forgotten:
    """Numbers of ranges and streams of a generation, those of tables in tablets included, and their digest: also when
    they have left the state.
    """
    if generation.forgotten is not None:
        return generation.forgotten
    tablets = [ranges_of(generation.timestamp, described) for described in generation.tables]
    ranges = joined((generation.ranges, *tablets))
    return Forgotten(len(ranges), streams_in(ranges), ranges_digest(ranges))


def current(state: ClusterState) -> Generation | None:
    """The last committed generation."""
    return state.generations[-1] if state.generations else None


def is_optimal(state: ClusterState, shards: bool = True) -> bool:
    """True if no new generation is needed: the last one's range ends are the tokens of all owners, present and coming,
    each range has the ``shards`` of its owner, if that is asked, and tables in tablets are cut as it says.

    A ring without tokens needs none. A replacement by a node with other shards moves no token, so no operation waits
    for streams that fit; until somebody asks, rows go to streams of other shards than their writes.
    """
    owners = target_owners(state)
    last = current(state)
    if last is None:
        return not owners
    if ends_of(last.ranges) != target_tokens(state):
        return False
    if not fits_tablets(state):
        return False
    nodes = ((described, state.nodes[owners[described.end]]) for described in last.ranges if shards)
    return all((len(of.streams), of.ignore_msb) == (node.shards, node.ignore_msb) for of, node in nodes)


def fits_tablets(state: ClusterState) -> bool:
    """True if each tablet whose table keeps a CDC log has a stream in the last generation, and if that generation
    describes not mainly dropped tables; also where there is none.
    """
    last = current(state)
    if last is None:
        return True
    known = {described.table: described.ends for described in last.tables}
    wanted = tables_in_tablets(state)
    return all(known.get(one.table) == one.ends for one in wanted) and not _is_mainly_unused(state, last, wanted)


def _is_mainly_unused(state: ClusterState, last: Generation, wanted: Sequence[DescribedTable]) -> bool:
    """True if tables without a log have most of the ranges of ``last``, and a new generation would help.

    It needs tokens, and no earlier generation may be open. New tables are added to each open generation. A cluster
    whose generations do not close would therefore grow faster if it made more of them.
    """
    used = sum(len(one.ends) for one in wanted)
    unused = sum(len(one.ends) for one in last.tables) - used
    if unused <= max(UNUSED_RANGES_MAX, len(last.ranges) + used):
        return False
    return bool(target_owners(state)) and all(one.closed is not None for one in state.generations[:-1])


def tables_in_tablets(state: ClusterState) -> tuple[DescribedTable, ...]:
    """The tables in tablets that keep a CDC log, as they are cut now, by id; the last one's where it has them."""
    last = current(state)
    known = {described.table: described for described in (last.tables if last is not None else ())}
    found = [_described(table, state.tablets) for _, table in in_order(state.tables) if _is_logged(table)]
    kept = (known[one.table] if known.get(one.table) == one else one for one in found)
    return tuple(sorted(kept, key=lambda described: described.table))


def with_new_table(state: ClusterState, table: Table, tablets: Mapping[str, TabletMap]) -> tuple[Generation, ...]:
    """The generations once ``table`` is made: it has its streams in all that are not closed, if it is to have any."""
    if not _is_logged(table):
        return state.generations
    one = _described(table, tablets)
    return tuple(
        found if found.closed is not None else replace(found, tables=_with(found.tables, one))
        for found in state.generations
    )


def _with(tables: Sequence[DescribedTable], one: DescribedTable) -> tuple[DescribedTable, ...]:
    assert described_as(tables, one.table) is None, "the table is new"
    return tuple(sorted((*tables, one), key=lambda described: described.table))


def _is_logged(table: Table) -> bool:
    return table.tablets is not None and table.cdc.enabled


def _described(table: Table, tablets: Mapping[str, TabletMap]) -> DescribedTable:
    assert table.tablets is not None, "it is in tablets"
    cut = f"{table.keyspace}.{table.tablets.base}" if table.tablets.base else table.full_name
    return DescribedTable(table.id, tablets[cut].ends)


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

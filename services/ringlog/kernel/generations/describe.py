"""The description of a new generation: its streams, and the stream of each token.

The range ends are the tokens of all present and coming owners. So every range is within one range of the ring before
and after the movements in flight, and a CDC row has the same replicas as its write. Range i is ``(end[i - 1],
end[i]]``; range 0 wraps. Each range has one stream for each shard of the node that owns its end, in slot order. The
stream's token is the first in the range that the shard owns (the range's end if it owns none), so rows and writes share
a shard, too.

A description is a pure function of owners, nodes and a seed from the command. The 38 random bits of a stream are
BLAKE2b over (seed, range end, slot, attempt). So a process that continues an interrupted preparation makes the same
bytes.

Tables in tablets have their own streams (``tablet_streams``). They need no author: the commit describes each such table
with a CDC log by its current tablets. A new table with a log is added to all generations that are not closed, because
no row of it has been routed yet. So a table lacks its own streams only in generations committed before its log was
enabled. A generation is not optimal once the tablets of a table change. A dropped table stays described, since writes
to it may still be routed. The next generation omits it, and one is made when dropped tables have more ranges than all
others. All else, from the switch to the expiry, follows the generation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from struct import Struct

from ringlog.kernel.generations.packed import PackedRanges, concatenated, digest_of, ends_of, streams_in
from ringlog.kernel.model.state import ClusterState, Forgotten, Generation, Node, in_order
from ringlog.kernel.model.stream_id import RANDOM_BITS, StreamId, encode
from ringlog.kernel.model.tables import Table
from ringlog.kernel.model.tablet_map import TabletMap
from ringlog.kernel.model.tablet_streams import DescribedTable, described_as, ranges_of
from ringlog.kernel.operations.rings import target_owners, target_tokens
from ringlog.kernel.operations.stages import COMMIT_CDC_GENERATION, in_flight
from ringlog.kernel.ring.ranges import ranges_between
from ringlog.kernel.ring.shards import first_token_of_shard
from ringlog.kernel.values import GenerationId, GenerationRange, NodeId, Token, replace

_HEAD = Struct(">qII")

UNUSED_RANGES_MAX = 1_024
"""Ranges of dropped tables that a generation may always describe before a new one replaces it."""


def generate(owners: Mapping[Token, NodeId], nodes: Mapping[NodeId, Node], seed: bytes) -> tuple[GenerationRange, ...]:
    """Return the ranges, by ascending end, for the token ``owners`` (not empty; coming ones included), from ``seed``.

    Raise ``StreamIdError`` for more ranges than an index can count (2**22).
    """
    assert owners, "a ring without tokens has no streams"
    ends = sorted(owners)
    assert all(owner in nodes for owner in owners.values()), "only registered nodes own tokens"
    return tuple(
        _describe(index, start, end, nodes[owners[end]], seed)
        for index, (start, end) in enumerate(ranges_between(ends))
    )


def generate_for(state: ClusterState, seed: bytes) -> tuple[GenerationRange, ...]:
    """Return the ranges of a generation that ``state`` accepts: for its tokens and those of operations in flight."""
    return generate(target_owners(state), state.nodes, seed)


def _describe(index: int, start: Token, end: Token, owner: Node, seed: bytes) -> GenerationRange:
    streams: list[bytes] = []
    taken: set[bytes] = set()
    for slot in range(owner.shards):
        token = first_token_of_shard(start, end, slot, owner.shards, owner.ignore_msb)
        attempt = 0
        stream = encode(StreamId(token, _random(seed, end, slot, attempt), index))
        # Slots whose shard owns nothing in the range share its end as token: only the random bits distinguish their
        # ids.
        while stream in taken:
            attempt += 1
            stream = encode(StreamId(token, _random(seed, end, slot, attempt), index))
        taken.add(stream)
        streams.append(stream)
    return GenerationRange(end, owner.ignore_msb, tuple(streams))


def _random(seed: bytes, end: Token, slot: int, attempt: int) -> int:
    """Return the random bits of one stream, as a number of ``RANDOM_BITS`` bits."""
    place = end.to_bytes(8, "big", signed=True) + slot.to_bytes(4, "big") + attempt.to_bytes(4, "big")
    return int.from_bytes(hashlib.blake2b(seed + place, digest_size=8).digest(), "big") >> (64 - RANDOM_BITS)


def ranges_digest(ranges: Iterable[GenerationRange]) -> str:
    """Return the hex SHA-256 of ranges: for each its end, ignored bits, number of streams, and the streams by slot."""
    if isinstance(ranges, PackedRanges):
        return digest_of(ranges)
    digest = hashlib.sha256()
    for part in ranges:
        head = _HEAD.pack(part.end, part.ignore_msb, len(part.streams))
        digest.update(b"".join((head, *part.streams)))
    return digest.hexdigest()


def size_of(generation: Generation) -> Forgotten:
    """Return the numbers of ranges and streams of a generation, including tables in tablets, and their digest.

    They are also known after the streams have left the state.
    """
    if generation.forgotten is not None:
        return generation.forgotten
    tablets = [ranges_of(generation.timestamp, described) for described in generation.tables]
    ranges = concatenated((generation.ranges, *tablets))
    return Forgotten(len(ranges), streams_in(ranges), ranges_digest(ranges))


def current(state: ClusterState) -> Generation | None:
    """Return the last committed generation, or None."""
    return state.generations[-1] if state.generations else None


def is_optimal(state: ClusterState, shards: bool = True) -> bool:
    """Return True if no new generation is needed.

    The last one's range ends must be the tokens of all owners, present and coming, and its tables in tablets must have
    their current tablets. If ``shards`` is set, each range must also have the shards of its owner. A ring without
    tokens needs no generation.

    A replacement by a node with other shards moves no token, so no operation waits for new streams. Until an operator
    requests them, rows go to streams of other shards than their writes.
    """
    owners = target_owners(state)
    last = current(state)
    if last is None:
        return not owners
    if ends_of(last.ranges) != target_tokens(state):
        return False
    if not fits_tablets(state):
        return False
    assert len(owners) == len(last.ranges), "each range ends at the token of an owner"
    nodes = ((described, state.nodes[owners[described.end]]) for described in last.ranges if shards)
    return all((len(of.streams), of.ignore_msb) == (node.shards, node.ignore_msb) for of, node in nodes)


def fits_tablets(state: ClusterState) -> bool:
    """Return True if the last generation has a stream for each tablet with a CDC log, and few ranges of dropped tables.

    Without a generation, also return True.
    """
    last = current(state)
    if last is None:
        return True
    known = {described.table: described.ends for described in last.tables}
    wanted = tables_in_tablets(state)
    return all(known.get(one.table) == one.ends for one in wanted) and not _is_mainly_unused(state, last, wanted)


def _is_mainly_unused(state: ClusterState, last: Generation, wanted: Sequence[DescribedTable]) -> bool:
    """Return True if tables without a log have most of the ranges of ``last``, and a new generation would help.

    It needs tokens, and no earlier generation may be open. New tables are added to each open generation. A cluster
    whose generations do not close would therefore grow faster if it made more of them.
    """
    used = sum(len(one.ends) for one in wanted)
    unused = sum(len(one.ends) for one in last.tables) - used
    if unused <= max(UNUSED_RANGES_MAX, len(last.ranges) + used):
        return False
    return bool(target_owners(state)) and all(one.closed is not None for one in state.generations[:-1])


def tables_in_tablets(state: ClusterState) -> tuple[DescribedTable, ...]:
    """Return the tables in tablets with a CDC log and their current tablets, by id; equal ones are the last one's
    objects.
    """
    last = current(state)
    known = {described.table: described for described in (last.tables if last is not None else ())}
    found = [_described(table, state.tablets) for _, table in in_order(state.tables) if _is_logged(table)]
    kept = (known[one.table] if known.get(one.table) == one else one for one in found)
    return tuple(sorted(kept, key=lambda described: described.table))


def with_new_table(state: ClusterState, table: Table, tablets: Mapping[str, TabletMap]) -> tuple[Generation, ...]:
    """Return the generations after ``table`` is created: those that are not closed get its streams, if it has a log."""
    if not _is_logged(table):
        return state.generations
    one = _described(table, tablets)
    return tuple(
        found if found.closed is not None else replace(found, tables=_with(found.tables, one))
        for found in state.generations
    )


def _with(tables: tuple[DescribedTable, ...], one: DescribedTable) -> tuple[DescribedTable, ...]:
    # A forced state may describe a table before it exists. The description stays: streams of it may be in use.
    if described_as(tables, one.table) is not None:
        return tables
    return tuple(sorted((*tables, one), key=lambda described: described.table))


def _is_logged(table: Table) -> bool:
    return table.tablets is not None and table.cdc.enabled


def _described(table: Table, tablets: Mapping[str, TabletMap]) -> DescribedTable:
    assert table.tablets is not None, "the table is in tablets"
    cut = f"{table.keyspace}.{table.tablets.base}" if table.tablets.base else table.full_name
    return DescribedTable(table.id, tablets[cut].ends)


def to_prepare(state: ClusterState) -> tuple[GenerationId, bytes] | None:
    """Return id and seed of the generation whose data is wanted now, or None.

    It is the prepared one (requested, or started and perhaps abandoned by its author). Otherwise it is that of the
    first operation that waits for one, unless the last generation is not published yet. There are always tokens to
    describe: a prepared generation is dropped with the last present or coming token.
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

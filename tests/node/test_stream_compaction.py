"""A stream of rows keeps the effect of every write while both nodes compact, write and crash.

Before each page the source has applied every write below the receiver's positions. A version that supersedes another
one of the stream was therefore at the source when its page was read, or it reaches the receiver from the topic. Locked
ranges keep the source from receiving another stream meanwhile. In a repair each replica streams to each other one, and
a replica removes only versions that are redundant among the versions of all replicas.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, permutations
from random import Random

import pytest

from ringlog.client.data.row_merge import partition_of
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.schema.tables import CreateTable
from ringlog.kernel.commands.topology.movements import Join, Rebuild
from ringlog.kernel.fold import fold
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.operations.stages import WRITE_BOTH_READ_OLD
from ringlog.kernel.ring.murmur3 import compose, token_of
from ringlog.kernel.rows.reading import seen
from ringlog.kernel.values import CdcOptions, Column, Replication, replace
from ringlog.node.protocol.stream import RowStreamProgress
from ringlog.node.rows import compaction
from ringlog.node.rows.memory_rows import MemoryRows
from ringlog.node.rows.pages import stream_messages, verified_bodies
from ringlog.node.rows.replica import KEPT, NOT_OWNED, NotReady, RowReplica
from ringlog.node.streams.row_stream import bodies, rows_of
from ringlog.wire.data import Rows, RowVersion
from ringlog.wire.records import Mutation, decode_mutation, encode_mutation
from tests.kernel.entries import applied, entry, uuid
from tests.kernel.entries import node as registered
from tests.kernel.rows.histories import SECOND, TYPES, Statement, draw, model, mutation_of, viewed
from tests.node.test_compaction import COLUMNS, SHAPE
from tests.node.test_compaction import Rows as Replica
from tests.node.world import APPENDED, SEED, begin_join, cluster, name_of, step
from tests.record_keys import record_key

RING = ((-(2**62),), (0,), (2**62,))
JOINER = name_of(4)
KEYS = (b"p1", b"p2", b"p3")
PAGE_BYTES = 100
"""Two or three versions."""


def joining(factor: int) -> tuple[ClusterState, ClusterState]:
    """The states before a fourth node joins, and in the stage in which it streams rows of all keys."""
    columns = tuple(Column(name, kind, static=name == "s") for name, kind in TYPES.items())
    before = applied(
        cluster(*RING),
        CreateKeyspace("ks", Replication("simple", factor)),
        CreateTable("ks", "t", uuid(2, space=9), columns, ("p",), ("c", "d"), CdcOptions()),
    )
    state, operation = begin_join(before, 4, tuple(token_of(compose([key])) for key in KEYS))
    while state.operations[operation].stage != WRITE_BOTH_READ_OLD:
        state = step(state, operation)
    return before, state


class Node:
    def __init__(self, name: str, state: ClusterState) -> None:
        self.name, self.store = name, MemoryRows()
        self.restart(0, state)

    def restart(self, lost: int, state: ClusterState) -> None:
        self.store.crash(lost)
        self.rows = RowReplica(self.name, self.store, compacted_after=2)
        self.rows.positions.setdefault(0, 0)
        self.adopt(state)
        self.rows.caught_up = True

    def adopt(self, state: ClusterState) -> None:
        self.streams = [RowStreamProgress(self.rows, fetch) for fetch in self.rows.adopt(state)]

    def take(self, topic: list[Mutation], count: int) -> None:
        for mutation in topic[self.rows.positions[0] :][:count]:
            assert self.rows.validate_record(encode_mutation(mutation), APPENDED, record_key(mutation)) in (
                KEPT,
                NOT_OWNED,
            )
            self.rows.advance_position(0, self.rows.positions[0] + 1)

    def states(self) -> dict[bytes, list[Mutation]]:
        found: dict[bytes, list[Mutation]] = {}
        for one in self.store.versions(((0, 0),)):
            write = decode_mutation(one.value)
            found.setdefault(write.partition_key[0] or b"", []).append(write)
        return found


class Life:
    """One receiver, its sources, and a topic of one partition; ``seed`` determines all events."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.written: list[tuple[bytes, list[Statement]]] = []
        self.topic: list[Mutation] = []
        self.pages = self.removed = self.removed_amid = 0
        before, self.state = joining(self.chance.choice((1, 2)))
        for _ in range(20):
            self.write()
        self.nodes = {name_of(number): Node(name_of(number), before) for number in range(1, 5)}
        self.joiner = self.nodes[JOINER]
        for node in self.nodes.values():
            node.take(self.topic, self.chance.randrange(21))
            node.rows.commit(sync=True)
            node.adopt(self.state)

    def write(self) -> None:
        key = self.chance.choice(KEYS)
        together = [draw(self.chance, 12) for _ in range(self.chance.choice((1, 1, 1, 2)))]
        self.written.append((key, together))
        self.topic.append(replace(mutation_of(together), partition_key=(key,)))

    def disturb(self, is_amid: bool) -> None:
        for _ in range(self.chance.randrange(10)):
            sources = [self.nodes[one.fetch.source] for one in self.joiner.streams]
            node = self.chance.choice((self.joiner, *sources * 3))
            what = self.chance.choice(("write", "take", "take", "compact", "compact", "read", "commit", "crash"))
            before = len(node.store)
            if what == "write":
                self.write()
            elif what == "take":
                node.take(self.topic, self.chance.randrange(4))
            elif what == "compact":
                for _ in range(self.chance.randrange(1, 12)):
                    node.rows.compact()
            elif what == "read" and node is not self.joiner:
                key = compose([self.chance.choice(KEYS)])
                with compaction.partition_read(node.rows, ("ks.t", key), None):
                    pass
            elif what == "commit":
                node.rows.commit(sync=self.chance.random() < 0.5)
            elif what == "crash" and self.chance.random() < (0.1 if node is self.joiner else 0.7):
                node.restart(self.chance.randrange(node.store.unsynced + 1), self.state)
                continue
            self.removed += max(0, before - len(node.store))
            self.removed_amid += is_amid and node is not self.joiner and len(node.store) < before

    def call(self, gained: RowStreamProgress) -> None:
        """Make one call of a stream through its message bytes; a source that may not answer breaks the stream."""
        fetch, source = gained.fetch, self.nodes[gained.fetch.source]

        def page(after: RowVersion | None) -> Rows:
            return source.rows.page(fetch, self.state.epoch, after, PAGE_BYTES)

        def pages() -> Iterator[Rows]:
            for body in verified_bodies(stream_messages(source.name, 0, bodies(page, gained.last)), source.name):
                yield rows_of(body, gained.last, fetch)

        try:
            for found in pages():
                self.disturb(is_amid=True)
                if gained not in self.joiner.streams:
                    return  # the receiver was killed
                assert gained.keep(found)
                self.pages += 1
        except NotReady:
            return
        if gained.end():
            self.joiner.streams.remove(gained)

    def run(self) -> None:
        for _ in range(12):
            self.disturb(is_amid=False)
            if self.joiner.streams:
                self.call(self.chance.choice(self.joiner.streams))
        self.chance.random = lambda: 1.0  # type: ignore[method-assign] # crashes end
        for _ in range(100):
            for node in self.nodes.values():
                node.take(self.topic, len(self.topic))
            for gained in tuple(self.joiner.streams):
                self.call(gained)
        for node in self.nodes.values():
            node.take(self.topic, len(self.topic))


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "PAGE_VERSIONS", 2)
    monkeypatch.setattr(compaction, "SMALL_BYTES", 0)


def test_a_stream_during_compaction_keeps_the_effect_of_all_writes() -> None:
    pages = removed = amid = 0
    for seed in range(60):
        life = Life(seed)
        life.run()
        assert not life.joiner.streams, f"seed {seed}: the stream never completes"
        held = life.joiner.states()
        for key in KEYS:
            every = [mutation for mutation in life.topic if mutation.partition_key == (key,)]
            found = partition_of(held.get(key, []), SHAPE)
            assert found == partition_of(every, SHAPE), f"seed {seed}, {key!r}"
            statements = [one for at, together in life.written if at == key for one in together]
            for now in (5 * SECOND, 15 * SECOND, 40 * SECOND):
                assert viewed(seen(found, COLUMNS, now)) == model(statements, now), f"seed {seed}, {key!r} at {now}"
        pages, removed, amid = pages + life.pages, removed + life.removed, amid + life.removed_amid
    assert min(pages, amid) > 100, "sources remove versions during streams"


def test_a_source_receives_no_other_stream_meanwhile() -> None:
    before, state = joining(2)
    running = next(name for name in state.operations if name not in before.operations)
    for source in {one.source for one in state.operations[running].plan.sources}:
        assert fold(state, entry(state, Rebuild(source))).outcome.code == "range_locked"
    rebuilding = applied(before, Rebuild(name_of(1)), registered(4))
    join = Join(JOINER, tuple(token_of(compose([key])) for key in KEYS), SEED)
    assert fold(rebuilding, entry(rebuilding, join)).outcome.code == "range_locked"


def test_a_repair_during_compaction_keeps_the_effect_of_all_writes() -> None:
    removed = 0
    for seed in range(50):
        chance = Random(seed)
        replicas = [Replica() for _ in range(3)]
        writes = [mutation_of([draw(chance, 12) for _ in range(chance.choice((1, 1, 2)))]) for _ in range(14)]
        for write in writes:
            for rows in chance.sample(replicas, chance.choice((1, 1, 2, 3))):
                rows.add(write)
        streams: dict[tuple[Replica, Replica], RowVersion | None] = dict.fromkeys(permutations(replicas, 2))
        while streams:
            if chance.random() < 0.3:
                compacted = chance.choice(replicas)
                before = len(compacted.store)
                compacted.compact()
                removed += before - len(compacted.store)
                continue
            source, target = pair = chance.choice(list(streams))
            page = list(islice(source.store.listed(((0, 0),), None, streams[pair]), chance.choice((1, 2))))
            for version in page:
                target.store.add(version)
            streams[pair] = page[-1] if page else None
            if not page:
                del streams[pair]
        wanted = partition_of(writes, SHAPE)
        assert all(partition_of(rows.writes(), SHAPE) == wanted for rows in replicas), f"seed {seed}"
    assert removed > 150

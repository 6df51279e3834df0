"""The speed of folding a log on one core: entries that change little, and the life of a growing cluster.

    python bench/replay.py [SCALE] [--json] [--profile]

Records are decoded and folded as in a replica, by ``ringlog.log.folding.follow``, with as few garbage collections as in
agents and nodes. Making the log and reading it from a broker are not counted. *Simple* entries change one item of a
cluster of three nodes with a full history: nothing at all (a Noop), a write lease, the properties of a node. The *life*
is that of ``placement.py``: every join is planned, checked, recorded, and passes all its stages, with its own CDC
generation, up to 1,000 nodes. ``SCALE`` multiplies both. ``--profile`` prints a profile of the simple entries.
"""

from __future__ import annotations

import cProfile
import gc
import json
import pstats
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator

from placement import LIFE, SETTINGS, Author, grow, join, uuid_of

from ringlog.kernel.commands.cdc.writers import AdvanceCdcWriter, RegisterCdcWriter
from ringlog.kernel.commands.cluster.cluster import InitializeCluster, Noop
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.topology.nodes import RegisterNode, UpdateNode
from ringlog.kernel.fold import fold
from ringlog.kernel.model.outcome import OutcomeKind
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState
from ringlog.kernel.values import Command
from ringlog.log.folding import follow
from ringlog.log.port import LogRecord
from ringlog.runtime.process import reduce_gc
from ringlog.wire.entries import author_entry, decode_entry

SIMPLE, LIFE_S = 50_000.0, 8.0
"""Goals: simple entries a second at least, seconds of the life at most."""
COUNT, ROUNDS = 30_000, 3
WRITER = uuid_of(1, 3)


class Writing(Author):
    """An author that writes the bytes of each entry and folds them."""

    def __init__(self, state: ClusterState) -> None:
        super().__init__(state)
        self.records: list[bytes] = []
        self.decoding: Counter[type] = Counter()

    def append(self, command: Command) -> None:
        state, number = self.state, self.state.epoch + 1
        cluster = state.cluster_id or uuid_of(0, 9)
        ids = (uuid_of(number, 0), state.state_id or None, uuid_of(number, 1))
        record = author_entry(cluster, *ids, state.epoch, "bench", number, command).data
        self.records.append(record)
        begin = time.process_time()
        entry = decode_entry(record)
        decoded = time.process_time()
        folded = fold(state, entry)
        self.taken[type(command)] += time.process_time() - decoded
        self.decoding[type(command)] += decoded - begin
        assert folded.outcome.kind is OutcomeKind.APPLIED, folded.outcome
        self.state = folded.state


def small() -> Writing:
    """Three nodes, a writer, and as much history as is kept."""
    author = Writing(EMPTY_STATE)
    author.append(InitializeCluster("bench", ()))
    for number in range(3):
        name = uuid_of(number, 2)
        author.append(RegisterNode(f"n{number}", name, f"n{number}:1", "dc0", "r0", 1, 12, "0", (), 1))
        join(author, name, 16)
    author.append(CreateKeyspace("ks", SETTINGS[0]))
    author.append(RegisterCdcWriter("w", WRITER))
    while author.state.epoch < 10_100:
        author.append(Noop())
    return author


def _noops(_: ClusterState) -> Iterator[Command]:
    while True:
        yield Noop()


def _horizons(state: ClusterState) -> Iterator[Command]:
    at = state.writers["w"].horizon
    while True:
        at += 1_000_000
        yield AdvanceCdcWriter("w", WRITER, at, at - 1_000_000)


def _updates(_: ClusterState) -> Iterator[Command]:
    number = 0
    while True:
        number += 1
        yield UpdateNode(uuid_of(0, 2), release=f"1.{number}")


KINDS: dict[str, Callable[[ClusterState], Iterator[Command]]] = {
    "nothing": _noops,
    "a horizon": _horizons,
    "a node": _updates,
}


def simple(count: int, profile: bool) -> dict[str, float]:
    """Entries per second for each kind of change, and for all three in turn: the best of some rounds."""
    begun = small()
    reduce_gc()
    found: dict[str, float] = {}
    for name in (*KINDS, "each in turn"):
        author = Writing(begun.state)
        kinds = [KINDS[name]] if name in KINDS else list(KINDS.values())
        sources = [kind(begun.state) for kind in kinds]
        for number in range(count):
            author.append(next(sources[number % len(sources)]))
        log = [LogRecord(begun.state.epoch + at, data) for at, data in enumerate(author.records)]
        taken = min(_replayed(log, begun.state, author.state) for _ in range(ROUNDS))
        found[name] = count / taken
        print(f"{'changes ' + name:30} {count / taken:10,.0f} entries/s {taken / count * 1e6:8.1f} us each", flush=True)
        if profile:
            with cProfile.Profile() as seen:
                _replayed(log, begun.state, author.state)
            pstats.Stats(seen).sort_stats("tottime").print_stats(30)
    return found


def _replayed(log: list[LogRecord], state: ClusterState, expected: ClusterState) -> float:
    """Seconds."""
    gc.collect()
    begin = time.process_time()
    for made in follow(log, state):
        state = made.after
    taken = time.process_time() - begin
    assert state.state_id == expected.state_id
    return taken


def main() -> None:
    """Measure and print."""
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    scale = float(words[0]) if words else 1.0
    rates = simple(max(1_000, round(COUNT * scale)), "--profile" in sys.argv)
    gc.disable()  # as in the simulator: states hold no cycles
    author = Writing(EMPTY_STATE)
    nodes = max(9, round(LIFE[0] * scale))
    grow(author, nodes, LIFE[1])
    folding, decoding = author.taken.total(), author.decoding.total()
    print(
        f"life of {nodes:,} nodes: {author.state.epoch:,} entries fold in {folding:.1f} s, decode in {decoding:.1f} s"
    )
    for kind, seconds in author.taken.most_common(6):
        print(f"    {kind.__name__:26} {seconds:6.2f} s, decoding {author.decoding[kind]:6.2f} s")
    print(f"goals: {SIMPLE:,.0f} simple entries/s, the life in {LIFE_S} s")
    if "--json" in sys.argv:
        figures = {"simple_per_s": round(rates["each in turn"]), "life_s": round(folding, 2)}
        print(json.dumps(figures | {"life_decoding_s": round(decoding, 2)}))


if __name__ == "__main__":
    main()

"""The cost of a join for the kernel, and its growth with the cluster: plan, steps, lookup, and a whole life.

    python bench/placement.py [SCALE]

Clusters have three datacenters with three racks each and ten keyspaces with ten settings, so no placement is shared. A
join is one entry that plans, checks and records it, and one entry for each stage. The CDC generation has its own
column, because it grows with the ring. The digest also has columns, because only the cache writer needs it at
each epoch. *digest* is that of the whole state, *changed* that of the most expensive epoch of the join.

Time is the fold on one core, the least of some rounds, without Avro and without the author's work. The garbage
collector is off, as in the simulator: states contain no cycles. ``SCALE`` multiplies the numbers of nodes and the
greatest number of tokens (1; 0.05 takes seconds).

The last lines fold the log of a cluster that grows to 1,000 nodes, one join after the other. Every figure has a limit.
The status is 1 if one of them is missed by more than a factor of two.
"""

from __future__ import annotations

import gc
import math
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from immutables import Map

from ringlog.client.tokens import choose_tokens
from ringlog.kernel.commands.cdc.generations import (
    CommitCdcGeneration,
    PublishCdcGeneration,
    PutCdcGenerationData,
    parts_of,
)
from ringlog.kernel.commands.cluster.cluster import InitializeCluster
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.topology.movements import Join
from ringlog.kernel.commands.topology.nodes import RegisterNode
from ringlog.kernel.commands.topology.operations import AdvanceOperation
from ringlog.kernel.encoding.digester import Digester
from ringlog.kernel.encoding.encoder import digest
from ringlog.kernel.fold import fold
from ringlog.kernel.generations.describe import ranges_digest
from ringlog.kernel.model.outcome import Entry, OutcomeKind
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState, Node
from ringlog.kernel.model.tables import Keyspace
from ringlog.kernel.operations.gates import GAINING_MUST_STAGES, GATED_STAGES, REPORTED_STAGES
from ringlog.kernel.operations.kinds import next_stage
from ringlog.kernel.operations.rings import target_owners
from ringlog.kernel.operations.stages import COMMIT_CDC_GENERATION, PUBLISH_CDC_GENERATION, in_flight
from ringlog.kernel.ownership.placements import group_at, new_placement, placement_of_keyspace
from ringlog.kernel.ownership.strategies import replication_key
from ringlog.kernel.registry import VERSIONS
from ringlog.kernel.values import (
    Command,
    DatacenterReplication,
    GenerationRange,
    Replication,
    StreamReport,
    Value,
    Witness,
)
from ringlog.runtime.draw import SeededDraw

SIZES = ((100, 16, 0.1), (300, 16, 0.1), (1_000, 16, 0.5), (100, 256, 0.5))
"""Nodes, tokens of each, and the most that plan and steps of one join may take, in seconds."""

LIFE = (1_000, 16, 60.0)
LOOKUP_US = 5.0
LOOKUPS = 50_000
CHANGED = 0.25
"""Maximum share of a whole digest for an epoch that changes ranges of every placement."""
ROUNDS = 3
MISSED = 2.0
SEED = bytes(range(16))
CDC = (PutCdcGenerationData, CommitCdcGeneration, PublishCdcGeneration)


def _network(**factors: int) -> Replication:
    local = tuple(DatacenterReplication(name, factor) for name, factor in sorted(factors.items()))
    return Replication("network", sum(factors.values()), local)


SETTINGS = (
    Replication("simple", 3),
    _network(dc0=3),
    _network(dc1=3),
    _network(dc2=3),
    _network(dc0=3, dc1=3),
    _network(dc0=3, dc2=2),
    _network(dc1=2, dc2=2),
    _network(dc0=1, dc1=1, dc2=1),
    _network(dc0=2, dc1=2, dc2=2),
    _network(dc0=3, dc1=3, dc2=3),
)


class Figure(Value):
    """Something that was measured, and the most that it may be."""

    name: str
    value: float
    limit: float

    @property
    def missed(self) -> bool:
        return self.value > MISSED * self.limit


class Author:
    """Appends to a log that only it writes, and adds up what folding takes, by class of command, in seconds."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.taken: Counter[type] = Counter()

    def append(self, command: Command) -> None:
        """Fold the command's entry, which must apply."""
        number = self.state.epoch + 1
        entry = Entry(
            cluster_id=self.state.cluster_id or uuid_of(0, 9),
            state_id=uuid_of(number, 0),
            prev_state_id=self.state.state_id or None,
            request_id=uuid_of(number, 1),
            since_epoch=self.state.epoch,
            submitter="bench",
            at=number,
            kind=type(command).__name__,
            version=VERSIONS[type(command).__name__],
            digest="",
            command=command,
        )
        begin = time.process_time()
        folded = fold(self.state, entry)
        self.taken[type(command)] += time.process_time() - begin
        assert folded.outcome.kind is OutcomeKind.APPLIED, folded.outcome
        self.state = folded.state

    def seconds(self, *kinds: type) -> float:
        return sum(self.taken[kind] for kind in kinds)


def uuid_of(number: int, space: int) -> str:
    """A version-7 UUID; ascending in ``number``, a millisecond each, within a ``space``."""
    return f"{number >> 16:08x}-{number & 0xFFFF:04x}-7000-8000-{space:012x}"


def join(author: Author, node: str, count: int) -> None:
    """The node joins with ``count`` tokens, and every node acknowledges everything at once."""
    seed = SEED[:8] + author.state.epoch.to_bytes(8, "big")
    author.append(Join(node, choose_tokens(target_owners(author.state), count, SeededDraw(seed)), seed))
    while flying := in_flight(author.state):
        operation, state = flying[0], author.state
        if operation.stage == COMMIT_CDC_GENERATION:
            for command in _generation(state, f"generation-of-{operation.id}"):
                author.append(command)
        elif operation.stage == PUBLISH_CDC_GENERATION:
            author.append(PublishCdcGeneration(state.generations[-1].id))
        to = next_stage(operation)
        assert to is not None
        asked = operation.stage in (*GATED_STAGES, *GAINING_MUST_STAGES)
        known = sorted(node for node, found in state.nodes.items() if asked and found.state in ("normal", "joining"))
        witnesses = tuple(Witness(node, state.epoch, state.epoch) for node in known)
        reports = (StreamReport(node, operation.id, 1, "00ff"),) if operation.stage in REPORTED_STAGES else ()
        author.append(AdvanceOperation(operation.id, to, witnesses, reports))


def _generation(state: ClusterState, name: str) -> Iterator[Command]:
    """One stream for each range, with the range's end as its token."""
    ends = sorted(target_owners(state))
    fields = np.empty((len(ends), 2), dtype=">u8")
    fields[:, 0] = np.array(ends, dtype=np.int64).view(np.uint64)
    fields[:, 1] = np.arange(len(ends), dtype=np.uint64) << np.uint64(4) | np.uint64(1)
    streams = fields.tobytes()
    ranges = tuple(GenerationRange(end, 12, (streams[16 * at : 16 * at + 16],)) for at, end in enumerate(ends))
    yield from parts_of(name, ranges)
    yield CommitCdcGeneration(name, state.epoch, ranges_digest(ranges))


# ---------------------------------------------------------------------------------------------------- one join


def cluster(nodes: int, tokens: int) -> ClusterState:
    """A quiet cluster, and a node ``x`` that owns nothing yet."""
    drawn = np.random.default_rng(7).permutation(nodes * tokens).astype(object)
    step = (2**64 - 2) // (nodes * tokens)
    owned: list[list[int]] = [[] for _ in range(nodes)]
    for place, whose in enumerate(drawn.tolist()):
        owned[whose % nodes].append(place * step - 2**63 + 1)
    directory = {f"n{number}": _node(f"n{number}", number, tuple(own)) for number, own in enumerate(owned)}
    owners = Map({token: name for name, node in directory.items() for token in node.tokens})
    return ClusterState(
        cluster_id=uuid_of(0, 9),
        epoch=1,
        state_id=uuid_of(1, 0),
        nodes=Map({**directory, "x": _node("x", 0, ())}),
        token_owners=owners,
        keyspaces=Map(
            {f"ks{number}": Keyspace(f"ks{number}", one, "v", made=1) for number, one in enumerate(SETTINGS)}
        ),
        placements=Map({replication_key(one): new_placement(one, owners, directory, 1) for one in SETTINGS}),
    )


def _node(name: str, number: int, tokens: tuple[int, ...]) -> Node:
    where, state = (f"dc{number % 3}", f"r{number // 3 % 3}"), "normal" if tokens else "none"
    return Node(name, name, f"{name}:1", *where, 1, 12, "0", (), 1, state, tokens, 1)


def measure_join(nodes: int, tokens: int, limit: float) -> tuple[tuple[Figure, ...], float]:
    """Print the line of one size. Return its limited figures, and the seconds of plan and steps."""
    state = cluster(nodes, tokens)
    rounds = []
    for _ in range(ROUNDS):
        author = Author(state)
        join(author, "x", tokens)
        rounds.append(author)
    plan, steps, streams = (
        min(author.seconds(*kinds) for author in rounds) for kinds in ((Join,), (AdvanceOperation,), CDC)
    )
    lookup = min(_lookup_us(rounds[0].state) for _ in range(ROUNDS))
    digested, changed = _digests(state, tokens)
    took = Figure(f"join of {nodes} x {tokens}", plan + steps, limit)
    print(
        f"{nodes:6,} {tokens:6} {nodes * tokens:8,} {plan * 1e3:8.1f} {steps * 1e3:8.1f} {took.value * 1e3:9.1f}"
        f" {limit * 1e3:8.0f} {took.value / limit:8.2f} {streams * 1e3:8.1f} {lookup:10.2f} {digested * 1e3:10.0f}"
        f" {changed * 1e3:11.0f}",
        flush=True,
    )
    where = f"{nodes} x {tokens}"
    share = Figure(f"digest of an epoch against a whole one in {where}", changed / digested, CHANGED)
    return (took, Figure(f"lookup in {where}", lookup, LOOKUP_US), share), plan + steps


def _digests(state: ClusterState, tokens: int) -> tuple[float, float]:
    """Return the seconds of a new digest, and of the most expensive one of a join after the previous one."""
    author = _DigestingAuthor(state)
    join(author, "x", tokens)
    begin = time.process_time()
    found = digest(author.state)
    whole = time.process_time() - begin
    assert found == author.digester.digest(author.state)
    return whole, max(author.digesting)


class _DigestingAuthor(Author):
    """Digests each state after the one before it."""

    def __init__(self, state: ClusterState) -> None:
        super().__init__(state)
        self.digester = Digester()
        self.digester.digest(state)
        self.digesting: list[float] = []

    def append(self, command: Command) -> None:
        """As ``Author``."""
        super().append(command)
        begin = time.process_time()
        self.digester.digest(self.state)
        self.digesting.append(time.process_time() - begin)


def _lookup_us(state: ClusterState) -> float:
    """Microseconds from a keyspace and a token to the groups of its range."""
    tokens = np.random.default_rng(3).integers(-(2**63) + 1, 2**63 - 1, size=LOOKUPS, dtype=np.int64).tolist()
    found = 0
    begin = time.process_time()
    for token in tokens:
        placement = placement_of_keyspace(state, "ks9")
        assert placement is not None
        found += len(group_at(placement, token).read)
    taken = time.process_time() - begin
    assert found == 9 * LOOKUPS
    return taken / LOOKUPS * 1e6


def slope(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """Return the exponent of the growth of time with size: the slope of the line through the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


# ---------------------------------------------------------------------------------------------------- whole life


def grow(author: Author, nodes: int, tokens: int) -> None:
    """Found a cluster, let it grow to ``nodes`` nodes under all settings."""
    author.append(InitializeCluster("bench", ()))
    for number in range(nodes):
        place = f"dc{number % 3}", f"r{number // 3 % 3}"
        author.append(RegisterNode(f"n{number}", uuid_of(number, 2), f"n{number}:1", *place, 1, 12, "0", (), 1))
        join(author, uuid_of(number, 2), tokens)
        if number == 8:
            for index, setting in enumerate(SETTINGS):
                author.append(CreateKeyspace(f"ks{index}", setting))


def measure_life(nodes: int, tokens: int, limit: float) -> Figure:
    """Found a cluster, let it grow to ``nodes`` nodes, print what folding its log took."""
    author = Author(EMPTY_STATE)
    grow(author, nodes, tokens)
    whole, streams = author.taken.total(), author.seconds(*CDC)
    took = Figure(f"life of {nodes} x {tokens}", whole, limit)
    log = f"{nodes:,} joins with {tokens} tokens each, {author.state.epoch:,} entries"
    share = f"{whole / limit:.2f} of the limit"
    print(f"\nThe log of {log}, folds in {whole:.1f} s ({share}), {streams:.1f} s of it for CDC generations.")
    return took


def main(scale: float = 1.0) -> int:
    """Measure and print; the exit status."""
    print(" nodes tokens   ranges  plan ms steps ms  together    limit  x limit   CDC ms", end="")
    print("  lookup us  digest ms  changed ms")
    figures: list[Figure] = []
    grown: list[tuple[int, float]] = []
    usual = SIZES[0][1]
    for nodes, tokens, limit in SIZES:
        nodes = max(9, round(nodes * scale))
        tokens = tokens if tokens == usual else max(usual, round(tokens * scale))
        found, seconds = measure_join(nodes, tokens, limit)
        figures += found
        grown += [(nodes * tokens, seconds)] if tokens == usual else []
    ranges, taken = [size for size, _ in grown], [seconds for _, seconds in grown]
    wanted = [size * math.log(size) for size in ranges]
    print(f"\nPlan and steps grow with the ranges to the power of {slope(ranges, taken):.2f}, ", end="")
    print(f"n log n does to that of {slope(ranges, wanted):.2f} here.")
    figures.append(Figure("growth against n log n", taken[-1] / taken[0] * wanted[0] / wanted[-1], 1.0))
    figures.append(measure_life(max(9, round(LIFE[0] * scale)), LIFE[1], LIFE[2]))
    for figure in figures:
        if figure.missed:
            print(f"MISSED: {figure.name} is {figure.value:.3g}, the limit is {figure.limit:.3g}")
    return int(any(figure.missed for figure in figures))


if __name__ == "__main__":
    gc.disable()
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0))

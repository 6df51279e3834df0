"""The cost of single changes in a large cluster, and sizes of a still larger one on paper.

    python bench/scale.py [SCALE] [--json]      1,000 nodes of 16 tokens under ten settings, 1,000 tables
    python bench/scale.py --paper               10,000 nodes in ten regions: sizes, from encoded samples

The first mode folds a join, and then epochs that each change one item. It measures the work of each follower of the
log: the *fold*, the *publisher* (encoded change records), the *keeper* (cache writes), a *node* (its served state), and
the *digest*. The join has no data. Figures are milliseconds of processor time, the least of some rounds. The last line
shows the most expensive epoch of a join, which changes 720 ranges three times and describes all streams again. The
second mode multiplies; no cluster of that size is built. ``docs/internals/performance.md`` shows its table.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable

from placement import SEED, Author, cluster, join, uuid_of

from ringlog.cache import projection
from ringlog.kernel import changes
from ringlog.kernel.commands.cdc.writers import AdvanceCdcWriter, RegisterCdcWriter
from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.commands.schema.tables import AlterTable, CreateTable
from ringlog.kernel.commands.topology.movements import Join
from ringlog.kernel.commands.topology.nodes import UpdateNode
from ringlog.kernel.commands.topology.operations import AdvanceOperation
from ringlog.kernel.encoding.digester import Digester
from ringlog.kernel.encoding.encoder import encode
from ringlog.kernel.model.applied_history import Applied
from ringlog.kernel.model.state import ClusterState, RangeGroup, Replica
from ringlog.kernel.values import CdcOptions, Column, Command, GenerationRange, Position, Value, replace
from ringlog.node.rows.replica import RowReplica
from ringlog.protocol.nodes.ack_schedule import SELDOM_US
from ringlog.wire.changes import encode_change_record
from ringlog.wire.commands import encode_command
from ringlog.wire.entries import author_entry
from ringlog.wire.records import NodeAck, encode_node_ack

NODES, TOKENS, TABLES, ROUNDS, JOINS = 1_000, 16, 1_000, 5, 2
JOIN_S, EPOCH_MS = 1.0, 10.0
"""Goals."""
WRITER = uuid_of(1, 3)
COLUMNS = (Column("k", "text"), Column("v", "text"))
FOLLOWERS = ("fold", "publisher", "keeper", "node", "digest")


def large(nodes: int, tokens: int, tables: int) -> ClusterState:
    """The cluster of ``placement.py``, with tables, a CDC writer and a full history."""
    author = Author(cluster(nodes, tokens))
    for number in range(tables):
        where = f"ks{number % 10}", f"t{number}"
        author.append(CreateTable(*where, uuid_of(number, 5), COLUMNS, ("k",), (), CdcOptions()))
    author.append(RegisterCdcWriter("w", WRITER))
    for _ in range(10_000):
        author.append(Noop())
    return author.state


def one_thing(state: ClusterState, number: int) -> dict[str, Command]:
    """Commands that change one item, by its kind."""
    at = state.writers["w"].horizon + 1_000_000 * (number + 1)
    return {
        "nothing": Noop(),
        "a writer's horizon": AdvanceCdcWriter("w", WRITER, at, at - 1),
        "a node's release": UpdateNode("n7", release=f"1.{number}"),
        "a column of a table": AlterTable("ks7", "t7", (Column(f"c{number}", "text"),)),
    }


class Following(Author):
    """An author whose epochs others follow: milliseconds of each of ``FOLLOWERS`` for every epoch, in ``taken_ms``."""

    def __init__(self, state: ClusterState) -> None:
        super().__init__(state)
        self.taken_ms: list[dict[str, float]] = []
        self._digester, self._holder = Digester(), RowReplica("n7")
        self._digester.digest(state)
        self._holder.adopt(state)

    def append(self, command: Command) -> None:
        """As ``Author``."""
        before, taken = self.state, {}

        def timed(name: str, act: Callable[[], object]) -> None:
            begin = time.process_time()
            act()
            taken[name] = (time.process_time() - begin) * 1_000

        fold = super().append
        timed("fold", lambda: fold(command))
        after = self.state
        timed("publisher", lambda: [encode_change_record(record) for record in changes.diff(before, after)])
        timed("keeper", lambda: projection.delta(before, after))
        timed("node", lambda: self._holder.adopt(after))
        timed("digest", lambda: self._digester.digest(after))
        self.taken_ms.append(taken)


def followed(state: ClusterState, command: Command) -> dict[str, float]:
    """Return the milliseconds of each of ``FOLLOWERS`` for one epoch. All of them know the previous state."""
    author = Following(state)
    author.append(command)
    return author.taken_ms[-1]


def joined(state: ClusterState) -> dict[str, float]:
    """Return, for each of ``FOLLOWERS``, the time of the most expensive epoch of a join with its generation."""
    author = Following(state)
    join(author, "x", TOKENS)
    return {name: max(taken[name] for taken in author.taken_ms) for name in FOLLOWERS}


def measure(scale: float, as_json: bool) -> None:
    """Print the two tables."""
    nodes, tables = max(9, round(NODES * scale)), max(10, round(TABLES * scale))
    state = large(nodes, TOKENS, tables)
    author = Author(state)
    join(author, "x", TOKENS)
    plan, steps = author.seconds(Join), author.seconds(AdvanceOperation)
    print(f"A join at {nodes:,} x {TOKENS} under ten settings with {tables:,} tables: the kernel plans for", end=" ")
    print(f"{plan:.2f} s and steps for {steps:.2f} s; the goal is {JOIN_S:.0f} s.")
    print(f"\n{'an epoch that changes, ms':28}" + "".join(f"{name:>11}" for name in FOLLOWERS))
    worst = dict.fromkeys(FOLLOWERS, 0.0)
    for name in one_thing(state, 0):
        rounds = [followed(state, one_thing(state, number)[name]) for number in range(ROUNDS)]
        least = {follower: min(one[follower] for one in rounds) for follower in FOLLOWERS}
        print(f"{name:28}" + "".join(f"{least[follower]:11.2f}" for follower in FOLLOWERS), flush=True)
        worst = {follower: max(worst[follower], least[follower]) for follower in FOLLOWERS}
    print(f"{'the goal':28}" + f"{EPOCH_MS:11.0f}" * len(FOLLOWERS))
    rounds = [joined(state) for _ in range(JOINS)]
    dearest = {name: min(one[name] for one in rounds) for name in FOLLOWERS}
    print(f"{'a join, its dearest epoch':28}" + "".join(f"{dearest[name]:11.2f}" for name in FOLLOWERS))
    if as_json:
        print(json.dumps({"join_s": round(plan + steps, 3)} | {name: round(ms, 2) for name, ms in worst.items()}))


# ------------------------------------------------------------------------------------------------------- on paper


class Paper(Value):
    """A cluster on paper. ``writers``: CDC writers, each with ``partitions`` of the CDC topic."""

    name: str
    nodes: int
    tokens: int
    regions: int
    settings: int = 3
    factor: int = 3
    shards: int = 8
    tables: int = 10_000
    writers: int = 100
    partitions: int = 64
    joins_a_day: int = 30
    epochs_a_second: int = 100

    @property
    def ranges(self) -> int:
        return self.nodes * self.tokens


PAPERS = (
    Paper("as measured", 1_000, 16, 3),
    Paper("10,000 x 16", 10_000, 16, 10),
    Paper("10,000 x 4", 10_000, 4, 10),
)


def sizes(paper: Paper) -> dict[str, float]:
    """Bytes and rates by their names, of encoded samples."""
    group = tuple(Replica(uuid_of(number, 2), 1_000_000) for number in range(paper.regions * paper.factor))
    sample = RangeGroup(-(2**62), 2**62, group, group, 1_000_000)
    range_bytes = len(encode(sample))
    node = replace(cluster(9, paper.tokens).nodes["n1"], id=uuid_of(1, 2), address="node-1234.region-7:9042")
    applied = len(encode(Applied(1_000_000, uuid_of(1, 0), uuid_of(1, 1), "0" * 64)))
    stream = GenerationRange(2**62, 12, (b"\0" * 16,) * paper.shards)
    streams = paper.ranges * len(encode(stream))
    state = paper.settings * paper.ranges * range_bytes + paper.nodes * len(encode(node)) + 10_000 * applied
    state += paper.tables * len(encode(COLUMNS)) * 4 + streams
    positions = tuple(Position(number, 10**12) for number in range(paper.partitions))
    ids = uuid_of(0, 9), uuid_of(1, 0), uuid_of(0, 0), uuid_of(1, 1)
    promise = len(
        author_entry(
            *ids, 10**6, "writer-12", 10**15, AdvanceCdcWriter("w" * 20, WRITER, 10**15, 10**15, positions)
        ).data
    )
    tokens = tuple(2**62 + number for number in range(paper.tokens))
    plan = len(author_entry(*ids, 10**6, "operator", 10**15, Join(uuid_of(1, 2), tokens, SEED)).data)
    witness = len(encode_command(AdvanceOperation("join-1234567", "write_both_read_new"))[2]) + 50 * paper.nodes
    generation = paper.ranges * (11 + 2 + 17 * paper.shards)
    joined = plan + 3 * witness + generation
    told = NodeAck(uuid_of(0, 9), uuid_of(1, 2), "1.abcdef", 10**6, 10**6, (), 10**6, 10**15, (), uuid_of(1, 0))
    ack = len(encode_node_ack(told)) + 36 + 70
    moved = 3 * paper.settings * paper.tokens * (paper.regions * paper.factor)
    served = len(projection.to_json(sample))
    return {
        "ranges of a setting": paper.ranges,
        "a range, bytes": range_bytes,
        "state and snapshot, MB": state / 1e6,
        "  of it CDC streams, MB": streams / 1e6,
        "memory of the groups, MB": paper.settings * paper.ranges * (80 + 56 + 8 * len(group)) / 1e6,
        "log of a join, MB": joined / 1e6,
        "  of it CDC streams, MB ": generation / 1e6,
        "log of a day, GB": (paper.joins_a_day * joined + 86_400 * paper.epochs_a_second * promise) / 1e9,
        "ranges a join changes": moved / 3,
        "change records of a join": moved + paper.ranges,
        "acks/s, one each epoch": paper.nodes * paper.epochs_a_second,
        "acks/s now": paper.nodes / (SELDOM_US / 1e6),
        "acks now, MB/s": paper.nodes / (SELDOM_US / 1e6) * ack / 1e6,
        "cache, MB": paper.settings * paper.ranges * (served + 40) / 1e6 + streams / 1e6 * 2,
    }


def on_paper() -> None:
    """Print the table."""
    found = [sizes(paper) for paper in PAPERS]
    print(f"{'':28}" + "".join(f"{paper.name:>14}" for paper in PAPERS))
    for name in found[0]:
        values = [one[name] for one in found]
        print(f"{name:28}" + "".join(f"{value:14,.0f}" if value >= 100 else f"{value:14,.2f}" for value in values))


def main() -> None:
    """Measure, or calculate, and print."""
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    if "--paper" in sys.argv:
        on_paper()
        return
    gc.disable()
    measure(float(words[0]) if words else 1.0, "--json" in sys.argv)


if __name__ == "__main__":
    main()

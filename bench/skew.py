"""A skewed load on a table that splits by traffic: the busiest node and shard before and after, and the throughput.

    python bench/skew.py [WRITES [KEYS]]

Six nodes of four shards, two in each of three racks, have one table with three replicas. The keys of the writes have a
Zipf distribution. All replicas of a key validate and read the same WRITES (6,000) to KEYS (4,000) in each second of a
simulated clock, in memory, and measure the processor time. Reports, advice, entries and the coordinator's steps are
those of the real programs; only Kafka, disks and streams are left out. Periods of the averages last a second, not a
minute. A phase ends when the advice has been empty for some seconds.

Each line has the share of the busiest node and shard in the processor time of all, and the mean share. *Throughput* is
relative to the first line. The busiest shard limits it, if each shard has its own core: at half of the share, the
throughput is twice as high. First the balancer counts bytes only, then tablets have weights of traffic, then a target
as well.

The status is 1 if the throughput does not reach its goal. Commits and the work of brokers are not measured.
"""

from __future__ import annotations

import gc
import sys
import time
from bisect import bisect
from collections import Counter
from itertools import accumulate
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.kernel.entries import applied, uuid
from tests.kernel.tablets import clusters
from tests.node.world import APPENDED, write
from tests.record_keys import record_key

from ringlog.kernel.balance.advice import advise
from ringlog.kernel.balance.model import CPU
from ringlog.kernel.balance.reports import Reports
from ringlog.kernel.commands.cluster.cluster import ChangeSettings
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.schema.tables import CreateTable
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.ring.murmur3 import compose
from ringlog.kernel.values import SECOND_US, CdcOptions, Column, TabletOptions, Value
from ringlog.node.checks import token_of_partition
from ringlog.node.registers.served import ServedRequests
from ringlog.node.rows.replica import RowReplica
from ringlog.operator.rehearsal.rehearsal import acknowledgements
from ringlog.protocol.balancer.load_book import ReceivedLoad, measured, take
from ringlog.protocol.balancer.load_reports import load_of, own_tablets, sizes_of
from ringlog.protocol.coordinator.core import CoordinatorView, propose
from ringlog.wire.records import encode_mutation

WRITES, KEYS, SKEW = 6_000, 4_000, 0.9
SHARDS, RACKS, FIRST = 4, 3, 32
WANTED = 256
"""The number of tablets that the targets ask for."""
QUIET, SECONDS_MAX = 3, 40
GOAL = 1.4
TABLE = "tab.orders"
WEIGHTS = {"balance_load_cpu_percent": 33, "balance_load_reads_percent": 33, "balance_load_writes_percent": 33}


class Shares(Value):
    """The busiest node and shard, as parts of all processor time, and the sum in microseconds per second."""

    node: float
    shard: float
    total: int


def cluster() -> ClusterState:
    """The nodes, and the table with its first tablets."""
    columns = (Column("customer", "text"), Column("number", "bigint"), Column("note", "text"))
    return applied(
        clusters.three_racks(SHARDS),
        ChangeSettings((("balance_tablets_per_shard_min", 1),)),
        CreateKeyspace("tab", clusters.factor(RACKS)),
        CreateTable("tab", "orders", uuid(2, space=9), columns, ("customer",), ("number",), CdcOptions(),
                    tablets=TabletOptions(FIRST, min_count=FIRST)),
    )  # fmt: skip


class Nodes:
    """Row replicas of all nodes, their load, and the state that they follow."""

    def __init__(self, writes: int, keys: int) -> None:
        self.state = cluster()
        self.second = 0
        self.reports = Reports()
        self.replicas = {node: RowReplica(node) for node in sorted(self.state.nodes)}
        for replica in self.replicas.values():
            replica.caught_up, replica.served = True, ServedRequests(SECOND_US)
        draw, sums = Random(1), list(accumulate(1 / rank**SKEW for rank in range(1, keys + 1)))
        self.records: list[tuple[tuple[bytes | None, ...], bytes, bytes]] = []
        for _ in range(writes):
            rank = bisect(sums, draw.random() * sums[-1])
            mutation = write(f"k{rank}", rank, APPENDED + rank, keyspace="tab", table="orders")
            self.records.append((mutation.partition_key, encode_mutation(mutation), record_key(mutation)))

    def run_second(self) -> Shares:
        """Validate all writes on their replicas, and take the reports of all nodes."""
        for replica in self.replicas.values():
            replica.adopt(self.state)
        tablets = self.state.tablets[TABLE]
        self._report()
        for parts, value, key in self.records:
            partition_key = compose([part for part in parts if part is not None])
            for one in tablets.replicas(tablets.index_of(token_of_partition(partition_key))):
                self.replicas[one.node].validate_record(value, APPENDED, key)
                self.replicas[one.node].read(TABLE, partition_key)
        self.second += 1
        self._report()
        return self.shares()

    def _report(self) -> None:
        heard, now = [], self.second * SECOND_US
        for node, replica in self.replicas.items():
            own = own_tablets(self.state, node)
            sizes = {TABLE: sizes_of(self.state, TABLE, replica.sizes(TABLE))}
            load = load_of(self.state, node, own, sizes, now, replica.served.rates(self.state, own, now))
            heard.append(ReceivedLoad(load, now))
        self.reports = take(self.reports, heard, self.state)

    def shares(self) -> Shares:
        """The parts of the busiest node and shard by the newest reports."""
        nodes: Counter[str] = Counter()
        shards: Counter[tuple[str, int]] = Counter()
        loads = measured(self.reports, self.state)
        for tablet in self.state.tablets[TABLE]:
            for one in tablet.replicas:
                amount = loads[one.node].of_table(CPU, TABLE).get(tablet.index, 0)
                nodes[one.node] += amount
                shards[one.node, one.shard] += amount
        total = max(1, nodes.total())
        return Shares(max(nodes.values()) / total, max(shards.values()) / total, total)

    def follow_advice(self) -> int:
        """Apply the present advice and complete it. Return the number of its commands."""
        commands = advise(self.state, measured(self.reports, self.state)).commands
        self.state = applied(self.state, *commands)
        while steps := [one.command for one in propose(self._view())]:
            self.state = applied(self.state, *steps[:1])
        return len(commands)

    def _view(self) -> CoordinatorView:
        now = self.second * SECOND_US
        return CoordinatorView(self.state, acknowledgements(self.state, now), self.state.epoch, now)

    def settle(self, **settings: int) -> Shares:
        """Change settings, and run seconds until the advice has been empty for ``QUIET`` of them."""
        if settings:
            self.state = applied(self.state, ChangeSettings(tuple(sorted(settings.items()))))
        quiet, begun = 0, self.second
        while quiet < QUIET and self.second < begun + SECONDS_MAX:
            self.run_second()
            quiet = 0 if self.follow_advice() else quiet + 1
        return self.run_second()


def main(writes: int = WRITES, keys: int = KEYS) -> int:
    """Measure and print; the exit status."""
    begun, nodes = time.process_time(), Nodes(writes, keys)
    even = nodes.settle()
    print("                     tablets   busiest node   busiest shard   throughput")

    def line(name: str, found: Shares) -> float:
        ratio = even.shard / found.shard
        count = nodes.state.tablets[TABLE].count
        print(f"{name:20} {count:7} {found.node:14.1%} {found.shard:15.1%} {ratio:12.2f}", flush=True)
        return ratio

    line("by bytes", even)
    line("moves by traffic", nodes.settle(**WEIGHTS))
    target = max(1, even.total // RACKS // WANTED)
    ratio = line("splits by traffic", nodes.settle(balance_tablet_cpu_us=target))
    count = len(nodes.replicas)
    print(f"{'even':20} {'':7} {1 / count:14.1%} {1 / count / SHARDS:15.1%}")
    top = max(Counter(key for _, _, key in nodes.records).values()) / writes / RACKS
    print(f"the busiest key has {top:.1%} on each of {RACKS} shards; {nodes.second} seconds of {writes:,} writes in "
          f"{time.process_time() - begun:.0f} s")  # fmt: skip
    if ratio < GOAL:
        print(f"MISSED: throughput is {ratio:.2f} times the first, the goal is {GOAL}")
    return int(ratio < GOAL)


if __name__ == "__main__":
    gc.disable()
    sys.exit(main(*map(int, sys.argv[1:])))

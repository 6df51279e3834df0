"""The cost of a commit, compared with etcd, ZooKeeper and one acknowledged record, in the same run.

    python bench/commits.py [--alone] [--json]
    python bench/commits.py --signed [--json]

Starts a broker and a validator, and commits entries that change nothing: one at a time through the validator, and
directly; 64 in flight; 500 in flight. Then 64 writers contend for one object: each changes the record of the same node,
and the validator decides each change on the newest state. In etcd and ZooKeeper a writer compares the version that it
read last, and reads again if another writer has won. A win is a successful change.

etcd and ZooKeeper come from Debian's packages, with one member each, on the same disk, and the client is Python too. A
line reports a missing one. etcd is measured before and after, because the speed of machines changes; ratios use both.
The same holds for single records of a producer with the same settings. A record is less than a commit, which sends a
request to the validator and an entry to the log, and reads both.

Then (without ``--alone``) everything runs again with the four required agents, Redis and three nodes. ``--json`` prints
the ratios to etcd as one object in the last line; rates are divided by etcd's with 64 in flight; null without etcd.

``--signed`` compares two clusters of one broker instead: in one of them an operator signs the requests. The rounds
alternate between the clusters. Ratios are those of times: above 1, signed requests are slower.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from operator import truediv
from pathlib import Path
from queue import SimpleQueue
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from peers import Answer, Peer, etcd, zookeeper
from tests.plain_stack import plain_stack
from tests.system.agents_world import AgentsWorld
from tests.system.nodes_world import NodesWorld

from ringlog.client.client import Client
from ringlog.files import write_private
from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.commands.control.principals import CreatePrincipal
from ringlog.kernel.commands.topology.nodes import RegisterNode, UpdateNode
from ringlog.kernel.model.principals import FIRST_KEY
from ringlog.log.kafka.producer import AckedProducer
from ringlog.log.kafka.topics import METADATA, admin_client, create_topics
from ringlog.protocol.submission.results import AppliedResult
from ringlog.runtime.process import reduce_gc
from ringlog.runtime.trust import TRUST_VARIABLE
from ringlog.stack import StackInfo
from ringlog.wire.requests import key_of_principal

WARM, SEQUENTIAL, OUTSTANDING, MANY, ROUNDS = 300, 1_000, 64, 500, 6
CONTENDED = 200
"""Wins that are counted; more of Ringlog's, which are soon done."""
VALUE = b"x" * 100
CLUSTER, OF_RECORDS = "commits", "records"
SIGNED, UNSIGNED, TURNS = "signed", "unsigned", 30
MASTER = "the-master-of-this-benchmark"
ETCD, ZOOKEEPER, RECORD, RINGLOG, BUSY = "etcd", "ZooKeeper", "one record", "Ringlog", "Ringlog, all running"
NODES = ("n1", "n2", "n3")

Figures = dict[str, float]
"""Milliseconds and rates a second by the names of ``SHOWN``."""
SHOWN = {
    "sequential p50": "ms",
    "sequential p99": "ms",
    "direct p50": "ms",
    "direct p99": "ms",
    "64 under way": "/s",
    "64 under way p50": "ms",
    "64 under way p99": "ms",
    "64 under way, the longest": "ms",
    "500 at once": "/s",
    "64 contend, wins": "/s",
}
RATIOS = {
    "sequential_validator_p50": ("sequential p50", "sequential p50"),
    "sequential_validator_p99": ("sequential p99", "sequential p99"),
    "sequential_direct_p50": ("direct p50", "sequential p50"),
    "outstanding_64_rate": ("64 under way", "64 under way"),
    "outstanding_64_p99": ("64 under way p99", "64 under way p99"),
    "submit_many_500_rate": ("500 at once", "64 under way"),
    "contended_64_rate": ("64 contend, wins", "64 contend, wins"),
}
"""Name to (a figure of Ringlog, the one of etcd that it is divided by)."""


def times(act: Callable[[], object], count: int) -> list[float]:
    """Milliseconds that each of ``count`` acts took."""
    found = []
    for _ in range(count):
        began = time.perf_counter()
        act()
        found.append((time.perf_counter() - began) * 1_000)
    return found


def spread(name: str, found: list[float]) -> Figures:
    """Median and the 99th of a hundred."""
    parts = statistics.quantiles(found, n=100)
    return {f"{name} p50": parts[49], f"{name} p99": parts[98]}


def keeping(begin: Callable[[int], Answer], won: Callable[[int, Any], bool], count: int) -> tuple[float, list[float]]:
    """Wins a second while ``OUTSTANDING`` are under way, and the milliseconds that each try took.

    ``begin``: lets a writer begin; the next time when its answer has come. Answers are noted in the client's thread.
    """
    ended: SimpleQueue[tuple[int, float, Any]] = SimpleQueue()
    began = [0.0] * OUTSTANDING

    def go(slot: int) -> None:
        began[slot] = time.perf_counter()
        begin(slot).add_done_callback(lambda future: ended.put((slot, time.perf_counter(), future)))

    start, wins, took = time.perf_counter(), 0, []
    for slot in range(OUTSTANDING):
        go(slot)
    while wins < count:
        slot, at, future = ended.get()
        took.append((at - began[slot]) * 1_000)
        wins += won(slot, future.result())
        go(slot)
    rate = wins / (time.perf_counter() - start)
    for _ in range(OUTSTANDING):
        ended.get()[2].result()
    return rate, took


def of_peer(make: Callable[[Path], AbstractContextManager[Peer | None]], folder: Path) -> Figures:
    """Empty where it is not installed."""
    with make(folder) as peer:
        if peer is None:
            return {}
        times(lambda: peer.put(VALUE).result(), WARM)
        found = spread("sequential", times(lambda: peer.put(VALUE).result(), SEQUENTIAL))
        found["64 under way"], took = keeping(lambda _: peer.put(VALUE), lambda *_: True, 4 * SEQUENTIAL)
        found |= spread("64 under way", took) | {"64 under way, the longest": max(took)}
        found["64 contend, wins"], _ = keeping(lambda slot: peer.swap(slot, VALUE), peer.won, CONTENDED)
        return found


def of_ringlog(client: Client) -> Figures:
    """As the cluster is now."""
    for act in (lambda: client.submit(Noop()), lambda: client.direct.submit(Noop())):
        times(act, WARM)
    found = spread("sequential", times(lambda: client.submit(Noop()), SEQUENTIAL))
    found |= spread("direct", times(lambda: client.direct.submit(Noop()), SEQUENTIAL))
    found["64 under way"], took = keeping(lambda _: client.submit_future(Noop()), _applied, 4 * SEQUENTIAL)
    found |= spread("64 under way", took) | {"64 under way, the longest": max(took)}
    many = times(lambda: client.submit_many([Noop()] * MANY), ROUNDS)
    found["500 at once"] = MANY / statistics.median(many) * 1_000
    node, numbers = str(uuid.uuid4()), itertools.count(1)
    made = client.submit(RegisterNode(f"contended-{node}", node, f"{node}:1", "dc1", "r1", 1, 12, "0", (), 1))
    assert isinstance(made, AppliedResult), made

    def change(_: int) -> Answer:
        return client.submit_future(UpdateNode(node, release=f"1.{next(numbers)}"))

    found["64 contend, wins"], _ = keeping(change, _applied, 10 * CONTENDED)
    return found


def _applied(_: int, answer: Any) -> bool:
    return isinstance(answer, AppliedResult)


def of_record(bootstrap: str) -> Figures:
    """One acknowledged record after the other."""
    create_topics(admin_client(bootstrap), OF_RECORDS, specs=[METADATA])
    producer = AckedProducer(bootstrap)
    try:

        def send() -> object:
            return producer.send(f"{OF_RECORDS}.{METADATA.suffix}", VALUE, key=b"k", partition=0).result(10)

        times(send, WARM)
        return spread("sequential", times(send, SEQUENTIAL // 2))
    finally:
        producer.close()


def of_cluster(folder: Path, *, alone: bool) -> dict[str, Figures]:
    """Results by measurement."""
    stack = plain_stack(folder / "stack")
    try:
        info = stack.up()
        world = AgentsWorld(info, CLUSTER, folder / "agents")
        nodes: NodesWorld | None = None
        try:
            world.start("validator")
            found = {RECORD: of_record(info.bootstrap_servers), RINGLOG: of_ringlog(world.client)}
            found[RECORD] = together(found[RECORD], of_record(info.bootstrap_servers))
            if not alone:
                world.start("keeper")
                nodes = NodesWorld(world, folder)
                for name in NODES:
                    nodes.begin(name)
                nodes.await_normal(*NODES)
                found[BUSY] = of_ringlog(world.client)
            return found
        finally:
            (world if nodes is None else nodes).close()
    finally:
        stack.down()


def signing_world(info: StackInfo, folder: Path) -> AgentsWorld:
    """A cluster with an operator, who signs the requests of its client."""
    world = AgentsWorld(info, SIGNED, folder / SIGNED)
    master, trust = folder / "request.master", folder / "trust.properties"
    write_private(master, MASTER)
    write_private(trust, f"request.master={master}\n")
    world.environment[TRUST_VARIABLE] = str(trust)
    for command in (CreatePrincipal("root", "admin"), CreatePrincipal("ops", "operator")):
        assert isinstance(world.client.direct.submit(command), AppliedResult)
    key = key_of_principal(MASTER, world.client.state.cluster_id, "ops", FIRST_KEY)
    world.client.keys = lambda: (key,)
    return world


def of_signed(folder: Path) -> tuple[dict[str, Figures], dict[str, float]]:
    """Results of both clusters, and the ratios of times: median of the alternating rounds."""
    stack = plain_stack(folder / "stack")
    worlds: list[AgentsWorld] = []
    try:
        info = stack.up()
        worlds += [AgentsWorld(info, UNSIGNED, folder / UNSIGNED), signing_world(info, folder)]
        took: dict[str, list[list[float]]] = {UNSIGNED: [], SIGNED: []}
        rates: dict[str, list[float]] = {UNSIGNED: [], SIGNED: []}
        for world in worlds:
            world.start("validator")
            times(partial(world.client.submit, Noop()), WARM)
        for turn in range(TURNS):
            for world in worlds if turn % 2 else reversed(worlds):
                client = world.client
                took[world.cluster].append(times(partial(client.submit, Noop()), 50))
                rates[world.cluster].append(keeping(partial(_begin_noop, client), _applied, 400)[0])
    finally:
        for world in worlds:
            world.close()
        stack.down()
    found = {name: spread("sequential", list(itertools.chain(*took[name]))) for name in took}
    for name, columns in found.items():
        columns["64 under way"] = statistics.median(rates[name])
    pairs = zip(took[SIGNED], took[UNSIGNED], strict=True)
    return found, {
        "signed_64_time": round(statistics.median(map(truediv, rates[UNSIGNED], rates[SIGNED])), 3),
        "signed_p99": round(found[SIGNED]["sequential p99"] / found[UNSIGNED]["sequential p99"], 3),
        "signed_p50": round(statistics.median(statistics.median(s) / statistics.median(u) for s, u in pairs), 3),
    }


def _begin_noop(client: Client, _: int) -> Answer:
    return client.submit_future(Noop())


def together(before: Figures, after: Figures) -> Figures:
    """The middle of two measurements of the same."""
    return {name: (before[name] + after[name]) / 2 for name in before}


def ratios(found: Mapping[str, Figures]) -> dict[str, float | None]:
    """Of Ringlog to etcd, by the names of ``RATIOS``."""
    own, other = found[RINGLOG], found.get(ETCD)
    return {name: other and round(own[mine] / other[its], 3) for name, (mine, its) in RATIOS.items()}


def show(found: Mapping[str, Figures]) -> None:
    """A table: a line for each figure, a column for each that was measured."""
    print(f"{'':30}" + "".join(f"{name:>22}" for name in found))
    for figure, unit in SHOWN.items():
        values = (columns.get(figure) for columns in found.values())
        print(f"{figure:26} {unit:3}" + "".join(f"{'' if value is None else f'{value:,.2f}':>22}" for value in values))


def main() -> None:
    """Measure and print."""
    reduce_gc()  # what this program imports is large, and no part of a commit
    with tempfile.TemporaryDirectory(prefix="ringlog-bench-") as name:
        folder, found = Path(name), {}
        if "--signed" in sys.argv:
            found, signed = of_signed(folder)
            show(found)
            print(json.dumps(signed) if "--json" in sys.argv else f"times with signed requests: {signed}")
            return
        before = of_peer(etcd, folder / "etcd-before")
        found = of_cluster(folder, alone="--alone" in sys.argv)
        if before:
            found[ETCD] = together(before, of_peer(etcd, folder / "etcd-after"))
        if peer := of_peer(zookeeper, folder / "zookeeper"):
            found[ZOOKEEPER] = peer
    show(found)
    for missing in {ETCD, ZOOKEEPER} - found.keys():
        print(f"{missing} is not installed: apt-get install {missing.lower().replace('etcd', 'etcd-server')}")
    if BUSY in found:
        for unit, what in (("/s", "rates"), ("ms", "times")):
            names = [name for name, its in SHOWN.items() if its == unit]
            kept = (f"{name} {found[BUSY][name] / found[RINGLOG][name]:.2f}" for name in names)
            print(f"Of the {what} without agents, cache and nodes, with them: " + ", ".join(kept))
    if "--json" in sys.argv:
        print(json.dumps(ratios(found)))


if __name__ == "__main__":
    main()

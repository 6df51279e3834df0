"""The cost of rights to rows: writes of registers per second with and without principals, over mutual TLS.

    python bench/rights.py [FOLDER]

A node serves its registers in this process, and another process writes over gRPC with a certificate. It has WRITERS
requests under way. The node's state alternates between one without principals, one with the writer's principal only,
and one with MANY principals, for ROUNDS rounds of SECONDS each. The table has the medians of the rounds: writes per
second, and processor time of the node for each, which is comparable on a busy machine. The status is 1 if
a write takes more than MOST of the processor time without principals.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ringlog.client.data.peers import channel_to
from ringlog.kernel.model.principals import Grant, Principal
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import replace
from ringlog.node.hosts.register_host import RegisterHost
from ringlog.node.registers.registers import RegisterReplica
from ringlog.node.rows.replica import RowReplica
from ringlog.node.servers.data_server import DataServer
from ringlog.operator.certificates import make_certificates
from ringlog.operator.rehearsal.rehearsal import Rehearsal
from ringlog.runtime.trust import TrustFile, name_of_node
from ringlog.wire.data import SERVICE, RegisterCell, WriteReply, WriteRequest, key_of, pack, unpack

ROUNDS, SECONDS, WRITERS, MANY, MOST = 25, 0.5, 16, 10_000, 1.05
CHILD = "--writer"
CALL_S = 30.0
LINES = (
    '{"command": "RegisterNode", "name": "n1"}',
    '{"command": "Join", "node": "n1", "tokens": [0]}',
    '{"do": "finish"}',
    '{"command": "CreateKeyspace", "name": "ks", "replication": {"strategy": "simple", "factor": 1}}',
)


def one_node() -> ClusterState:
    """Return a cluster of one node, which replicates everything."""
    rehearsal = Rehearsal()
    for number, line in enumerate(LINES, start=1):
        rehearsal.line(line, number)
    return rehearsal.state


def with_principals(state: ClusterState, count: int) -> ClusterState:
    """Return the state with the principal ``app`` for the keyspace, and other principals."""
    grants = (Grant("application", ("ks",)),)
    names = ["app", *(f"other-{number}" for number in range(count - 1))]
    return replace(state, principals=state.principals.update({name: Principal(name, grants, 1, 1) for name in names}))


def write(folder: Path, port: int, epoch: int, node: str, cluster_id: str) -> None:
    """Write in the child process. For each line of the input, print the number of writes within SECONDS."""
    trust = TrustFile(folder / "app.properties").now()
    channel = channel_to(f"127.0.0.1:{port}", name_of_node(node), trust, ())
    call = channel.unary_unary(f"/{SERVICE}/Write")

    def ask(number: int) -> int:
        over, count = time.perf_counter() + SECONDS, 0
        while time.perf_counter() < over:
            cell = RegisterCell(time.time_ns(), b"x" * 100)
            request = WriteRequest(cluster_id, node, epoch, "", key_of("ks", b"writer-%d" % number), cell)
            reply = unpack(WriteReply, call(pack(request), timeout=CALL_S))
            assert not reply.refused, reply
            count += 1
        return count

    with ThreadPoolExecutor(WRITERS) as pool:
        for _ in sys.stdin:
            print(sum(pool.map(ask, range(WRITERS))), flush=True)
    channel.close()


def main(folder: Path) -> int:
    """Print the table, and return the status."""
    state = one_node()
    node = next(iter(state.nodes))
    make_certificates(folder / "trust", [("n1", node)], ["app"], 2)
    trust = TrustFile(folder / "trust" / "n1.properties").now()
    host = RegisterHost(node, folder / "registers")
    host.adopt(state)
    states = {
        "without principals": state,
        "1 principal": with_principals(state, 1),
        f"{MANY:,} principals": with_principals(state, MANY),
    }
    server = DataServer(host, RowReplica(node), lambda: state.cluster_id, "127.0.0.1", trust=lambda: trust)
    server.start()
    command = [
        sys.executable,
        __file__,
        CHILD,
        str(folder / "trust"),
        str(server.port),
        str(state.epoch),
        node,
        state.cluster_id,
    ]
    rates: dict[str, list[float]] = {name: [] for name in states}
    costs: dict[str, list[float]] = {name: [] for name in states}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        for _ in range(ROUNDS):
            for name, present in states.items():
                adopt(host, present)
                begun = time.process_time()
                print(file=child.stdin, flush=True)
                count = int(child.stdout.readline())
                rates[name].append(count / SECONDS)
                costs[name].append((time.process_time() - begun) * 1e6 / count)
        child.stdin.close()
    server.stop()
    host.close()
    base = statistics.median(costs["without principals"])
    print(f"{WRITERS} requests under way, {ROUNDS} rounds of {SECONDS:g} s")
    print("| state | writes a second | processor time of a write | ratio |")
    print("|---|---|---|---|")
    ratios = {name: statistics.median(cost) / base for name, cost in costs.items()}
    for name, ratio in ratios.items():
        print(f"| {name} | {statistics.median(rates[name]):.0f} | {ratio * base:.0f} us | {ratio:.3f} |")
    return int(max(ratios.values()) > MOST)


def adopt(host: RegisterHost, state: ClusterState) -> None:
    """Give the node a state of the same epoch, which ``RegisterHost.adopt`` would ignore."""
    value: RegisterReplica = host.value
    host._registers.value = replace(value, state=state)


if __name__ == "__main__":
    if sys.argv[1:2] == [CHILD]:
        write(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:])
    elif len(sys.argv) > 1:
        sys.exit(main(Path(sys.argv[1])))
    else:
        with tempfile.TemporaryDirectory() as made:
            sys.exit(main(Path(made)))

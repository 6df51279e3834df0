"""The cost of registers on a node: group commit, and the delay of requests by other work with a million registers.

    python bench/registers.py [FOLDER [REGISTERS [SECONDS]]]

Everything runs in FOLDER (default: a temporary one). The bench first measures plain syncs per second of a file that
grows by one frame each. Then it measures acknowledged writes per second of ``RegisterHost`` with many writers that each
wait for their answer. The ratio is the gain of group commit. The first line, one writer, is the cost of the node.

Then a node with REGISTERS registers (1,000,000) of 100 bytes starts, and serves readers and writers that ask again a
moment after each answer, while

- nothing else happens, for SECONDS (2);
- a thread of the process counts, and another process writes and syncs pages: the baseline for the rows below;
- the node writes an image of everything, because the journal has grown;
- a node joins and gains half of the registers: the node adopts epoch after epoch, and the joining process streams its
  half over gRPC and stores it on disk;
- the epoch arrives that deletes this half.

The bench prints the slowest request of each part, and the number of requests. The limits are 200 ms for a request (or
the baseline, if it is slower), and 15 s of a core for the start with a million registers. The status is 1 if a limit is
missed by more than a factor of two, because disk and cores are shared.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import structlog

from ringlog.client.data.peers import Peers
from ringlog.client.participant.stream_attempts import StreamAttempts
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.operations.stages import in_flight
from ringlog.kernel.values import NodeId, Value, replace
from ringlog.node.hosts.register_host import RegisterHost
from ringlog.node.registers.cells import CellMap, bytes_of, bytes_of_cell
from ringlog.node.registers.frames import Sealer
from ringlog.node.registers.image import Image
from ringlog.node.registers.journal import write_image
from ringlog.node.rows.replica import RowReplica
from ringlog.node.servers.data_server import DataServer
from ringlog.node.streams.pull import Puller
from ringlog.operator.rehearsal.rehearsal import Rehearsal
from ringlog.runtime.clock import SystemClock
from ringlog.runtime.process import reduce_gc
from ringlog.wire.data import PAGE_BYTES_MAX, ReadRequest, RegisterCell, WriteRequest, key_of

SECONDS = 2.0
REGISTERS = 1_000_000
START_S = 15.0
"""The most that the start of a node with a million registers may take."""
WAIT_S = 0.2
"""Maximum time of a request during any work of the node."""
MISSED = 2.0
ASKING = 4
PACE_S = 0.002
LOOK_S = 0.01
JOINER, WRITER = "--joiner", "--writer"
WRITERS = (1, 4, 16, 64)
VALUE = b"x" * 100
LINES = (
    '{"command": "RegisterNode", "name": "n1"}',
    '{"command": "Join", "node": "n1", "tokens": [0]}',
    '{"do": "finish"}',
    '{"command": "CreateKeyspace", "name": "ks", "replication": {"strategy": "simple", "factor": 1}}',
)
JOIN = (
    '{"command": "RegisterNode", "name": "n2"}',
    '{"command": "Join", "node": "n2", "tokens": [-9223372036854775807]}',
)


def one_node() -> ClusterState:
    """A cluster of one node, which replicates everything."""
    rehearsal = Rehearsal()
    for number, line in enumerate(LINES, start=1):
        rehearsal.line(line, number)
    return rehearsal.state


def syncs(folder: Path) -> float:
    """Return frames per second, each with its own sync."""
    data = Sealer.new().frame(VALUE, 0, 0)
    file = os.open(folder / "plain", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    count, end = 0, time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        os.write(file, data)
        os.fdatasync(file)
        count += 1
    os.close(file)
    return count / SECONDS


def writes(host: RegisterHost, epoch: int, writers: int) -> float:
    """Acknowledged writes a second of this number of writers."""
    counts = [0] * writers
    end = time.perf_counter() + SECONDS

    def write(number: int) -> None:
        key, cell = key_of("ks", b"writer-%d" % number), RegisterCell(0, VALUE)
        while time.perf_counter() < end:
            counts[number] += 1
            host.answered(WriteRequest("", host.node, epoch, "", key, replace(cell, timestamp=counts[number])))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / SECONDS


def group_commit(folder: Path) -> None:
    """Print the table of acknowledged writes."""
    state = one_node()
    plain = syncs(folder)
    host = RegisterHost(next(iter(state.nodes)), folder / "few")
    host.adopt(state)
    print(f"plain syncs: {plain:.0f} a second")
    print("| writers | writes a second | per plain sync |")
    print("|---|---|---|")
    for writers in WRITERS:
        found = writes(host, state.epoch, writers)
        print(f"| {writers} | {found:.0f} | {found / plain:.2f} |")
    host.close()


# ------------------------------------------------------------------------------------------- many registers


class Figure(Value):
    """Something that was measured, in seconds, and the most that it may be."""

    name: str
    value: float
    limit: float

    @property
    def missed(self) -> bool:
        return self.value > MISSED * self.limit


class Requests:
    """Readers and writers of a node; ``slowest`` and ``count`` are of the requests that ended since ``anew``."""

    def __init__(self, host: RegisterHost, registers: int) -> None:
        self._host = host
        self._registers = registers
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._ask, args=(n, n % 2 == 0), daemon=True) for n in range(ASKING)]
        self.anew()
        for thread in self._threads:
            thread.start()

    def anew(self) -> None:
        """Count from here on."""
        self.slowest, self.count = 0.0, 0

    def stop(self) -> None:
        """End them."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, number: int, is_read: bool) -> None:
        draw = Random(number)
        while not self._over.wait(PACE_S):
            key = key_of("ks", b"register-%d" % draw.randrange(self._registers))
            begun = time.perf_counter()
            if is_read:
                self._host.answered(ReadRequest("", self._host.node, self._host.value.state.epoch, "", key, False))
            else:
                cell, epoch = RegisterCell(time.time_ns(), VALUE), self._host.value.state.epoch
                self._host.answered(WriteRequest("", self._host.node, epoch, "", key, cell))
            taken = time.perf_counter() - begun
            with self._lock:
                self.slowest, self.count = max(self.slowest, taken), self.count + 1


def journey() -> tuple[list[ClusterState], NodeId, NodeId]:
    """The states of a join that takes half of a node's registers, one for each stage; the node, and the joiner."""
    rehearsal = Rehearsal()
    for number, line in enumerate((*LINES, *JOIN), start=1):
        rehearsal.line(line, number)
    log = [rehearsal.state]
    while in_flight(log[-1]):
        rehearsal.line('{"do": "step"}', 0)
        assert rehearsal.state is not log[-1]
        log.append(rehearsal.state)
    first, joiner = sorted(log[-1].nodes.values(), key=lambda node: node.name)
    return log, first.id, joiner.id


def many(registers: int) -> CellMap:
    """This number of registers, as a node holds them."""
    keys = (bytes_of(key_of("ks", b"register-%d" % number)) for number in range(registers))
    return CellMap().with_many(dict.fromkeys(keys, bytes_of_cell(RegisterCell(0, VALUE))))


def told(requests: Requests, what: str) -> Figure:
    """Print the slowest request and reset the counts."""
    slowest, count = requests.slowest, requests.count
    requests.anew()
    print(f"| {what} | {count} | {slowest * 1000:.0f} ms |")
    return Figure(f"a request while: {what}", slowest, WAIT_S)


def plain_work(folder: Path, requests: Requests) -> Figure:
    """Requests during a counting thread and a process that writes and syncs pages; no process serves a stream."""
    over = threading.Event()

    def counting() -> None:
        while not over.is_set():
            sum(range(1_000))

    thread = threading.Thread(target=counting)
    beside = subprocess.Popen([sys.executable, __file__, WRITER, str(folder / "pages")])
    thread.start()
    time.sleep(2 * SECONDS)
    over.set()
    thread.join()
    beside.kill()
    beside.wait()
    return told(requests, "a thread counts, and a process writes and syncs")


def be_writer(path: Path) -> None:
    """Write pages that are worked out, one by one, until killed."""
    with path.open("wb", buffering=0) as out:
        while True:
            out.write(bytes(number & 255 for number in range(PAGE_BYTES_MAX)))
            os.fdatasync(out.fileno())
            out.seek(0)


class Joiner:
    """The gaining node, in a separate process."""

    def __init__(self, folder: Path, port: int) -> None:
        command = [sys.executable, __file__, JOINER, str(folder), str(port)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def adopt(self, number: int) -> int:
        """Let it adopt a state of the movement and stream its gains. Return its number of registers."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(number, file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())

    def stop(self) -> None:
        """End it."""
        self._process.communicate()


def be_joiner(folder: Path, port: int) -> None:
    """Adopt the states whose numbers come in."""
    logging.disable()
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    log, _, gaining = journey()
    host = RegisterHost(gaining, folder)
    puller = Puller(host, Peers(lambda _: f"127.0.0.1:{port}"), StreamAttempts(), SystemClock(), threading.Event())
    for line in sys.stdin:
        host.adopt(log[int(line)])
        puller.start()
        while host.value.fetching:
            time.sleep(LOOK_S)
        print(len(host.value.durable.cells), flush=True)
    puller.stop()
    host.close()


def join(source: RegisterHost, folder: Path, log: list[ClusterState], requests: Requests) -> Iterator[Figure]:
    """Adopt the epochs of a join, and stream; a figure for each part."""
    cluster_id = log[0].cluster_id
    server = DataServer(source, RowReplica(source.node), lambda: cluster_id, "127.0.0.1")
    server.start()
    joiner = Joiner(folder, server.port)
    joiner.adopt(0)
    requests.anew()
    gained, stream_s = 0, 0.0
    for number in range(1, len(log) - 1):
        source.adopt(log[number])
        before, begun = gained, time.perf_counter()
        gained = joiner.adopt(number)
        stream_s += time.perf_counter() - begun if gained > before else 0.0
    yield told(requests, f"{len(log) - 2} epochs come, and {gained:,} registers are streamed in {stream_s:.1f} s")
    source.adopt(log[-1])
    time.sleep(SECONDS)
    yield told(requests, f"the epoch comes by which {gained:,} of them go")
    joiner.stop()
    server.stop()


def image(host: RegisterHost, folder: Path, requests: Requests) -> Figure:
    """Have the journal grow until an image is written."""
    known = set(folder.glob("*.image"))
    number = 0
    requests.anew()
    begun = time.perf_counter()
    while set(folder.glob("*.image")) == known:
        number += 1
        key, cell = key_of("ks", b"large-%d" % (number % 200)), RegisterCell(number, bytes(2**18))
        host.answered(WriteRequest("", host.node, host.value.state.epoch, "", key, cell))
    return told(requests, f"the journal grows and an image is written, {time.perf_counter() - begun:.1f} s")


def many_registers(folder: Path, registers: int) -> Iterator[Figure]:
    """A node that holds this number of registers, and all that happens to it."""
    log, node, _ = journey()
    (folder / "many").mkdir()
    cells = many(registers)
    begun = time.process_time()
    size = write_image(folder / "many", Image(log[0].epoch, 1, cells), 1)
    image_s = time.process_time() - begun
    del cells
    begun, wall = time.process_time(), time.perf_counter()
    source = RegisterHost(node, folder / "many")
    source.adopt(log[0])
    reduce_gc()
    start_s, taken_s = time.process_time() - begun, time.perf_counter() - wall
    print(f"\n{registers:,} registers, {size / 2**20:.0f} MiB")
    print(f"an image of them takes {image_s:.1f} s of a core, a start {start_s:.1f} s ({taken_s:.1f} s went by)")
    yield Figure("the start", start_s, START_S * max(registers / 1e6, 0.1))
    requests = Requests(source, registers)
    print("| while | requests | the slowest |")
    print("|---|---|---|")
    time.sleep(SECONDS)
    yield told(requests, "nothing else happens")
    beside = plain_work(folder, requests).value
    for figure in (image(source, folder / "many", requests), *join(source, folder / "gained", log, requests)):
        yield replace(figure, limit=max(figure.limit, beside))
    requests.stop()
    source.close()


def measure(folder: Path, registers: int) -> int:
    """Print everything; 1 if a limit is missed by far."""
    group_commit(folder)
    missed = [figure for figure in many_registers(folder, registers) if figure.missed]
    for figure in missed:
        print(f"MISSED: {figure.name}: {figure.value:.2f} s, the limit is {figure.limit:.2f} s")
    return 1 if missed else 0


def main() -> int:
    """Measure in the folder that is named, or in a temporary one."""
    global SECONDS
    if sys.argv[1:2] == [WRITER]:
        be_writer(Path(sys.argv[2]))
    if sys.argv[1:2] == [JOINER]:
        be_joiner(Path(sys.argv[2]), int(sys.argv[3]))
        return 0
    registers = int(sys.argv[2]) if len(sys.argv) > 2 else REGISTERS
    SECONDS = float(sys.argv[3]) if len(sys.argv) > 3 else SECONDS
    if len(sys.argv) > 1:
        return measure(Path(sys.argv[1]), registers)
    with tempfile.TemporaryDirectory() as folder:
        return measure(Path(folder), registers)


if __name__ == "__main__":
    sys.exit(main())

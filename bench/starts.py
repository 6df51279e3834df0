"""The cost of a start: processor seconds of a command until it ends, of an agent or a node until it works.

    python bench/starts.py [ROUNDS] [--against FOLDER] [--only NAME,…]

Everything runs on its own broker with a small cluster. ``FOLDER`` is another checkout: both programs start in turn,
with the libraries of this one, so that both run under the same load. Rows are the median of ``ROUNDS`` (5), after a
round that compiles. The bench also prints wall time, which shows the load of the machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.plain_stack import plain_stack
from tests.system.agents_world import AgentsWorld
from tests.waiting import until

from ringlog.agents.status import StatusReader
from ringlog.kernel.values import Value
from ringlog.protocol.roles import ROLES

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("services", "schemas", "streaming")
CLUSTER = "starts"
HERE = "this"
OTHER = "other"
TICKS = os.sysconf("SC_CLK_TCK")

COMMANDS: Mapping[str, Sequence[str]] = {
    "ringlog --help": ("--help",),
    "ringlog status": ("status",),
    "ringlog node list": ("node", "list"),
    "ringlog submit": ("submit", '{"command": "Noop"}'),
    "ringlog ddl": ("ddl", "--help"),
    "ringlog agents status": ("agents", "status"),
    "ringlog log": ("log",),
    "ringlog cdc status": ("cdc", "status"),
}


class Cost(Value):
    """Of one start, in seconds: those of the processors, and those that passed."""

    cpu: float
    wall: float


def used(process: int) -> float:
    """The processors' seconds of a process so far, all its threads."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def of_command(words: Sequence[str], environment: Mapping[str, str]) -> Cost:
    """To its end; it must succeed."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "ringlog.cli", *words], env=environment, stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, f"{words}: {process.returncode}"
    return Cost(usage.ru_utime + usage.ru_stime, time.perf_counter() - began)


def of_process(words: Sequence[str], environment: Mapping[str, str], log: Path, works: Callable[[], bool]) -> Cost:
    """Until ``works``; then it is stopped. ``log``: the file that it writes to."""
    began = time.perf_counter()
    with log.open("wb") as out:
        process = subprocess.Popen([sys.executable, *words], env=environment, stdout=out, stderr=out)
    try:
        until(works, " ".join(words))
        return Cost(used(process.pid), time.perf_counter() - began)
    finally:
        process.terminate()
        process.wait()


class Starts:
    """The cluster and its processes. ``folder``: for the nodes' data."""

    def __init__(self, world: AgentsWorld, folder: Path) -> None:
        self._world = world
        self._folder = folder
        self._nodes = 0

    def environment(self, root: Path) -> dict[str, str]:
        """For programs of that checkout; what one has compiled the next ones read."""
        places = os.pathsep.join(str(root / name) for name in SOURCES)
        mine = self._world.environment | {"PYTHONPATH": places}
        mine.pop("PYTHONDONTWRITEBYTECODE", None)
        return mine

    def of(self, name: str, root: Path) -> Cost:
        """One start of that name. One validator runs, unless its start is measured."""
        if name == "agent validator":
            for agent in self._world.alive("validator"):
                agent.stop()
        else:
            self._world.running("validator")
        if name in COMMANDS:
            return of_command(COMMANDS[name], self.environment(root))
        return self._agent(name.split()[1], root) if name.startswith("agent ") else self._node(root)

    def _agent(self, role: str, root: Path) -> Cost:
        before = self._world.term(role)
        with StatusReader(self._world.stack.bootstrap_servers, CLUSTER) as status:

            def acts() -> bool:
                return any(one.role == role and one.term > before and one.state == "active" for one in status.read())

            log = self._folder / f"{role}.log"
            return of_process(("-m", "ringlog.agents", role), self.environment(root), log, acts)

    def _node(self, root: Path) -> Cost:
        """A new one, which registers and is caught up."""
        self._nodes += 1
        name = f"n{self._nodes}"
        log = self._folder / f"{name}.log"
        words = ("-m", "ringlog.cli", "node", "run", name, "--data", str(self._folder))
        return of_process(words, self.environment(root), log, lambda: "caught up" in log.read_text(encoding="utf-8"))


def measure(starts: Starts, names: Sequence[str], roots: Mapping[str, Path], rounds: int) -> None:
    """The middle cost of each start, by name and checkout: a row each."""
    for name in names:
        for root in roots.values():
            starts.of(name, root)
        each: dict[str, list[Cost]] = {which: [] for which in roots}
        for _ in range(rounds):
            for which, root in roots.items():
                each[which].append(starts.of(name, root))
        show(name, {which: middle(costs) for which, costs in each.items()})


def middle(costs: Sequence[Cost]) -> Cost:
    """One figure at a time."""
    return Cost(statistics.median(one.cpu for one in costs), statistics.median(one.wall for one in costs))


def show(name: str, costs: Mapping[str, Cost]) -> None:
    """A row."""
    print(f"{name:24}" + "".join(f"{one.cpu:10.2f}{one.wall:10.2f}" for one in costs.values()), flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rounds", nargs="?", type=int, default=5)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--only", default=",".join((*COMMANDS, *(f"agent {role}" for role in ROLES), "node")))
    given = parser.parse_args()
    roots = {HERE: ROOT} if given.against is None else {OTHER: given.against.resolve(), HERE: ROOT}
    with tempfile.TemporaryDirectory(prefix="ringlog-bench-") as name:
        folder = Path(name)
        stack = plain_stack(folder / "stack")
        try:
            world = AgentsWorld(stack.up(), CLUSTER, folder / "agents")
            try:
                print(f"{'':24}" + "".join(f"{which:>10}{'passed':>10}" for which in roots))
                measure(Starts(world, folder), given.only.split(","), roots, given.rounds)
            finally:
                world.close()
        finally:
            stack.down()


if __name__ == "__main__":
    main()

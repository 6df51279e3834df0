"""Three processes of ``examples/store.py`` take part in a real cluster: they join, are killed in each stage, restart,
and one leaves. Every row that a quorum confirmed is read again, from the token ring and from tablets.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from examples.store import ask
from tests.system.agents_world import AgentsWorld, until
from tests.tidy.files import ROOT
from tests.tidy.test_size import code_lines

from ringlog import Access, AppliedResult, Router, commands
from ringlog.client.data.plans import Answer, Satisfied, count
from ringlog.kernel.values import TabletOptions
from ringlog.stack.processes import draw

EXAMPLE = ROOT / "examples" / "store.py"
PLACES = ("ring", "moved.rows")


class Stores:
    """The processes, by name. Each keeps its port and folder."""

    def __init__(self, world: AgentsWorld, folder: Path) -> None:
        self._world, self._folder = world, folder
        self._ports: dict[str, int] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.kills = 0

    def start(self, name: str) -> None:
        port = self._ports.setdefault(name, draw())
        where = [self._world.stack.bootstrap_servers, self._world.cluster, name, "127.0.0.1", str(port)]
        environment = self._world.environment | {"PYTHONPATH": f"{ROOT}:{self._world.environment['PYTHONPATH']}"}
        command = [sys.executable, str(EXAMPLE), *where, str(self._folder / name)]
        self.processes[name] = subprocess.Popen(command, env=environment)

    def kill(self, name: str) -> None:
        self.kills += 1
        self.processes[name].kill()
        self.processes[name].wait(60)

    def serves(self, name: str) -> bool:
        """Return whether a process answers requests, so that it has adopted a state since its start."""
        with suppress(OSError, json.JSONDecodeError):
            ask(f"127.0.0.1:{self._ports[name]}", to="get", epoch=0, place=PLACES[0], key="k1")
            return True
        return False

    def close(self) -> None:
        for name in self.processes:
            self.kill(name)


class Load:
    """A writer that keeps the rows that a quorum has confirmed, and reads them again."""

    def __init__(self, world: AgentsWorld) -> None:
        self._router = Router(world.client)
        self.confirmed: dict[tuple[str, str], int] = {}

    def request(self, place: str, key: str, **row: object) -> list[dict[str, object]] | None:
        """Return the answers of a quorum, or None without a quorum."""
        access = Access.WRITE if row else Access.READ
        plan = self._router.plan(place, key.encode(), access)
        found = {}
        for node in plan.asked:
            try:
                address = self._router.state.nodes[node].address
                answer = ask(address, to="put" if row else "get", epoch=plan.epoch, place=place, key=key, **row)
            except (OSError, json.JSONDecodeError):
                continue
            if answer is not None:
                found[node] = answer
        outcome = count(plan, [Answer(node, one["epoch"]) for node, one in found.items()], self._router.state)
        return [found[node] for node in outcome.counted] if isinstance(outcome, Satisfied) else None

    def write(self, number: int) -> None:
        place, key = PLACES[number % 2], f"k{number % 400}"
        if self.request(place, key, at=number, value=f"v{number}") is not None:
            self.confirmed[place, key] = number

    def missing(self) -> list[tuple[str, str]]:
        """Return the confirmed rows that a quorum does not have."""
        return [(place, key) for (place, key), at in self.confirmed.items() if not self._has(place, key, at)]

    def _has(self, place: str, key: str, at: int) -> bool:
        answers = until(lambda: self.request(place, key), f"a quorum for {place} {key}")
        return any(one["row"] is not None and one["row"][0] >= at for one in answers)  # type: ignore[index, operator]


@contextmanager
def in_background(stores: Stores, load: Load, seed: int, victims: list[str]) -> Iterator[None]:
    """Write rows, and kill and restart one process after another."""
    stop, draws = threading.Event(), random.Random(seed)

    def write() -> None:
        number = 1000 * seed
        while not stop.is_set():
            load.write(number := number + 1)

    def kill() -> None:
        while not stop.wait(draws.uniform(0.5, 4)):
            name = draws.choice(victims)
            # A slow machine could otherwise kill each process before it takes part.
            if stores.processes[name].poll() is None and all(map(stores.serves, victims)):
                stores.kill(name)
                stores.start(name)

    threads = [threading.Thread(target=write), threading.Thread(target=kill)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.system
@pytest.mark.slow
def test_no_row_is_lost_while_stores_join_move_leave_and_are_killed(world: AgentsWorld, tmp_path: Path) -> None:
    world.start_all("validator", "coordinator", "publisher", "balancer")

    def submit(command: object) -> None:
        answer = world.client.submit(command)  # type: ignore[arg-type]
        assert isinstance(answer, AppliedResult), answer

    def state_of(name: str) -> str:
        found = world.state.node_names.get(name)
        return "" if found is None else world.state.nodes[found].state

    def await_states(deadline_s: float = 300, **wanted: str) -> None:
        until(lambda: {name: state_of(name) for name in wanted} == wanted, f"{wanted}", deadline_s)

    with ExitStack() as ending:
        stores = Stores(world, tmp_path)
        ending.callback(stores.close)
        for name in ("s1", "s2"):
            stores.start(name)
        await_states(s1="normal", s2="normal")
        submit(commands.create_keyspace("ring", 2))
        submit(commands.create_keyspace("moved", commands.tablets(2)))
        options = TabletOptions(4)
        submit(commands.create_table("moved", "rows", {"key": "text"}, partition_key=["key"], tablets=options))
        load = Load(world)
        until(lambda: [load.write(number) for number in range(10)] and len(load.confirmed) == 10, "the first rows")
        stores.start("s3")
        with in_background(stores, load, 1, ["s1", "s2", "s3"]):
            await_states(s3="normal")
            until(lambda: stores.kills >= 2, "processes killed while s3 joined or afterwards")
            joined = len(load.confirmed)
        with in_background(stores, load, 2, ["s2", "s3"]):
            submit(commands.leave("s1"))
            await_states(s1="left")
            until(lambda: stores.kills >= 4, "processes killed while s1 left or afterwards")
        assert stores.processes["s1"].wait(60) == 0, "a store ends when its node has left"
        assert joined > 10
        until(lambda: not world.state.tablets["moved.rows"].transitions, "the tablets to settle", 300)
        assert load.missing() == []
        owners = {replica.node for tablet in world.state.tablets["moved.rows"] for replica in tablet.replicas}
        assert owners == {world.state.node_names[name] for name in ("s2", "s3")}


def test_the_example_is_short() -> None:
    assert code_lines(EXAMPLE.read_text(encoding="utf-8")) <= 60

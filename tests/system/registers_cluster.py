"""Reference nodes with registers, and movements of all kinds with faults.

A ``Harm`` hits a process as soon as the log contains the given stage of the operation. A killed process restarts only
after the applications have continued without it. A stopped process continues only after the operation has left that
stage, so it has missed the barrier. Only one process is down at a time; further faults hit later in the same stage.
``movement`` returns the faults that hit, in order.
"""

from __future__ import annotations

import signal
import subprocess
import threading
import uuid
from collections.abc import Callable

from tests.system.agents_world import until
from tests.system.nodes_world import DEADLINE_S, NodesWorld
from tests.system.registers_load import KEYSPACE, Load
from tests.waiting import at_once

from ringlog.client.client import Client
from ringlog.client.data.coordinator import Coordinator
from ringlog.client.data.plans import Level
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.schema.tables import CreateTable
from ringlog.kernel.model.outcome import Entry, Outcome, UnreadableEntry
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.operations.stages import is_ended
from ringlog.kernel.values import CdcOptions, Column, Value
from ringlog.operator.intents.replication import in_zone

FILLERS = 8
VALUE = b"x" * 400
OPERATIONS_BETWEEN = 40


class Harm(Value):
    """SIGKILL (or SIGSTOP, if ``stops``) for a node or agent ``victim`` when the operation enters ``stage``."""

    stage: str
    victim: str
    stops: bool = False


class Watch:
    """Follows the next operation and causes its faults. ``operation``: its id, once it is admitted."""

    def __init__(self, world: RegistersCluster, harms: tuple[Harm, ...]) -> None:
        self._world = world
        self._left = list(harms)
        self._known = set(world.agents.state.operations)
        self._lock = threading.Lock()
        self.operation = ""
        self.done: list[Harm] = []
        self.away: Harm | None = None
        self.close = world.agents.client.replica.subscribe(self._follow).close

    def stage(self, state: ClusterState) -> str:
        """Return the operation's stage in a state; empty before its start."""
        if not self.operation:
            self.operation = min(set(state.operations) - self._known, default="")
        found = state.operations.get(self.operation)
        return "" if found is None else found.stage

    def now(self) -> str:
        """Return the current stage."""
        return self.stage(self._world.agents.state)

    def ended(self) -> bool:
        """True once the operation has ended."""
        found = self._world.agents.state.operations.get(self.operation)
        return found is not None and is_ended(found)

    def _follow(
        self, before: ClusterState, after: ClusterState, _: Entry | UnreadableEntry, __: Outcome, ___: int
    ) -> None:
        stage = self.stage(after)
        if stage and stage != self.stage(before):
            self._harm(stage)

    def is_back(self, harm: Harm) -> bool:
        """Record that the victim of this fault is back; return False if that was known."""
        with self._lock:
            if self.away is not harm:
                return False
            self.away = None
        return True

    def came_back(self, harm: Harm) -> None:
        """Like ``is_back``; then other faults may hit in the current stage."""
        if self.is_back(harm):
            self._harm(self.now())

    def _harm(self, stage: str) -> None:
        with self._lock:
            self._harm_once(stage)

    def _harm_once(self, stage: str) -> None:
        harm = next((one for one in self._left if one.stage == stage), None)
        if harm is None or self.away is not None:
            return
        self._left.remove(harm)
        self._world.process_of(harm.victim).send_signal(signal.SIGSTOP if harm.stops else signal.SIGKILL)
        self.done.append(harm)
        self.away = harm


class RegistersCluster(NodesWorld):
    """The nodes and the actions of a test on them. ``space``: the keyspace or table of the registers."""

    space = KEYSPACE

    def process_of(self, name: str) -> subprocess.Popen[bytes]:
        """Return the process of a node, or of the only agent of a role."""
        return self.nodes[name].process if name in self.nodes else self.agents.running(name).process

    def start_again(self, name: str) -> None:
        """Restart a killed node."""
        self.nodes[name].process.wait(60)
        self.nodes[name].restart()

    def registered(self, name: str, **where: int | str) -> str:
        """Start a node without tokens; return its id."""
        self.begin(name, join=False, **where)  # type: ignore[arg-type]
        until(lambda: self.member(name), f"{name} to be registered")
        return self.id_of(name)

    def fill(self, count: int, level: Level = Level.QUORUM) -> None:
        """Write registers that no application uses, so that streams have many pages.

        ``level``: ALL, if a single replica must serve them later. After a quorum write, the write to the third replica
        may be in transit and is lost when the coordinator closes.
        """
        numbers = iter(range(count))
        lock = threading.Lock()
        with (
            Client(self.agents.stack.bootstrap_servers, self.agents.cluster, "filler") as client,
            Coordinator(client.replica, "dc1") as coordinator,
        ):

            def fill(_: int) -> None:
                while True:
                    with lock:
                        number = next(numbers, None)
                    if number is None:
                        return
                    coordinator.write(self.space, b"filling-%d" % number, VALUE, timestamp=1, level=level, timeout_s=60)

            at_once(fill, range(FILLERS))

    def place_table(self, table: str, zone: str) -> None:
        """Create a keyspace in a zone and its table, which contains the registers from now on."""
        keyspace, _, name = table.partition(".")
        self.submit(CreateKeyspace(keyspace, in_zone(zone)))
        columns = (Column("part", "text"),)
        self.submit(CreateTable(keyspace, name, str(uuid.uuid4()), columns, ("part",), (), CdcOptions()))
        self.space = table

    def check_filling(self, coordinator: Coordinator, count: int, step: int = 50) -> None:
        """Check that the filled registers are present."""
        for number in range(0, count, step):
            cell = coordinator.read(self.space, b"filling-%d" % number, timeout_s=60).cell
            assert cell is not None
            assert cell.value == VALUE

    def conclude(self, load: Load, filled: int, operations: int) -> None:
        """Wait for some more operations, then check that all acknowledged and all filled registers are present."""
        self.go_on(load, operations, "at the end")
        load.stop()
        with Coordinator(self.agents.client.replica, "dc1") as coordinator:
            self.check_filling(coordinator, filled)
        load.check()

    def go_on(self, load: Load, count: int, how: str) -> None:
        """Wait for this number of further operations of the applications."""
        before = load.total()
        until(lambda: load.total() > before + count or load.failures, f"the load to continue {how}", DEADLINE_S)
        assert not load.failures, load.failures

    def movement(
        self,
        load: Load,
        begin: Callable[[], object],
        *harms: Harm,
        between: int = OPERATIONS_BETWEEN,
        meanwhile: Callable[[Harm], None] = lambda _: None,
        afterwards: Callable[[str], None] = lambda _: None,
        watch: Watch | None = None,
    ) -> list[Harm]:
        """Run a whole movement; return the faults that hit.

        Args:
            between: The number of operations of the load during an outage.
            meanwhile: Called with each fault that hits.
            afterwards: Called with the stage of each fault that is over.
            watch: The watch to use, if it is not the next operation.
        """
        watch = watch or Watch(self, harms)
        begin()
        while True:
            until(lambda: watch.ended() or watch.away, f"{watch.operation} to end: {watch.now()}", DEADLINE_S)
            if watch.away is None:
                break
            harm = watch.away
            meanwhile(harm)
            self._bring_back(load, watch, harm, between)
            afterwards(harm.stage)
            watch.came_back(harm)
        watch.close()
        hit = [f"{one.victim} {'stopped' if one.stops else 'killed'} at {one.stage}" for one in watch.done]
        print(f"{watch.operation}: {', '.join(hit) or 'nobody hurt'}; {load.total()} operations so far", flush=True)
        return watch.done

    def _start_agent(self, watch: Watch, harm: Harm) -> None:
        """Start the successor of a killed agent; the entry of its term ends the outage.

        From that entry on, it may move the operation to the next stage. If a fault hits before that, the successor
        never becomes active.
        """
        before = self.agents.term(harm.victim)

        def follow(_: ClusterState, after: ClusterState, *__: object) -> None:
            found = after.terms.get(harm.victim)
            if found is not None and found.term > before:
                watch.is_back(harm)

        subscribed = self.agents.client.replica.subscribe(follow)
        self.agents.start(harm.victim)
        subscribed.close()

    def _bring_back(self, load: Load, watch: Watch, harm: Harm, between: int) -> None:
        self.go_on(load, between, f"without {harm.victim}")
        if harm.stops:
            until(lambda: watch.now() != harm.stage, f"the end of stage {harm.stage}", DEADLINE_S)
            self.process_of(harm.victim).send_signal(signal.SIGCONT)
        elif harm.victim in self.nodes:
            self.start_again(harm.victim)
        else:
            self._start_agent(watch, harm)

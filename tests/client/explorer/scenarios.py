"""The explored movements: logs that the kernel creates from commands, on the smallest possible clusters.

The write may happen at any point of the log, from before the first command to its end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ringlog.client.data.plans import Level
from ringlog.kernel.commands.schema.keyspaces import AlterKeyspace, CreateKeyspace, DropKeyspace
from ringlog.kernel.commands.topology.movements import Assassinate, Join, Leave, Move, Rebuild, Remove, Replace
from ringlog.kernel.commands.topology.nodes import DeclareDown
from ringlog.kernel.commands.topology.operations import CancelOperation, RetryOperation
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Command, replace
from ringlog.wire.data import Key
from tests.client.explorer.coordinators import Scenario
from tests.client.explorer.resets import ADMITTED, RESETS
from tests.client.explorer.tablets import TABLETS
from tests.kernel.movements.clusters import network, placed, simple
from tests.kernel.operations.driver import SEED, admitted, applied, stepped

BOTH, NEW, FINISHED = "write_both_read_old", "write_both_read_new", "finished"


@dataclass(slots=True)
class History:
    """The states so far, and methods that append commands."""

    log: list[ClusterState]

    @property
    def now(self) -> ClusterState:
        """Return the newest state."""
        return self.log[-1]

    def do(self, *commands: Command) -> History:
        """Apply the commands."""
        for command in commands:
            self.log.append(applied(self.now, command))
        return self

    def ask(self, command: Command) -> str:
        """Request an operation and return its id."""
        state, operation = admitted(self.now, command)
        self.log.append(state)
        return operation

    def drive(self, operation: str, stage: str = FINISHED) -> History:
        """Advance the operation to ``stage``."""
        while self.now.operations[operation].stage != stage:
            self.log.append(stepped(self.now, operation))
        return self

    def run(self, command: Command, stage: str = FINISHED) -> str:
        """Request an operation, advance it to ``stage`` and return its id."""
        operation = self.ask(command)
        self.drive(operation, stage)
        return operation

    def cancelled(self, command: Command) -> History:
        """Cancel the operation while both groups are written."""
        return self.do(CancelOperation(self.run(command, BOTH), "not now"))

    def scenario(self, token: int, keyspace: str = "ks0") -> Scenario:
        """Return the scenario of a register at ``token``."""
        return Scenario(tuple(self.log), Key(keyspace, token, b"k"))


def line(count: int, factor: int, *spare: str) -> History:
    """Return nodes a, b, … in one rack, at 100, 200, …; ``spare`` ones are registered. The first nodes own a
    key at 50.
    """
    nodes: dict[str, tuple[str, tuple[int, ...]]] = {
        "abcdef"[number]: ("dc1/r1", (100 * (number + 1),)) for number in range(count)
    }
    nodes |= dict.fromkeys(spare, ("dc1/r1", ()))
    return History([placed(nodes, simple(factor))])


def line_with_creation_epoch(count: int, factor: int) -> History:
    """Return a ``line`` with a keyspace ``kept`` that stores its creation epoch; the log starts there."""
    return History(line(count, factor).do(CreateKeyspace("kept", simple(factor))).log[-1:])


def join(factor: int) -> Scenario:
    history = line(factor, factor, "x")
    history.run(Join("x", (60,), SEED))
    return history.scenario(50)


def leave(factor: int) -> Scenario:
    history = line(factor + 1, factor)
    history.run(Leave("a"))
    return history.scenario(50)


def move() -> Scenario:
    """A node moves its range to another node and takes it back."""
    history = line(2, 1)
    history.run(Move("a", (250,), SEED))
    history.run(Move("a", (100,), SEED))
    return history.scenario(50)


def neighbours(factor: int) -> Scenario:
    """The owner of the range leaves while a node joins before the next one; their steps alternate."""
    history = line(6, factor, "x")
    one, two = history.ask(Join("x", (60,), SEED)), history.ask(Leave("d"))
    for stage in (BOTH, NEW, FINISHED):
        history.drive(one, stage).drive(two, stage)
    return replace(history.scenario(50), keeps_others=True)


def in_turn(factor: int) -> Scenario:
    """A range moves away and back: some nodes have not adopted the first movement when the second starts."""
    history = line(factor, factor, "x")
    history.run(Join("x", (60,), SEED))
    history.run(Leave("x"))
    return history.scenario(50)


def replaced(factor: int, *, dead: bool) -> Scenario:
    history = line(max(factor, 2), factor, "x")
    if dead:
        history.do(DeclareDown("a", "disk"))
    history.run(Replace("x", "a"))
    return history.scenario(50)


def removed(factor: int) -> Scenario:
    """The range of a dead node moves to another node; the other nodes may be slow."""
    history = line(factor + 1, factor).do(DeclareDown("a", "disk"))
    history.run(Remove("a"))
    return history.scenario(50)


def rebuilt(factor: int) -> Scenario:
    """A node streams data that it already has."""
    history = line(factor + 1, factor)
    history.run(Rebuild("a"))
    return history.scenario(50)


def assassinated(factor: int, *, rebuilds: bool) -> Scenario:
    """One entry removes a dead node; no coordinator reads earlier than just before its heir is rebuilt."""
    history = line(factor + 1, factor).do(DeclareDown("a", "disk"), Assassinate("a"))
    heir = "abcdef"[factor]
    if rebuilds:
        history.run(Rebuild(heir))
    return replace(history.scenario(50), reads_from=history.now.epoch)


def left_out(factor: int, *, admits_loss: bool = False) -> Scenario:
    """A replica is declared down when its range has new readers, and the movement continues without it."""
    history = line(factor, factor, "x")
    operation = history.run(Join("x", (60,), SEED), NEW)
    gone = "ab"[min(factor, 2) - 1]
    history.do(DeclareDown(gone, "fire"), RetryOperation(operation, "fire", (gone,), admits_loss))
    history.drive(operation)
    return history.scenario(50)


def left_out_in_turn() -> Scenario:
    """A node leaves; a remaining replica is declared down and left out, then the leaving node is declared down."""
    history = line(4, 3)
    operation = history.run(Leave("a"), NEW)
    history.do(DeclareDown("b", "fire"), RetryOperation(operation, "fire", ("b",)), DeclareDown("a", "fire"))
    return history.drive(operation).scenario(50)


def again(factor: int, node: str) -> Scenario:
    """A join is cancelled while both groups are written; then ``node`` joins at the same token."""
    history = line(factor, factor, "x", "y").cancelled(Join("x", (60,), SEED))
    history.run(Join(node, (60,), SEED))
    return history.scenario(50)


def replaced_again(node: str) -> Scenario:
    """The replacement of a dead node is cancelled; then ``node`` replaces it."""
    history = line(3, 3, "x", "y").do(DeclareDown("a", "disk")).cancelled(Replace("x", "a"))
    history.run(Replace(node, "a"))
    return history.scenario(50)


def came_back(factor: int) -> Scenario:
    """A node leaves; its machine joins with a new id at the same token."""
    history = line(factor + 1, factor, "x")
    history.run(Leave("a"))
    history.run(Join("x", (100,), SEED))
    return history.scenario(50)


def factor(before: int, after: int) -> Scenario:
    history = line(max(before, after), before)
    history.run(AlterKeyspace("ks0", simple(after)))
    return history.scenario(50)


def two_places(count: int, write: Level = Level.QUORUM, read: Level = Level.QUORUM) -> Scenario:
    """Two replicas of a group of ``count`` change at once because of racks."""
    nodes = {name: (f"dc1/r{number}", (100 * number,)) for number, name in enumerate("abcde"[: count + 2], start=1)}
    racks = tuple(f"r{number}" for number in range(1, count + 3))
    history = History([placed(nodes, network(dc1=racks[:count]))])
    history.run(AlterKeyspace("ks0", network(dc1=racks[2:])))
    return replace(history.scenario(50), write=write, read=read)


def datacenter(write: Level, read: Level, local: str, before: dict[str, int], after: dict[str, int]) -> Scenario:
    """A keyspace moves from some datacenters to others."""
    nodes = {
        f"{letter}{number}": (f"{name}/r1", (200 * number + 50 * at,))
        for at, (letter, name) in enumerate((("a", "dc1"), ("b", "dc2")))
        for number in range(1, max(before.get(name, 0), after.get(name, 0)) + 1)
    }
    history = History([placed(nodes, network(**before))])
    history.run(AlterKeyspace("ks0", network(**after)))
    return replace(history.scenario(50), write=write, read=read, datacenter=local)


def taken_over(factor: int, *, gives: bool = False) -> Scenario:
    """A keyspace takes over a new setting with the same replicas. ``gives``: a new keyspace takes over the setting of
    the old one. A node that adopts both entries at once sees members of the later one.
    """
    history = line_with_creation_epoch(factor, factor).do(CreateKeyspace("late", network(dc1=factor)))
    history.do(AlterKeyspace("late", simple(factor)) if gives else AlterKeyspace("kept", network(dc1=factor)))
    return history.scenario(50, "kept")


def back_and_taken_over() -> Scenario:
    """A node moves its range away and back, and its keyspace takes over a setting."""
    history = line_with_creation_epoch(2, 1)
    history.run(Move("a", (250,), SEED))
    history.run(Move("a", (100,), SEED))
    history.do(CreateKeyspace("late", network(dc1=1)), AlterKeyspace("kept", network(dc1=1)))
    return history.scenario(50, "kept")


def grown_into() -> Scenario:
    """A keyspace grows, shrinks and grows again to the setting of an older keyspace."""
    history = line_with_creation_epoch(2, 1).do(CreateKeyspace("late", simple(2)))
    for count in (2, 1, 2):
        history.run(AlterKeyspace("kept", simple(count)))
    return history.scenario(50, "kept")


def namesake(factor: int) -> Scenario:
    """A keyspace is dropped and recreated while a third one keeps their placement."""
    history = line(factor, factor).do(CreateKeyspace("other", simple(factor)))
    history.do(DropKeyspace("ks0"), CreateKeyspace("ks0", simple(factor)))
    del history.log[-2]
    return replace(history.scenario(50), counts_from=history.now.epoch)


def mistaken(scenario: Scenario) -> Scenario:
    """Nodes that are declared down still run."""
    return replace(scenario, mistaken=True)


def read_first(scenario: Scenario) -> Scenario:
    """The write is complete because a first read returned its value."""
    return replace(scenario, is_read_first=True)


def rows_late(scenario: Scenario) -> Scenario:
    """Rows stay in transit for any time."""
    return replace(scenario, rows_travel=True)


Make = Callable[[], Scenario]

OVERRIDDEN: dict[str, Make] = {
    "join, the only replica is left out at the end though it lives": lambda: mistaken(left_out(1, admits_loss=True)),
    "assassinate, then read, 3 replicas": lambda: assassinated(3, rebuilds=False),
    **ADMITTED,
}
"""Overrides that may lose rows: a read misses the write."""

SCENARIOS: dict[str, Make] = {
    "join, 1 replica": lambda: join(1),
    "join, 2 replicas": lambda: join(2),
    "join, 3 replicas": lambda: join(3),
    "join, 1 replica, read before": lambda: read_first(join(1)),
    "join, 2 replicas, read before": lambda: read_first(join(2)),
    "join, 3 replicas, read before": lambda: read_first(join(3)),
    "leave, 2 replicas": lambda: leave(2),
    "leave, 3 replicas": lambda: leave(3),
    "away and back, 1 replica": move,
    "join, then leave, 1 replica": lambda: in_turn(1),
    "join, then leave, 2 replicas": lambda: in_turn(2),
    "join and leave side by side, 2 replicas": lambda: neighbours(2),
    "replace a live node, 2 replicas": lambda: replaced(2, dead=False),
    "replace a dead node, 2 replicas": lambda: replaced(2, dead=True),
    "replace a dead node, 3 replicas": lambda: replaced(3, dead=True),
    "replace a dead node that lives, 3 replicas": lambda: mistaken(replaced(3, dead=True)),
    "remove a dead node, 2 replicas": lambda: removed(2),
    "remove a dead node, 3 replicas": lambda: removed(3),
    "remove a dead node that lives, 3 replicas": lambda: mistaken(removed(3)),
    "join, one dies at the end and is left out, 2 replicas": lambda: left_out(2),
    "join, one that lives is left out at the end, 2 replicas": lambda: mistaken(left_out(2)),
    "join, one that lives is left out at the end, 3 replicas": lambda: mistaken(left_out(3)),
    "leave, one that lives is left out, then the leaver, 3 replicas": lambda: mistaken(left_out_in_turn()),
    "rebuild, 2 replicas": lambda: rebuilt(2),
    "rebuild, 3 replicas": lambda: rebuilt(3),
    "assassinate, rebuild, then read, 3 replicas": lambda: assassinated(3, rebuilds=True),
    "assassinate one that lives, rebuild, then read, 3 replicas": lambda: mistaken(assassinated(3, rebuilds=True)),
    "cancel, then the same, 1 replica": lambda: again(1, "x"),
    "cancel, then the same, rows late, 1 replica": lambda: rows_late(again(1, "x")),
    "cancel, then the same, 2 replicas": lambda: again(2, "x"),
    "cancel, then another, 1 replica": lambda: again(1, "y"),
    "cancel, then another, 2 replicas": lambda: again(2, "y"),
    "cancel a replacement, then the same": lambda: replaced_again("x"),
    "cancel a replacement, then another": lambda: replaced_again("y"),
    "leave, come back, 1 replica": lambda: came_back(1),
    "leave, come back, 2 replicas": lambda: came_back(2),
    "keyspace made anew, 1 replica": lambda: namesake(1),
    "keyspace made anew, 3 replicas": lambda: namesake(3),
    "from 3 replicas to 2": lambda: factor(3, 2),
    "from 2 replicas to 3": lambda: factor(2, 3),
    "from 3 replicas to 1": lambda: factor(3, 1),
    "from 1 replica to 3": lambda: factor(1, 3),
    "take over a new setting, 1 replica": lambda: taken_over(1),
    "take over a new setting, 3 replicas": lambda: taken_over(3),
    "give the setting to a new keyspace, 2 replicas": lambda: taken_over(2, gives=True),
    "away and back, then take over a new setting": back_and_taken_over,
    "grow into a setting, shrink, grow into it again": grown_into,
    "two of two places": lambda: two_places(2),
    "two of three places": lambda: two_places(3),
    "datacenter exchanged": lambda: datacenter(Level.QUORUM, Level.QUORUM, "dc1", {"dc1": 2}, {"dc2": 2}),
    "datacenter added, EACH_QUORUM, then LOCAL_QUORUM there": lambda: datacenter(
        Level.EACH_QUORUM, Level.LOCAL_QUORUM, "dc2", {"dc1": 1}, {"dc1": 1, "dc2": 2}
    ),
    "datacenter dropped, LOCAL_QUORUM": lambda: datacenter(
        Level.LOCAL_QUORUM, Level.LOCAL_QUORUM, "dc1", {"dc1": 2, "dc2": 1}, {"dc1": 2}
    ),
    **RESETS,
    **TABLETS,
}

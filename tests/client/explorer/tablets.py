"""Transitions of a tablet: its replicas move, are rebuilt, grow, shrink and revert.

If a node dies or is declared down by mistake, the others continue as far as the gates of tablets permit.
"""

from __future__ import annotations

from collections.abc import Callable

from ringlog.kernel.commands.placement.tablets import (
    MigrateTablets,
    RevertTablets,
    Shard,
    TabletMigration,
    TabletRevert,
)
from ringlog.kernel.commands.schema.keyspaces import AlterKeyspace
from ringlog.kernel.commands.topology.nodes import DeclareDown
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.tablets.stages import STREAMING, WRITE_BOTH_READ_NEW, WRITE_BOTH_READ_OLD
from ringlog.kernel.values import Command
from ringlog.wire.data import key_of
from tests.client.explorer.coordinators import Scenario
from tests.kernel.entries import applied
from tests.kernel.tablets.clusters import TABLE, cluster, factor, places, register, step, tablet, with_table


class Tablet:
    """The states so far of a table with one tablet."""

    def __init__(self, count: int) -> None:
        self.log: list[ClusterState] = [with_table(cluster(*map(register, range(1, count + 3))), factor(count), 1)]
        self.count = count
        self.replicas = [node for node, _ in places(tablet(self.log[0]))]
        self.free = sorted(set(self.log[0].nodes) - set(self.replicas))

    def do(self, *commands: Command) -> Tablet:
        for command in commands:
            self.log.append(applied(self.log[-1], command))
        return self

    def begin(self, source: str, target: str, kind: str = "migration") -> Tablet:
        """Start a transition. Empty: no node leaves, or no node is added."""
        shards = dict(places(tablet(self.log[-1])))
        ends = (Shard(source, shards[source]) if source else None, Shard(target, 0) if target else None)
        return self.do(MigrateTablets((TabletMigration(TABLE, 0, kind, *ends),)))

    def lead(self, stage: str = "") -> Tablet:
        """Advance the tablet to ``stage`` or to the end."""
        while (found := tablet(self.log[-1]).transition) is not None and found.stage != stage:
            self.do(step(self.log[-1]))
        return self

    def back(self) -> Tablet:
        return self.do(RevertTablets((TabletRevert(TABLE, 0, "back"),))).lead()

    def down(self, node: str) -> Tablet:
        return self.do(DeclareDown(node, "burnt"))

    def resized(self, count: int) -> Tablet:
        """Change the replication factor of the keyspace."""
        return self.do(AlterKeyspace("ks", factor(count)))

    def scenario(self, *, mistaken: bool = False) -> Scenario:
        return Scenario(tuple(self.log), key_of(TABLE, b"k"), mistaken=mistaken)


def moved(count: int) -> Scenario:
    made = Tablet(count)
    return made.begin(made.replicas[0], made.free[0]).lead().scenario()


def moved_and_back(count: int) -> Scenario:
    made = Tablet(count)
    one, other = made.replicas[0], made.free[0]
    return made.begin(one, other).lead().begin(other, one).lead().scenario()


def turned_back(count: int, stage: str, *, mistaken: bool = False, once: bool = False) -> Scenario:
    """The target dies; then the tablet moves to another node, unless ``once``."""
    made = Tablet(count)
    made.begin(made.replicas[0], made.free[0]).lead(stage).down(made.free[0]).back()
    if once:
        made.log = made.log[4:]
        return made.scenario(mistaken=mistaken)
    return made.begin(made.replicas[0], made.free[1]).lead().scenario(mistaken=mistaken)


def tried_again(count: int) -> Scenario:
    """The tablet reverts; then the same node receives it."""
    made = Tablet(count)
    for _ in range(2):
        made.begin(made.replicas[0], made.free[0]).lead(STREAMING)
        made = made.back() if len(made.log) < 8 else made.lead()
    return made.scenario()


def third_dies(count: int, *, mistaken: bool) -> Scenario:
    """A remaining replica dies before the first step; the tablet still completes its move."""
    made = Tablet(count)
    made.begin(made.replicas[0], made.free[0]).down(made.replicas[-1])
    return made.lead().scenario(mistaken=mistaken)


def leaver_dies(count: int, *, mistaken: bool) -> Scenario:
    made = Tablet(count)
    made.begin(made.replicas[0], made.free[0]).lead(WRITE_BOTH_READ_NEW).down(made.replicas[0])
    return made.lead().scenario(mistaken=mistaken)


def rebuilt(count: int, *, mistaken: bool) -> Scenario:
    made = Tablet(count).down(Tablet(count).replicas[0])
    return made.begin(made.replicas[0], made.free[0], "rebuild").lead().scenario(mistaken=mistaken)


def changed(before: int, after: int) -> Scenario:
    """The tablet gains or loses one replica."""
    made = Tablet(before).resized(after)
    ends = ("", made.free[0]) if after > before else (made.replicas[0], "")
    return made.begin(*ends, kind="rebuild").lead().scenario()


Make = Callable[[], Scenario]

TABLETS: dict[str, Make] = {
    "tablet moves, 1 replica": lambda: moved(1),
    "tablet moves, 2 replicas": lambda: moved(2),
    "tablet moves, 3 replicas": lambda: moved(3),
    "tablet moves and comes back, 1 replica": lambda: moved_and_back(1),
    "tablet moves and comes back, 2 replicas": lambda: moved_and_back(2),
    "tablet moves, the replica that stays dies, 2 replicas": lambda: third_dies(2, mistaken=False),
    "tablet moves, the replica that stays is down and lives, 2 replicas": lambda: third_dies(2, mistaken=True),
    "tablet moves, one that stays is down and lives, 3 replicas": lambda: third_dies(3, mistaken=True),
    "tablet moves, its source is down at the end and lives, 2 replicas": lambda: leaver_dies(2, mistaken=True),
    "tablet turns back, and the same node gets it, 1 replica": lambda: tried_again(1),
    "tablet turns back, and the same node gets it, 2 replicas": lambda: tried_again(2),
    "tablet turns back before it was read, 2 replicas": lambda: turned_back(2, WRITE_BOTH_READ_OLD, mistaken=True),
    "tablet turns back after it was read, 2 replicas": lambda: turned_back(2, WRITE_BOTH_READ_NEW, mistaken=True),
    "tablet only turns back after it was read, 3 replicas": lambda: turned_back(
        3, WRITE_BOTH_READ_NEW, mistaken=True, once=True
    ),
    "tablet turns back after it was read, 3 replicas": lambda: turned_back(3, WRITE_BOTH_READ_NEW, mistaken=True),
    "tablet is rebuilt, 2 replicas": lambda: rebuilt(2, mistaken=False),
    "tablet is rebuilt, who is down lives, 2 replicas": lambda: rebuilt(2, mistaken=True),
    "tablet is rebuilt, who is down lives, 3 replicas": lambda: rebuilt(3, mistaken=True),
    "tablet gets a second replica": lambda: changed(1, 2),
    "tablet gets a third replica": lambda: changed(2, 3),
    "tablet loses its second replica": lambda: changed(2, 1),
    "tablet loses its third replica": lambda: changed(3, 2),
}

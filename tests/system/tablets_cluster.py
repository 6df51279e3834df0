"""Reference nodes with registers in a table in tablets; tablets move while nodes are killed."""

from __future__ import annotations

from collections.abc import Callable

from tests.system.agents_world import until
from tests.system.registers_cluster import DEADLINE_S, OPERATIONS_BETWEEN, Harm, RegistersCluster, Watch
from tests.system.registers_load import Load

from ringlog.kernel.commands.placement.tablets import MigrateTablets, Shard, TabletMigration
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.schema.tables import CreateTable
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.tablet_map import Tablet, TabletMap
from ringlog.kernel.tablets.stages import MIGRATION
from ringlog.kernel.values import CdcOptions, Column, Replication, TabletOptions

TABLE = "shop.seats"
TABLETS = 4
TABLE_ID = "0190ffff-0000-7000-8000-000000000007"


class TabletWatch(Watch):
    """Follows the next transition of a tablet."""

    def __init__(self, world: RegistersCluster, index: int, harms: tuple[Harm, ...]) -> None:
        self._index = index
        super().__init__(world, harms)

    def stage(self, state: ClusterState) -> str:
        """Return the stage of the tablet; empty without a transition."""
        transition = state.tablets[TABLE].transitions.get(self._index)
        if transition is None:
            return ""
        self.operation = f"{TABLE}/{self._index}"
        return transition.stage

    def ended(self) -> bool:
        """True once the tablet has settled."""
        return bool(self.operation) and not self.now()


class TabletsCluster(RegistersCluster):
    """The nodes, and the table ``TABLE`` with three replicas of each tablet."""

    space = TABLE

    def found(self, *names: str, filling: int) -> None:
        """Start the nodes and create the table with some registers."""
        self.begin_all(*names)
        keyspace, _, table = TABLE.partition(".")
        self.submit(CreateKeyspace(keyspace, Replication("tablets", 3)))
        columns = (Column("seat", "text"),)
        options = TabletOptions(TABLETS)
        self.submit(CreateTable(keyspace, table, TABLE_ID, columns, ("seat",), (), CdcOptions(), tablets=options))
        self.fill(filling)

    def load(self) -> Load:
        """Return applications that use the table."""
        return Load(self.agents.stack, self.agents.cluster, self.folder, space=TABLE)

    @property
    def tablets(self) -> TabletMap:
        return self.agents.state.tablets[TABLE]

    def nodes_of(self, tablet: Tablet) -> list[str]:
        """Return the names of the nodes with this tablet."""
        return [self.agents.state.nodes[replica.node].name for replica in tablet.replicas]

    def on(self, name: str) -> list[int]:
        """Return the numbers of the tablets on a node."""
        return [tablet.index for tablet in self.tablets if name in self.nodes_of(tablet)]

    def ends_of(self, index: int, source: str = "") -> tuple[str, str]:
        """Return the replicas of a tablet and the possible targets. ``source``: the replica that moves."""
        there = self.nodes_of(self.tablets.tablet(index))
        return source or there[0], min(name for name in self.nodes if name not in there)

    def migration(self, index: int, source: str, target: str, kind: str = MIGRATION.name) -> TabletMigration:
        """Return the command that moves the replica on ``source`` to ``target``."""
        shard = next(one.shard for one in self.tablets.replicas(index) if one.node == self.id_of(source))
        to = Shard(self.id_of(target), index % 2)
        return TabletMigration(TABLE, index, kind, Shard(self.id_of(source), shard), to)

    def go(
        self,
        load: Load,
        one: TabletMigration,
        *harms: Harm,
        between: int = OPERATIONS_BETWEEN,
        meanwhile: Callable[[Harm], None] = lambda _: None,
    ) -> list[Harm]:
        """Run a whole transition; return the faults that hit. See ``movement``."""

        def begin() -> None:
            self.submit(MigrateTablets((one,)))

        watch = TabletWatch(self, one.tablet, harms)
        return self.movement(load, begin, *harms, between=between, meanwhile=meanwhile, watch=watch)

    def settled(self) -> None:
        """Wait until no tablet is migrating."""
        until(lambda: not self.tablets.transitions, "the tablets to settle", DEADLINE_S)

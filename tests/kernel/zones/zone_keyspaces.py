"""Zones that place a keyspace, on normal nodes named by letters, and a driver that advances zone and tablets."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from ringlog.kernel.commands.placement.tablets import MigrateTablets, Shard, TabletMigration
from ringlog.kernel.commands.placement.zones import CreateZone
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.schema.tables import CreateTable
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.tablets.mutual_exclusion import transitions
from ringlog.kernel.values import CdcOptions, Column, Command, Replication, TabletOptions, Witness
from ringlog.kernel.zones.distribution import is_alive
from ringlog.operator.intents.replication import in_zone
from ringlog.protocol.coordinator.tablet_steps import tablet_reports, tablet_steps
from ringlog.protocol.nodes.groups import Member
from ringlog.protocol.rebalancer.core import RebalancerView, propose
from ringlog.protocol.rebalancer.zone_groups import SESSIONS, SessionReports
from tests.kernel.entries import founded, uuid
from tests.kernel.tablets.clusters import normal
from tests.kernel.zones.states import NoRows, done, ids, letter, tried

TABLE = "ks.t"


def create_table(
    name: str = "t", number: int = 1, tablets: TabletOptions | None = None, cdc: bool = False
) -> CreateTable:
    columns = (Column("a", "int"),)
    log = CdcOptions(enabled=cdc)
    return CreateTable("ks", name, uuid(number, space=9), columns, ("a",), (), log, tablets=tablets)


def zone_only(letters: str, outside: str = "", **values: object) -> ClusterState:
    """Return zone ``z`` on normal nodes. Nodes in ``outside`` are not data nodes."""
    state = normal(founded(), *(letter(name) for name in letters + outside))
    return done(state, CreateZone("z", ids(letters), **{"partitions": 2, "scale_up": 2**31 - 1, **values}))  # type: ignore[arg-type]


def with_data(letters: str, outside: str = "", **values: object) -> ClusterState:
    """Return the same with keyspace ``ks`` and a table."""
    keyspace = CreateKeyspace("ks", in_zone("z"))
    return done(zone_only(letters, outside, **values), keyspace, create_table())


def on(state: ClusterState, number: int = 0, table: str = TABLE) -> str:
    """Return the letters of the nodes with a replica of the tablet."""
    return "".join(sorted(chr(int(one.node[:8], 16) + 64) for one in state.tablets[table].replicas(number)))


def stage(state: ClusterState) -> str:
    """Return the stage of the first migrating tablet, or an empty text."""
    return next((one.stage for _, one in transitions(state)), "")


def migration(
    state: ClusterState, source: str, target: str, number: int = 0, kind: str = "migration"
) -> MigrateTablets:
    """Move a replica, or with an empty letter add or remove one."""
    shards = {one.node: one.shard for one in state.tablets[TABLE].replicas(number)}
    ends = [Shard(ids(source)[0], shards.get(ids(source)[0], 0)) if source else None]
    ends += [Shard(ids(target)[0], 0) if target else None]
    return MigrateTablets((TabletMigration(TABLE, number, kind, *ends),))


def alive(state: ClusterState) -> list[str]:
    return [node for node in sorted(state.nodes) if is_alive(state, node)]


def node_reports(state: ClusterState, silent: Collection[str] = ()) -> SessionReports:
    """Return the reports of the live nodes about their partitions."""
    found: dict[str, dict[str, object]] = {}
    for node in alive(state):
        for report in Member(node, NoRows()).reports(state, state.epoch) if node not in silent else ():
            assert report.operation.startswith(SESSIONS)
            found.setdefault(report.operation, {})[node] = report
    return found  # type: ignore[return-value]


def of_coordinator(state: ClusterState, silent: Collection[str] = ()) -> Iterator[Command]:
    """Yield the possible tablet commands of the coordinator, with acknowledgements and reports of all live nodes."""
    living = [node for node in alive(state) if node not in silent]
    witnesses = [Witness(node, state.epoch, state.epoch) for node in living]
    reports = [report for node in living for report in tablet_reports(state, node)]
    return tablet_steps(state, witnesses, reports)


def of_rebalancer(state: ClusterState, silent: Collection[str] = ()) -> Iterator[Command]:
    return (one.command for one in propose(RebalancerView(state, node_reports(state, silent))))


def run_to_idle(state: ClusterState, rounds: int = 400) -> tuple[ClusterState, list[str]]:
    """Apply commands until none is proposed. Return the state and the commands, and check each state."""
    asked: list[str] = []
    for _ in range(rounds):
        for command in (*of_coordinator(state), *of_rebalancer(state)):
            after, code = tried(state, command)
            if code:
                continue
            state = after
            asked.append(type(command).__name__)
            break
        else:
            return state, asked
    raise AssertionError(f"no end: {asked[-20:]}")


REPLICATION = Replication("zone", 0, zone="z")

"""Zones that place a keyspace, for tests: nodes by letters, all normal; and a driver that leads zone and tablets on."""

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
from ringlog.node.protocol.groups import Member
from ringlog.operator.intents.replication import in_zone
from ringlog.protocol.coordinator.tablet_steps import tablet_reports, tablet_steps
from ringlog.protocol.rebalancer.core import RebalancerView, propose
from ringlog.protocol.rebalancer.zone_groups import SESSIONS, SessionReports
from tests.kernel.entries import founded, uuid
from tests.kernel.tablets.lives import normal
from tests.kernel.zones.scenes import NoRows, done, ids, letter, tried

TABLE = "ks.t"


def create_table(
    name: str = "t", number: int = 1, tablets: TabletOptions | None = None, cdc: bool = False
) -> CreateTable:
    columns = (Column("a", "int"),)
    log = CdcOptions(enabled=cdc)
    return CreateTable("ks", name, uuid(number, space=9), columns, ("a",), (), log, tablets=tablets)


def zone_only(letters: str, outside: str = "", **values: object) -> ClusterState:
    """Zone ``z`` on normal nodes; those ``outside`` are no data nodes of it."""
    state = normal(founded(), *(letter(name) for name in letters + outside))
    return done(state, CreateZone("z", ids(letters), **{"partitions": 2, "scale_up": 2**31 - 1, **values}))  # type: ignore[arg-type]


def with_data(letters: str, outside: str = "", **values: object) -> ClusterState:
    """The same with keyspace ``ks``, and a table in it."""
    keyspace = CreateKeyspace("ks", in_zone("z"))
    return done(zone_only(letters, outside, **values), keyspace, create_table())


def on(state: ClusterState, number: int = 0, table: str = TABLE) -> str:
    """The letters of the nodes that have a tablet."""
    return "".join(sorted(chr(int(one.node[:8], 16) + 64) for one in state.tablets[table].replicas(number)))


def stage(state: ClusterState) -> str:
    """The stage of the first tablet that is on its way; empty if none is."""
    return next((one.stage for _, one in transitions(state)), "")


def migration(
    state: ClusterState, source: str, target: str, number: int = 0, kind: str = "migration"
) -> MigrateTablets:
    """A replica moves, or (an empty letter) comes or goes alone."""
    shards = {one.node: one.shard for one in state.tablets[TABLE].replicas(number)}
    ends = [Shard(ids(source)[0], shards.get(ids(source)[0], 0)) if source else None]
    ends += [Shard(ids(target)[0], 0) if target else None]
    return MigrateTablets((TabletMigration(TABLE, number, kind, *ends),))


def alive(state: ClusterState) -> list[str]:
    return [node for node in sorted(state.nodes) if is_alive(state, node)]


def said(state: ClusterState, silent: Collection[str] = ()) -> SessionReports:
    """What the nodes that are alive say of their partitions."""
    found: dict[str, dict[str, object]] = {}
    for node in alive(state):
        for report in Member(node, NoRows()).reports(state, state.epoch) if node not in silent else ():
            assert report.operation.startswith(SESSIONS)
            found.setdefault(report.operation, {})[node] = report
    return found  # type: ignore[return-value]


def of_coordinator(state: ClusterState, silent: Collection[str] = ()) -> Iterator[Command]:
    """What the coordinator may ask for of tablets, as everybody who is alive acknowledges and reports."""
    living = [node for node in alive(state) if node not in silent]
    witnesses = [Witness(node, state.epoch, state.epoch) for node in living]
    reports = [report for node in living for report in tablet_reports(state, node)]
    return tablet_steps(state, witnesses, reports)


def of_rebalancer(state: ClusterState, silent: Collection[str] = ()) -> Iterator[Command]:
    return (one.command for one in propose(RebalancerView(state, said(state, silent))))


def led(state: ClusterState, rounds: int = 400) -> tuple[ClusterState, list[str]]:
    """The state when nobody asks for anything more, and what was asked for. Each state is sound."""
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

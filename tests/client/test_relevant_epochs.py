"""The relevant epoch of a request: it is high enough that no replica refuses later, and low enough that none waits for
unrelated epochs.

Every coordinator of a log meets every lagging replica. Each part of the relevant epoch is necessary: without it, one
pair violates one of the two bounds.
"""

from __future__ import annotations

from functools import cache

import pytest

from ringlog.client.data import plans
from ringlog.client.data.plans import Access, Answer, Level, RequestPlan, request_of
from ringlog.kernel.commands.cdc.verdicts import SettleVerdicts
from ringlog.kernel.commands.cluster.cluster import ChangeSettings, Noop
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace, DropKeyspace
from ringlog.kernel.commands.schema.tables import CreateTable, DropTable
from ringlog.kernel.history import state_id_at
from ringlog.kernel.model.state import ClusterState, RangeGroup
from ringlog.kernel.tablets.groups import serving
from ringlog.kernel.values import CdcOptions, Column, Command, Epoch, Replication, TabletOptions
from ringlog.node.registers import registers
from ringlog.node.registers.registers import PLACED_BY, Behind, RegisterReplica
from ringlog.wire.data import Key, RegisterCell
from ringlog_sim.mutants.plant import Mutant, planted
from tests.client.explorer.scenarios import SCENARIOS
from tests.kernel.entries import applied, uuid
from tests.node.world import APPENDED, cluster

KEY, SIMPLE = Key("shop", 50, b"k"), Replication("simple", 3)
VALUE = RegisterCell(1, b"x")
IN_VAIN, NO_MEMBER, NAMESAKE, NO_ID, WAITS = "answered in vain", "no member", "of a namesake", "no id", "waits in vain"


def table(name: str, number: int, base: str = "") -> CreateTable:
    options = TabletOptions(base=base) if base else TabletOptions(4)
    columns = (Column("a", "int"),)
    return CreateTable("cut", name, uuid(number, space=9), columns, ("a",), (), CdcOptions(), tablets=options)


def log_after(*commands: Command) -> list[ClusterState]:
    """Return the log of a cluster of three nodes with the keyspace shop."""
    log = [cluster((0,), (2**60,), (-(2**60),), factor=3)]
    for command in commands:
        log.append(applied(log[-1], command))
    return log


def unrelated() -> tuple[list[ClusterState], Key]:
    """No event matters for the register."""
    return log_after(CreateKeyspace("other", SIMPLE), Noop(), SettleVerdicts(APPENDED)), KEY


def namesake() -> tuple[list[ClusterState], Key]:
    """A keyspace is dropped and recreated; another one keeps their placement."""
    drop = DropTable("shop", "orders"), DropKeyspace("shop")
    return log_after(CreateKeyspace("other", SIMPLE), *drop, CreateKeyspace("shop", SIMPLE)), KEY


def shared_tablets() -> tuple[list[ClusterState], Key]:
    """A table is added to existing tablets, dropped, and recreated."""
    base = CreateKeyspace("cut", Replication("tablets", 3)), table("t", 11)
    log = log_after(*base, table("side", 12, "t"), DropTable("cut", "side"), table("side", 13, "t"), Noop())
    return log, Key("cut.side", 50, b"k")


def forgetful() -> tuple[list[ClusterState], Key]:
    """The log is longer than the retention of the history."""
    log = log_after(ChangeSettings((("history_entries", 100),)), *[Noop()] * 120)
    return log[-30::10], KEY


LOGS = {"unrelated": unrelated, "namesake": namesake, "shared tablets": shared_tablets, "forgetful": forgetful}
MOVEMENTS = (
    "join, 2 replicas",
    "cancel, then another, 1 replica",
    "away and back, 1 replica",
    "from 3 replicas to 1",
    "two of three places",
)
ALL = (*LOGS, *MOVEMENTS)


@cache
def log_of(name: str) -> tuple[tuple[ClusterState, ...], Key]:
    """Return the states and a register. Movements are built without a history."""
    if name in LOGS:
        log, key = LOGS[name]()
        return tuple(log), key
    scenario = SCENARIOS[name]()
    return scenario.log, scenario.key


@cache
def adopted(name: str, node: str, place: int) -> RegisterReplica:
    return registers.adopt(registers.restarted(node, registers.Durable()), log_of(name)[0][place])[0]


def group(state: ClusterState, key: Key) -> RangeGroup | None:
    keyspace, _, bare = key.keyspace.partition(".")
    found = serving(state, keyspace, bare, key.token) if key.keyspace in {*state.keyspaces, *state.tables} else None
    return None if found is None else found[0]


def identity(state: ClusterState, key: Key) -> tuple[Epoch, str]:
    """Return the owner of a register: the keyspace, and the table if it belongs to one."""
    found = state.tables.get(key.keyspace)
    return registers.creation_epoch(state, key.keyspace), "" if found is None else found.id


def faults(name: str) -> set[str]:
    """Return the faults between any coordinator and any replica that lags behind it."""
    log, key = log_of(name)
    found = set[str]()
    for place, planned in enumerate(log):
        for access in Access:
            made = plans.plan(planned, request_of(key, access, Level.QUORUM, "dc1"))
            if not isinstance(made, RequestPlan) or group(planned, key) is None:
                continue
            state_id = state_id_at(planned, made.mattered)
            found |= set() if state_id or not planned.history.tail else {NO_ID}
            for earlier in range(place):
                for node in made.asked:
                    found |= faults_of(adopted(name, node, earlier), made, planned, key, state_id)
    return found


def faults_of(replica: RegisterReplica, made: RequestPlan, planned: ClusterState, key: Key, state_id: str) -> set[str]:
    """Return the faults between a plan and a replica."""
    if made.request.access is Access.READ:
        _, verdict = registers.admit_read(replica, 1, key, made.mattered, state_id)
    else:
        _, verdict = registers.admit_write(replica, 1, key, VALUE, made.mattered, state_id)
    epoch = replica.state.epoch
    if isinstance(verdict, Behind):
        is_old = max(planned.changed.get(part, 0) for part in PLACED_BY) > epoch or planned.history.first > epoch
        return set() if is_old else {WAITS}
    if verdict is not None:
        return {NO_MEMBER}
    if identity(replica.state, key) != identity(planned, key):
        return {NAMESAKE}
    return set() if plans.counts(made, Answer(replica.node, epoch)) else {IN_VAIN}


@pytest.mark.parametrize("name", ALL)
def test_no_request_is_refused_late_or_waits_without_need(name: str) -> None:
    assert faults(name) == set()


def mutant(where: str, old: str, new: str) -> Mutant:
    return Mutant("part", f"ringlog.client.data.plans:{where}", old, new, "a part of the rule is missing", 1)


MATTERED, REMEMBERED = "max(live.changed, made)", "return min(max(found, state.history.first), state.epoch)"


@pytest.mark.parametrize(
    ("where", "old", "new", "name", "shows"),
    [
        ("plan", MATTERED, "made", "join, 2 replicas", {IN_VAIN, NO_MEMBER}),
        ("plan", MATTERED, "live.changed", "namesake", {NAMESAKE}),
        ("_mattered", REMEMBERED, "return found", "forgetful", {NO_ID}),
        ("_mattered", REMEMBERED, "return state.epoch", "unrelated", {WAITS}),
    ],
    ids=["groups", "keyspace", "remembered", "no more than that"],
)
def test_each_part_of_an_epoch_that_mattered_counts(where: str, old: str, new: str, name: str, shows: set[str]) -> None:
    """``test_row_reads.py`` shows that a change of the table matters."""
    with planted(mutant(where, old, new)):
        assert faults(name) & shows == shows

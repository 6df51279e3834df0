"""Entries and random commands for tests of the fold. Ids count up, so each run has the same transcript.

``random_command`` draws from small pools, so names, ids and tokens repeat in random histories. Some fields are out of
range.
"""

from __future__ import annotations

import random
import types
import typing
from typing import Any

from ringlog.kernel.commands.cdc.clock import LowerCdcWriter, LowerSettledTime, WithdrawCdcGeneration
from ringlog.kernel.commands.cdc.expiry import ExpireCdcGeneration, ForgetCdcGeneration
from ringlog.kernel.commands.cdc.generations import (
    CloseCdcGeneration,
    CommitCdcGeneration,
    PublishCdcGeneration,
    parts_of,
)
from ringlog.kernel.commands.cdc.writers import AdvanceCdcWriter, FenceCdcWriter, RegisterCdcWriter
from ringlog.kernel.commands.cluster.cluster import InitializeCluster, Noop
from ringlog.kernel.commands.cluster.features import RequireFeature
from ringlog.kernel.commands.cluster.service import AdvanceService
from ringlog.kernel.commands.control.plans import ApprovePlan
from ringlog.kernel.commands.control.recovery import EnterRecovery
from ringlog.kernel.commands.schema.batch import PLACES, SchemaStatement, statement_of
from ringlog.kernel.commands.schema.keyspaces import AlterKeyspace, CreateKeyspace
from ringlog.kernel.commands.schema.tables import CreateTable
from ringlog.kernel.commands.topology.movements import Assassinate, Join, Leave, Move, Rebuild, Remove, Replace
from ringlog.kernel.commands.topology.nodes import DeclareDown, DeclareUp, RegisterNode, UnregisterNode
from ringlog.kernel.commands.topology.operations import AdvanceOperation, CancelOperation
from ringlog.kernel.encoding.encoder import command_digest
from ringlog.kernel.fold import fold
from ringlog.kernel.generations.describe import generate_for, ranges_digest, to_prepare
from ringlog.kernel.model.outcome import Entry, OutcomeKind
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState, in_order
from ringlog.kernel.operations.gates import REPORTED_STAGES, gaining_nodes
from ringlog.kernel.operations.kinds import next_stage
from ringlog.kernel.operations.stages import in_flight
from ringlog.kernel.plans import planned
from ringlog.kernel.registry import COMMANDS
from ringlog.kernel.service import next_step
from ringlog.kernel.values import (
    CdcOptions,
    Column,
    Command,
    DatacenterReplication,
    Position,
    Replication,
    StreamReport,
    Witness,
    is_value_class,
    replace,
)

CLUSTER = "00000000-0000-7000-8000-00000000c1c1"


def uuid(number: int, space: int = 0) -> str:
    """Return a version-7 UUID that ascends with ``number`` within a ``space``."""
    return f"{number:08x}-0000-7000-8000-{space:012x}"


def entry(state: ClusterState, command: Command, /, **changes: Any) -> Entry:
    """Return the entry of an author at ``state``. ``changes`` replace its fields."""
    kind = type(command).__name__
    made = Entry(
        cluster_id=state.cluster_id or CLUSTER,
        state_id=uuid(state.epoch + 1),
        prev_state_id=state.state_id or None,
        request_id=uuid(state.epoch + 1, space=1),
        since_epoch=state.epoch,
        submitter="test",
        at=1_000_000 * (state.epoch + 1),
        kind=kind,
        version=1,
        digest=command_digest(kind, 1, repr(command).encode("utf-8", "surrogatepass")),
        command=command,
    )
    return replace(made, **changes)


def applied(state: ClusterState, *commands: Command) -> ClusterState:
    """Return ``state`` after ``commands``, and assert that each one applies."""
    for command in commands:
        folded = fold(state, entry(state, command))
        assert folded.outcome.kind is OutcomeKind.APPLIED, folded.outcome
        state = folded.state
    return state


def founded(**settings: int) -> ClusterState:
    """Return the state of a new cluster."""
    return applied(EMPTY_STATE, InitializeCluster("test", tuple(settings.items())))


def node(number: int, **changes: Any) -> RegisterNode:
    """Return the registration of node ``n<number>``."""
    registration = RegisterNode(
        name=f"n{number}",
        id=uuid(number, space=2),
        address=f"127.0.0.1:{7000 + number}",
        datacenter="dc1",
        rack=f"r{number % 2}",
        shards=2,
        ignore_msb=12,
        release="0.1.0",
        features=(),
        capacity=1,
    )
    return replace(registration, **changes)


NODES = [uuid(number, space=2) for number in range(1, 6)]
GENERATIONS = [uuid(number, space=3) for number in range(1, 4)]
SEED = bytes(range(16))
COLUMNS = (Column("k", "text"), Column("c", "int"), Column("v", "text"))
TABLE = CreateTable("ks", "t", uuid(1, space=4), COLUMNS, ("k",), ("c",), CdcOptions(enabled=True))

POOLS: dict[str, list[Any]] = {
    "name": ["n1", "n2", "n3", "a", "b"],
    "keyspace": ["a", "b"],
    "id": [*NODES, *(uuid(number, space=4) for number in range(30))],
    "node": NODES,
    "address": [f"127.0.0.1:{7000 + number}" for number in range(6)],
    "datacenter": ["dc1"],
    "rack": ["r1", "r2"],
    "release": ["0.1.0"],
    "features": [(), ("a",), ("b", "a"), ("a", "a")],
    "shards": [1, 2, 3],
    "ignore_msb": [0, 12],
    "capacity": [1, 10],
    "role": ["validator", "coordinator", "admin", "operator"],
    "principal": ["a", "b", "n1"],
    "keyspaces": [(), (), ("a",)],
    "key": [2, 3],
    "instance": ["x", "y"],
    "term": [1, 2, 3, 4],
    "settings": [(("history_entries", 100),), (("cdc_leeway_us", 7),), (("none", 1),), (("ranges_max", 1),)],
    "tokens": [(-100,), (0, 50), (100, 200, -(2**62)), (2**63 - 1, -(2**63) + 1), (7,), ()],
    "seed": [SEED],
    "operation": [f"join-{epoch}" for epoch in range(2, 14)],
    "to": [
        "prepared",
        "commit_cdc_generation",
        "publish_cdc_generation",
        "write_both_read_old",
        "write_both_read_new",
        "finished",
    ],
    "witnesses": [(), tuple(Witness(name, 2**30, 2**30) for name in NODES)],
    "reports": [()],
    "reason": ["why not"],
    "operator": ["ops"],
    "size": [None, 1, 3],
    "excluded": [None, (), (NODES[0],)],
    "strategy": ["simple", "simple", "simple", "entire"],
    "factor": [1, 1, 2],
    "type": ["text", "int", "map"],
    "columns": [COLUMNS],
    "partition_key": [("k",), ("k", "c"), (), ("v",)],
    "clustering_key": [(), ("c",), ("k",), ("x",)],
    "preimage": ["false", "full"],
    "delta": ["full", "keys"],
    "ttl": [0, 86_400],
    "generation": GENERATIONS,
    "part": [0, 0, 1],
    "parts": [1, 1, 2],
    "writer": ["w"],
    "incarnation": [uuid(1, space=5), uuid(2, space=5)],
    "timestamp": [10, 1_000, 10_000_000, 2**40],
    "horizon": [10, 1_000, 10_000_001],
    "low_watermark": [0, 10, 1_000],
    "plan": ["p"],
    "commands": [(planned(Noop()),), (planned(CreateKeyspace("ks", Replication("simple", 1))), planned(node(3)))],
    "lifetime_s": [600],
}
"""Field name to values of a valid command."""

NAMES: dict[str, list[Any]] = {
    "columns": [(), ("v",), ("k", "c")],
    "arguments": [(), ("int",)],
    "commands": [(), ("DropKeyspace",)],
    "witnesses": [("keeper",), ("keeper", "publisher"), ("keeper", "validator")],
}
"""Field name to values, for fields with names."""

FOR_GOOD = (UnregisterNode, Leave, Remove, Assassinate, Replace)
"""Commands that remove nodes permanently. Too many of them end a random history early."""

RARE = (EnterRecovery, RequireFeature, *FOR_GOOD)
"""Commands that cause the rejection of many others."""

BEGIN = (Join, Move, Rebuild, AlterKeyspace, *FOR_GOOD)
"""Commands that start an operation. With too many in flight, a random history finishes none."""

OUT_OF_RANGE: dict[type, list[Any]] = {
    str: ["", "x" * 5_000, "with space", "\udc80", "a.b", "00000000-0000-0000-0000-000000000000", "☃"],
    int: [-(2**63), 2**63 - 1, -1, 0, 1, 2**31],
    bytes: [b"", b"\x00" * 16, b"\xff" * 17],
    bool: [False, True],
}


def random_command(draw: random.Random, state: ClusterState, wild: float = 0.02) -> Command:
    """Return a random command, often one that applies. Each field is out of range with probability ``wild``."""
    command: Any
    if draw.random() < 0.5:
        kinds = [kind for kind in COMMANDS.values() if kind not in RARE or draw.random() < 0.1]
        command = _random_record(draw, draw.choice(kinds), wild)
    else:
        command = _sound_command(draw, state)
        if draw.random() < 0.15:
            kind = type(command)
            field_types = typing.get_type_hints(kind)
            for name in draw.sample(sorted(field_types), min(1, len(field_types))):
                command = replace(command, **{name: _random_value(draw, name, field_types[name], 0.3)})
    if isinstance(command, BEGIN) and in_flight(state) and draw.random() < 0.9:
        command = Noop()
    return typing.cast(Command, command)


def _sound_command(draw: random.Random, state: ClusterState) -> Command:
    """Return a command that advances nodes, operations, generations or writers, as their agents do."""
    choices: list[Command] = [node(len(state.nodes) + 1), RegisterCdcWriter("w", draw.choice(POOLS["incarnation"]))]
    token = draw.randrange(-(2**63) + 1, 2**63)
    choices += [Join(one.id, (token,), SEED) for _, one in in_order(state.nodes) if one.state == "none"][:2]
    for name in POOLS["keyspace"]:
        choices.append(CreateKeyspace(name, Replication("simple", draw.choice([1, 1, 2]))))
        choices.append(replace(TABLE, keyspace=name, name=draw.choice("tu"), id=uuid(state.epoch, space=4)))
    for operation in in_flight(state):
        witnesses = tuple(Witness(name, state.epoch, state.epoch) for name in sorted(state.nodes))
        gaining = gaining_nodes(operation) if operation.stage in REPORTED_STAGES else ()
        reports = tuple(StreamReport(name, operation.id, 5, "ab") for name in gaining)
        choices += [AdvanceOperation(operation.id, next_stage(operation) or "", witnesses, reports)] * 4
        choices += [CancelOperation(operation.id, "why not")] * (draw.random() < 0.2)
    choices += [ApprovePlan(name, plan.staged) for name, plan in in_order(state.plans)] * 2
    if (step := next_step(state)) is not None:
        witnesses = tuple(Witness(name, state.epoch, state.epoch) for name in sorted(state.service))
        choices += [AdvanceService(step.node, step.to, witnesses)] * 2
    for _, member in in_order(state.nodes):
        if member.state == "normal" and draw.random() < 0.1:
            choices += [
                Leave(member.id),
                Move(member.id, (draw.randrange(5_000), *member.tokens[1:]), SEED),
                Rebuild(member.id),
                DeclareUp(member.id, "") if member.down else DeclareDown(member.id, ""),
                Remove(member.id),
            ]
    for name in sorted(state.keyspaces):
        local = DatacenterReplication("dc1", draw.choice([1, 2]))
        choices.append(AlterKeyspace(name, Replication("network", local.factor, (local,))))
    if (wanted := to_prepare(state)) is not None:
        ranges = generate_for(state, wanted[1])
        choices += parts_of(wanted[0], ranges, 4)
        choices += [CommitCdcGeneration(wanted[0], 2**20 * state.epoch, ranges_digest(ranges))] * 2
    choices += [PublishCdcGeneration(one.id) for one in state.generations if one.status == "committed"]
    choices += [CloseCdcGeneration(one.id, closed_at=5) for one in state.generations if one.closed is None]
    for one in state.generations:
        if one.closed is not None and one.forgotten is None:
            after = ExpireCdcGeneration(one.id, 2**40) if one.expired is None else ForgetCdcGeneration(one.id)
            choices.append(after)
    choices += [WithdrawCdcGeneration(one.id, SEED, "a clock was ahead") for one in state.generations[-1:]]
    if state.settled.until:
        choices.append(LowerSettledTime(max(1, state.settled.until - draw.choice([0, 1, 2**20])), "a clock was ahead"))
    for _, writer in in_order(state.writers):
        ahead = writer.horizon + draw.choice([-5, 0, 2**20])
        choices.append(AdvanceCdcWriter(writer.name, writer.incarnation, ahead, max(0, ahead - 1), (Position(0, 5),)))
        if writer.fenced is not None:
            low = draw.choice([writer.low_watermark, writer.horizon - 1, writer.horizon + 1])
            choices.append(LowerCdcWriter(writer.name, writer.incarnation, low, "a clock was ahead"))
        if draw.random() < 0.1:
            choices.append(FenceCdcWriter(writer.name, writer.incarnation, (Position(0, 9),), "gone"))
    return draw.choice(sorted(choices, key=repr))


def _random_record(draw: random.Random, record: Any, wild: float) -> Any:
    if record is SchemaStatement and draw.random() >= wild:
        return statement_of(_random_record(draw, draw.choice(list(PLACES)), wild), draw.random() < 0.5)
    field_types = typing.get_type_hints(record)
    return record(**{name: _random_value(draw, name, field_types[name], wild) for name in record.__struct_fields__})


def _random_value(draw: random.Random, name: str, field_type: Any, wild: float) -> Any:
    is_wild = draw.random() < wild
    pools = NAMES if field_type == tuple[str, ...] and name in NAMES else POOLS
    if name in pools and not is_wild:
        return draw.choice(pools[name])
    origin, parts = typing.get_origin(field_type), typing.get_args(field_type)
    if origin in (typing.Union, types.UnionType):
        return None if draw.random() < 0.5 else _random_value(draw, "", parts[0], wild)
    if origin is tuple and parts[-1] is ...:
        return tuple(_random_value(draw, "", parts[0], wild) for _ in range(draw.randrange(3)))
    if origin is tuple:
        return tuple(_random_value(draw, "", part, wild) for part in parts)
    if is_value_class(field_type):
        return _random_record(draw, field_type, wild)
    return draw.choice(OUT_OF_RANGE[field_type])


def random_history(draw: random.Random, length: int, normal_nodes: int = 2) -> ClusterState:
    """Return the state after ``length`` random commands. Rejected commands change nothing."""
    state = with_normal_nodes(founded(), normal_nodes)
    for _ in range(length):
        state = fold(state, entry(state, random_command(draw, state))).state
    return state


def with_normal_nodes(state: ClusterState, count: int) -> ClusterState:
    """Return ``state`` with joined nodes ``n1`` …, each with one token, without running the joins."""
    for number in range(1, count + 1):
        state = applied(state, node(number))
        joined = replace(state.nodes[uuid(number, space=2)], state="normal", tokens=(number * 1_000,))
        owners = state.token_owners.set(number * 1_000, joined.id)
        state = replace(state, nodes=state.nodes.set(joined.id, joined), token_owners=owners)
    return state

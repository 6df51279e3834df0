"""All commands, and functions that make the common ones with defaults.

    from ringlog import commands, connect

    with connect("127.0.0.1:9092", "shop") as client:
        client.submit(commands.create_keyspace("ks", 2))
        client.submit(commands.create_table("ks", "orders", {"id": "uuid", "line": "int"}, partition_key=["id"]))

A class is a command with all its fields. The functions below choose omitted values: ids, random bytes, free tokens.
Some need the state for that. They return an ``Intent``, a function of the state that ``submit`` calls.
Nodes may be given by name there.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

from ringlog.kernel.commands.cdc.clock import LowerCdcWriter, LowerSettledTime, WithdrawCdcGeneration
from ringlog.kernel.commands.cdc.expiry import ExpireCdcGeneration, ForgetCdcGeneration
from ringlog.kernel.commands.cdc.generations import (
    CloseCdcGeneration,
    CommitCdcGeneration,
    PublishCdcGeneration,
    PutCdcGenerationData,
    RequestCdcGeneration,
)
from ringlog.kernel.commands.cdc.verdicts import SettleVerdicts
from ringlog.kernel.commands.cdc.writers import AdvanceCdcWriter, FenceCdcWriter, RegisterCdcWriter
from ringlog.kernel.commands.cluster.cluster import ChangeSettings, InitializeCluster, Noop, TakeOver
from ringlog.kernel.commands.cluster.features import EnableFeature, RequireFeature
from ringlog.kernel.commands.cluster.service import (
    AddServiceMember,
    AdvanceService,
    ReconfigureService,
    RemoveServiceMember,
)
from ringlog.kernel.commands.cluster.snapshots import TakeSnapshot
from ringlog.kernel.commands.cluster.truncation import ConfirmSnapshot, RecordArchive, TruncateLog
from ringlog.kernel.commands.control.pauses import PauseChanges, ResumeChanges
from ringlog.kernel.commands.control.plans import ApprovePlan, RejectPlan, RequireApprovals, StagePlan
from ringlog.kernel.commands.control.principals import (
    CreatePrincipal,
    GrantRole,
    RevokePrincipal,
    RevokeRole,
    RotatePrincipalKey,
)
from ringlog.kernel.commands.control.recovery import EnterRecovery, ForceState, LeaveRecovery
from ringlog.kernel.commands.placement.rebalances import (
    CancelRebalance,
    FinishCancel,
    ResetPartitions,
    RestartReplicas,
    SwitchStable,
    TriggerRebalance,
)
from ringlog.kernel.commands.placement.resizes import DecideResize, FinishResize
from ringlog.kernel.commands.placement.tablets import (
    AdvanceTablets,
    MigrateTablets,
    RevertTablets,
    Shard,
    TabletMigration,
)
from ringlog.kernel.commands.placement.zones import AlterZone, CreateZone, DropZone, SetDataNodes
from ringlog.kernel.commands.schema.batch import SchemaBatch, SchemaStatement
from ringlog.kernel.commands.schema.functions import CreateAggregate, CreateFunction, DropAggregate, DropFunction
from ringlog.kernel.commands.schema.keyspaces import AlterKeyspace, CreateKeyspace, DropKeyspace
from ringlog.kernel.commands.schema.tables import AlterTable, CreateTable, DropTable
from ringlog.kernel.commands.schema.user_types import AlterType, CreateType, DropType
from ringlog.kernel.commands.schema.views import CreateIndex, CreateView, DropIndex, DropView
from ringlog.kernel.commands.topology.movements import Assassinate, Join, Leave, Move, Rebuild, Remove, Replace
from ringlog.kernel.commands.topology.nodes import DeclareDown, DeclareUp, RegisterNode, UnregisterNode, UpdateNode
from ringlog.kernel.commands.topology.operations import AdvanceOperation, CancelOperation, FailOperation, RetryOperation
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.plans import planned
from ringlog.kernel.values import (
    CdcOptions,
    Column,
    ColumnRename,
    Command,
    Replication,
    TabletOptions,
    Token,
    TypeField,
)
from ringlog.operator.intents import zone_nodes
from ringlog.operator.intents.intents import NUM_TOKENS, Intent, named
from ringlog.operator.intents.intents import join as join_intent
from ringlog.operator.intents.intents import move as move_intent
from ringlog.operator.intents.replication import in_zone, network
from ringlog.protocol.effects import Draw

__all__ = [
    "AddServiceMember",
    "AdvanceCdcWriter",
    "AdvanceOperation",
    "AdvanceService",
    "AdvanceTablets",
    "AlterKeyspace",
    "AlterTable",
    "AlterType",
    "AlterZone",
    "ApprovePlan",
    "Assassinate",
    "CancelOperation",
    "CancelRebalance",
    "CdcOptions",
    "ChangeSettings",
    "CloseCdcGeneration",
    "Column",
    "ColumnRename",
    "CommitCdcGeneration",
    "ConfirmSnapshot",
    "CreateAggregate",
    "CreateFunction",
    "CreateIndex",
    "CreateKeyspace",
    "CreatePrincipal",
    "CreateTable",
    "CreateType",
    "CreateView",
    "CreateZone",
    "DecideResize",
    "DeclareDown",
    "DeclareUp",
    "DropAggregate",
    "DropFunction",
    "DropIndex",
    "DropKeyspace",
    "DropTable",
    "DropType",
    "DropView",
    "DropZone",
    "EnableFeature",
    "EnterRecovery",
    "ExpireCdcGeneration",
    "FailOperation",
    "FenceCdcWriter",
    "FinishCancel",
    "FinishResize",
    "ForceState",
    "ForgetCdcGeneration",
    "GrantRole",
    "InitializeCluster",
    "Intent",
    "Join",
    "Leave",
    "LeaveRecovery",
    "LowerCdcWriter",
    "LowerSettledTime",
    "MigrateTablets",
    "Move",
    "Noop",
    "PauseChanges",
    "PublishCdcGeneration",
    "PutCdcGenerationData",
    "Rebuild",
    "ReconfigureService",
    "RecordArchive",
    "RegisterCdcWriter",
    "RegisterNode",
    "RejectPlan",
    "Remove",
    "RemoveServiceMember",
    "Replace",
    "Replication",
    "RequestCdcGeneration",
    "RequireApprovals",
    "RequireFeature",
    "ResetPartitions",
    "RestartReplicas",
    "ResumeChanges",
    "RetryOperation",
    "RevertTablets",
    "RevokePrincipal",
    "RevokeRole",
    "RotatePrincipalKey",
    "SchemaBatch",
    "SchemaStatement",
    "SetDataNodes",
    "SettleVerdicts",
    "Shard",
    "StagePlan",
    "SwitchStable",
    "TabletMigration",
    "TabletOptions",
    "TakeOver",
    "TakeSnapshot",
    "TriggerRebalance",
    "TruncateLog",
    "TypeField",
    "UnregisterNode",
    "UpdateNode",
    "WithdrawCdcGeneration",
    "create_keyspace",
    "create_table",
    "create_zone",
    "join",
    "leave",
    "move",
    "network",
    "rebuild",
    "register_node",
    "remove",
    "replace",
    "stage_plan",
    "tablets",
    "zone",
]

IGNORE_MSB = 12
"""Default number of highest token bits that do not choose the shard, as in ScyllaDB."""


def tablets(factor: int | Mapping[str, int | Sequence[str]]) -> Replication:
    """Return the replication of tablets: a factor, or one for each datacenter."""
    if isinstance(factor, int):
        return Replication("tablets", factor)
    found = network(factor)
    return Replication("tablets", found.factor, found.datacenters)


def zone(name: str) -> Replication:
    """Return the replication of a keyspace in a distribution zone."""
    return in_zone(name)


def create_keyspace(name: str, replication: int | Replication) -> CreateKeyspace:
    """Create a keyspace. ``replication``: a factor, or ``network``, ``tablets`` or ``zone``."""
    return CreateKeyspace(name, Replication("simple", replication) if isinstance(replication, int) else replication)


def create_table(
    keyspace: str,
    name: str,
    columns: Mapping[str, str],
    *,
    partition_key: Sequence[str],
    clustering_key: Sequence[str] = (),
    static: Sequence[str] = (),
    cdc: bool | CdcOptions = False,
    tablets: TabletOptions | None = None,
    id: str = "",
) -> CreateTable:
    """Create a table.

    Args:
        keyspace: Name of the keyspace.
        name: Name of the table.
        columns: Column name to CQL type, key columns included.
        partition_key: Names of columns.
        clustering_key: Names of columns.
        static: Columns whose value all rows of a partition share.
        cdc: Whether writes are logged, or the options of the log.
        tablets: Options of a table in tablets.
        id: A UUID that no table ever had. Default: a random one.
    """
    made = tuple(Column(column, kind, column in static) for column, kind in columns.items())
    options = cdc if isinstance(cdc, CdcOptions) else CdcOptions(enabled=cdc)
    table_id = id or str(uuid.uuid4())
    return CreateTable(keyspace, name, table_id, made, tuple(partition_key), tuple(clustering_key), options, tablets)


def create_zone(name: str, *, partitions: int = 25, replicas: int = 1, **options: object) -> Intent:
    """Create a zone on the nodes that match its filter. ``options``: further fields of ``CreateZone``."""
    values = {"zone": name, "partitions": partitions, "replicas": replicas, **options}

    def intent(state: ClusterState, _draw: Draw) -> Command:
        return CreateZone(**{"nodes": zone_nodes.nodes_of_new(state, values), **values})  # type: ignore[arg-type]

    return intent


def register_node(
    name: str,
    address: str,
    *,
    id: str = "",
    datacenter: str = "dc1",
    rack: str = "r1",
    shards: int = 1,
    ignore_msb: int = IGNORE_MSB,
    release: str = "",
    features: Sequence[str] = (),
    capacity: int = 1,
) -> RegisterNode:
    """Register a node. It owns nothing before it joins.

    Args:
        name: A name that no node ever had.
        address: ``host:port`` of the node.
        id: A UUID that no node ever had. Default: a random one.
        datacenter: Datacenter of the node.
        rack: Rack of the node.
        shards: Number of shards.
        ignore_msb: Number of highest token bits that do not choose the shard.
        release: Release of the store; for information only.
        features: Features of ``ringlog.FEATURES`` that the store supports.
        capacity: Relative weight. A node with 2 holds twice as much data as one with 1.
    """
    uid = id or str(uuid.uuid4())
    told = release or "none"
    return RegisterNode(name, uid, address, datacenter, rack, shards, ignore_msb, told, tuple(features), capacity)


def join(node: str, tokens: int | Sequence[Token] = NUM_TOKENS) -> Intent:
    """Start the join of a registered node. ``tokens``: these, or this number that balance the ring."""
    return join_intent(node, tokens)


def move(node: str, tokens: int | Sequence[Token]) -> Intent:
    """Replace the tokens of a node by these, or by this number that balance the ring."""
    return move_intent(node, tokens)


def leave(node: str) -> Intent:
    """Start the departure of a node that is alive."""
    return named(Leave(node))


def remove(node: str, *, ignore_nodes: Sequence[str] = ()) -> Intent:
    """Start the removal of a node that was declared down."""
    return named(Remove(node, tuple(ignore_nodes)))


def replace(node: str, replaced: str, *, ignore_nodes: Sequence[str] = ()) -> Intent:
    """Start the replacement of a node by a new one in the same datacenter and rack."""
    return named(Replace(node, replaced, tuple(ignore_nodes)))


def rebuild(node: str, *, source_datacenter: str = "") -> Intent:
    """Stream everything that a node owns to it again."""
    return named(Rebuild(node, source_datacenter))


def stage_plan(name: str, *commands: Command, lifetime_s: int = 86_400) -> StagePlan:
    """Store commands as a plan, which ``ApprovePlan`` applies together or not at all."""
    return StagePlan(name, tuple(map(planned, commands)), lifetime_s)

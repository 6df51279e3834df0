"""A cluster with an example of each entity, built from real entries. It is the start state of the fuzzers.

The entries are authored and encoded as in production. The coordinator's own decisions advance operations and
generations, with immediate acknowledgements by all nodes. Each run produces the same bytes.
"""

from __future__ import annotations

from functools import cache

from ringlog.kernel.commands.cdc.clock import LowerSettledTime
from ringlog.kernel.commands.cdc.expiry import ExpireCdcGeneration, ForgetCdcGeneration
from ringlog.kernel.commands.cdc.generations import RequestCdcGeneration
from ringlog.kernel.commands.cdc.verdicts import SettleVerdicts
from ringlog.kernel.commands.cdc.writers import AdvanceCdcWriter, RegisterCdcWriter
from ringlog.kernel.commands.cluster.cluster import ChangeSettings, InitializeCluster, Noop, TakeOver
from ringlog.kernel.commands.cluster.service import AddServiceMember, ReconfigureService, RemoveServiceMember
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
from ringlog.kernel.commands.control.recovery import EnterRecovery, ForcedPart, ForceState, LeaveRecovery
from ringlog.kernel.commands.placement.rebalances import (
    CancelRebalance,
    FinishCancel,
    ResetPartitions,
    RestartReplicas,
    SwitchStable,
    TriggerRebalance,
    ZoneCopy,
)
from ringlog.kernel.commands.placement.resizes import DecideResize
from ringlog.kernel.commands.placement.tablets import (
    MigrateTablets,
    RevertTablets,
    Shard,
    TabletMigration,
    TabletRevert,
)
from ringlog.kernel.commands.placement.zones import AlterZone, CreateZone, DropZone, SetDataNodes
from ringlog.kernel.commands.schema.batch import SchemaBatch, statement_of
from ringlog.kernel.commands.schema.functions import CreateAggregate, CreateFunction, DropAggregate, DropFunction
from ringlog.kernel.commands.schema.keyspaces import AlterKeyspace, CreateKeyspace, DropKeyspace
from ringlog.kernel.commands.schema.tables import AlterTable, CreateTable, DropTable
from ringlog.kernel.commands.schema.user_types import AlterType, CreateType, DropType
from ringlog.kernel.commands.schema.views import CreateIndex, CreateView, DropIndex, DropView
from ringlog.kernel.commands.topology.movements import Assassinate, Join, Leave, Move, Rebuild, Remove, Replace
from ringlog.kernel.commands.topology.nodes import DeclareDown, DeclareUp, RegisterNode, UnregisterNode
from ringlog.kernel.commands.topology.operations import CancelOperation, FailOperation
from ringlog.kernel.fold import fold
from ringlog.kernel.generations.expiry import expires_at
from ringlog.kernel.model.outcome import OutcomeKind
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState, in_order
from ringlog.kernel.model.zones import partition_key
from ringlog.kernel.plans import planned
from ringlog.kernel.values import (
    CdcOptions,
    Column,
    Command,
    DatacenterReplication,
    Position,
    Replication,
    TypeField,
    Value,
    replace,
)
from ringlog.log.author import Author
from ringlog.operator.rehearsal.rehearsal import acknowledgements
from ringlog.protocol.coordinator.core import CoordinatorView, propose
from ringlog.runtime.clock import ManualClock
from ringlog.runtime.draw import SeededDraw
from ringlog.wire.entries import EncodedEntry

START = 1_700_000_000_000_000
SEED = bytes(range(16))
COLUMNS = (Column("k", "text"), Column("c", "int"), Column("v", "double"))


class Step(Value):
    """An applied entry, with the states before and after it."""

    before: ClusterState
    encoded: EncodedEntry
    after: ClusterState


class Story:
    """The history of a cluster, extended entry by entry."""

    def __init__(self, seed: bytes = b"fuzz") -> None:
        self.clock = ManualClock(START)
        self.author = Author("story", self.clock, SeededDraw(seed))
        self.state = EMPTY_STATE
        self.steps: list[Step] = []

    def apply(self, *commands: Command) -> None:
        """Append these commands and assert that each one applies."""
        for command in commands:
            self.clock.advance(1.0)
            encoded = self.author.entry(self.state, command)
            folded = fold(self.state, encoded.entry)
            assert folded.outcome.kind is OutcomeKind.APPLIED, folded.outcome
            self.steps.append(Step(self.state, encoded, folded.state))
            self.state = folded.state

    def next_steps(self) -> tuple[Command, ...]:
        """Return the coordinator's next proposals."""
        return next_steps(self.state, self.clock.now_us())

    def coordinate(self, rounds: int = 1_000) -> None:
        """Apply the coordinator's proposals until none is left, at most ``rounds``."""
        for _ in range(rounds):
            commands = self.next_steps()
            if not commands:
                return
            self.apply(commands[0])


def next_steps(state: ClusterState, now: int) -> tuple[Command, ...]:
    """Return the coordinator's proposals with all acknowledgements received and all changes published."""
    if state.epoch == 0:
        return ()
    known = CoordinatorView(state, acknowledgements(state, now), state.epoch, now)
    return tuple(proposal.command for proposal in propose(known))


def node(number: int) -> RegisterNode:
    """Return the registration of node ``n<number>``."""
    name, place = f"{number:08x}-0000-4000-8000-000000000002", f"127.0.0.1:{7000 + number}"
    return RegisterNode(f"n{number}", name, place, "dc1", f"r{number % 2}", 2, 12, "0.1.0", ("cdc",), 1)


@cache
def story() -> Story:
    """Build the history used by the fuzzers.

    It contains three nodes, two keyspaces, tables with and without CDC, writers, and active and sealed generations.
    Operations of both kinds have ended, tablets have moved, and one generation has expired. A fifth node is joining,
    and the validation watermark has decreased once. There is a log replica and an ended recovery.
    """
    told = Story()
    told.apply(InitializeCluster("shop", (("history_entries", 100),)), TakeOver("validator", "a", 1))
    for number in (1, 2, 3):
        told.apply(node(number), Join(node(number).id, (number * 2**60, -number * 2**60), SEED))
        told.coordinate()
    told.apply(CreateKeyspace("ks", Replication("simple", 2)), CreateKeyspace("old", Replication("simple", 1)))
    table = "11111111-0000-4000-8000-000000000004"
    told.apply(CreateTable("ks", "t", table, COLUMNS, ("k",), ("c",), CdcOptions(enabled=True)))
    told.apply(CreateTable("old", "u", table.replace("4000", "4001"), COLUMNS, ("k", "c"), (), CdcOptions()))
    told.apply(AlterTable("ks", "t", (Column("w", "blob"),)), DropTable("old", "u"), DropKeyspace("old"))
    told.apply(RegisterCdcWriter("spark", "i1"), ChangeSettings((("cdc_leeway_us", 7),)))
    found = told.state.writers["spark"].horizon
    told.apply(AdvanceCdcWriter("spark", "i1", found + 10**6, found, (Position(0, 5),)))
    told.apply(node(4), Join(node(4).id, (5, 6), SEED))
    told.coordinate(1)
    told.apply(CancelOperation(f"join-{told.state.epoch - 1}", "not now"), Join(node(4).id, (5, 2**62), SEED))
    told.coordinate()
    far = max(one.timestamp for one in told.state.generations) + 1
    told.apply(AdvanceCdcWriter("spark", "i1", far, far, (Position(0, 9), Position(1, 2))))
    told.apply(RequestCdcGeneration(SEED), Noop())
    told.coordinate()
    _move_all_ways(told)
    street, code = TypeField("street", "text"), TypeField("zip", "int")
    told.apply(CreateType("ks", "address", (street,)), AlterType("ks", "address", (code,)))
    told.apply(CreateType("ks", "spare", (street,)), DropType("ks", "spare"))
    spare = CreateType("ks", "spare", (street, TypeField("home", "frozen<address>")))
    told.apply(SchemaBatch((statement_of(spare), statement_of(spare, True), statement_of(DropType("ks", "spare")))))
    _other_ways(told)
    _move_tablets(told)
    _rebalance_a_zone(told)
    _serve_and_recover(told)
    _plan(told)
    told.apply(node(5), Join(node(5).id, (77,), SEED))
    told.coordinate(5)
    _expire(told)
    told.apply(PauseChanges(("splits",), "ks", "a test"), ResumeChanges(("splits",), "ks"), TakeSnapshot())
    _truncate(told)
    settled = 1 + max(told.state.settled.until, *(writer.horizon for writer in told.state.writers.values()))
    told.apply(SettleVerdicts(settled + 1), LowerSettledTime(settled, "a clock was ahead"))
    return told


def _truncate(told: Story) -> None:
    """Confirm the last snapshot, record its archive and truncate the log."""
    epoch, digest = told.state.epoch, "ab" * 32
    told.apply(ConfirmSnapshot(epoch, told.state.state_id, 2 * epoch, digest, ("coordinator", "keeper")))
    told.apply(RecordArchive(epoch, 2 * epoch, digest), TruncateLog(epoch), Noop())


def _other_ways(told: Story) -> None:
    """Create views, indexes, functions and aggregates, and drop one of each."""
    view, index = CreateView("ks", "by_v", "t", (), ("v",), ("k", "c")), CreateIndex("ks", "t_v_idx", "t", "v")
    told.apply(view, replace(view, name="spare", columns=("w",)), DropView("ks", "spare"))
    told.apply(index, CreateIndex("ks", "t_w_idx", "t", "w"), DropIndex("ks", "t_w_idx"))
    add = CreateFunction("ks", "add", ("int", "int"), ("s", "v"), "int", "lua", "return s + v")
    told.apply(add, replace(add, name="spare", arguments=("int", "address"), called_on_null=True))
    told.apply(DropFunction("ks", "spare", ("int", "address")))
    total = CreateAggregate("ks", "total", ("int",), "add", "int", initial="0")
    told.apply(total, replace(total, name="spare", initial=None), DropAggregate("ks", "spare"))


def _move_all_ways(told: Story) -> None:
    """Run one of each other operation: a move, two replacements, a departure and new nodes."""
    told.apply(Move(node(1).id, (11, 2**60), SEED))
    told.coordinate()
    told.apply(node(6), Replace(node(6).id, node(2).id))
    told.coordinate()
    told.apply(AlterKeyspace("ks", Replication("network", 2, (DatacenterReplication("dc1", 2),))))
    told.coordinate()
    told.apply(AlterKeyspace("ks", Replication("entire", 0)))
    told.coordinate()
    told.apply(AlterKeyspace("ks", Replication("simple", 2)))
    told.coordinate()
    told.apply(Rebuild(node(1).id), FailOperation(f"rebuild-{told.state.epoch + 1}", "disk broken"))
    told.apply(Rebuild(node(1).id))
    told.coordinate()
    told.apply(Leave(node(4).id))
    told.coordinate()
    told.apply(DeclareDown(node(3).id, "no heartbeat"), DeclareUp(node(3).id, "heartbeat"))
    told.apply(DeclareDown(node(3).id, "no heartbeat"), node(7), Join(node(7).id, (-5,), SEED))
    told.coordinate()
    told.apply(Remove(node(3).id))
    told.coordinate()
    told.apply(node(8), Join(node(8).id, (-(2**61) + 1,), SEED))
    told.coordinate()
    told.apply(DeclareDown(node(7).id, "no heartbeat"), Assassinate(node(7).id))
    told.apply(node(9), UnregisterNode(node(9).id))


def _move_tablets(told: Story) -> None:
    """Move a tablet after one reverted attempt, then split its table."""
    told.apply(CreateKeyspace("tab", Replication("tablets", 1, (DatacenterReplication("dc1", 1),))))
    told.apply(CreateTable("tab", "t", "11111111-0000-4000-8000-000000000005", COLUMNS, ("k",), ("c",), CdcOptions()))
    replica = told.state.tablets["tab.t"].tablet(0).replicas[0]
    away = Shard(next(one for one in sorted(_serving(told.state)) if one != replica.node), 0)
    move = TabletMigration("tab.t", 0, "migration", Shard(replica.node, replica.shard), away)
    told.apply(MigrateTablets((move,)), RevertTablets((TabletRevert("tab.t", 0, "not now"),)))
    told.coordinate()
    told.apply(MigrateTablets((move,)))
    told.coordinate()
    told.apply(DecideResize("tab.t", "split", 1))
    told.coordinate()
    assert told.state.tablets["tab.t"].resize is None, "the table has been split"


def _rebalance_a_zone(told: Story) -> None:
    """Move a partition after one reverted attempt, reset it after the loss of its majority, and drop another zone."""

    def to(*nodes: str) -> None:
        told.apply(SetDataNodes("z", nodes, told.state.epoch))
        told.apply(TriggerRebalance("z", told.state.epoch))

    def switch() -> None:
        one = told.state.zone_partitions[partition_key("z", 0)]
        told.apply(SwitchStable("z", 0, one.pending[0].nodes, one.pending[0].learners, one.revisions))

    first, second, third = sorted(_serving(told.state))[:3]
    told.apply(CreateZone("z", (first, second), partitions=1, replicas=1), CreateZone("spare", (first,)))
    told.apply(AlterZone("spare", partitions=2), DropZone("spare"))
    told.apply(CreateZone("anew", (first, second, third), partitions=1, replicas=3))
    told.apply(RestartReplicas("anew", 0, (second,), told.state.epoch), DropZone("anew"))
    to(third)
    revision = told.state.zone_partitions[partition_key("z", 0)].revisions.pending
    told.apply(CancelRebalance("z", 0, revision), FinishCancel("z", 0, revision, "rolled_back"))
    to(third)
    switch()
    told.apply(SetDataNodes("z", (second, third), told.state.epoch), DeclareDown(third, "burnt"))
    told.apply(
        ResetPartitions("z", (), "manual", told.state.epoch, (ZoneCopy(0, second, 7),)), DeclareUp(third, "mended")
    )


def _serving(state: ClusterState) -> set[str]:
    """Return the normal nodes that are not down."""
    return {name for name, one in state.nodes.items() if one.state == "normal" and not one.down}


def _serve_and_recover(told: Story) -> None:
    """Replace the members of a metadata service, and remove a pause in a recovery."""
    first, second = sorted(_serving(told.state))[:2]
    told.apply(ReconfigureService(1, excluded=(second,)))
    told.coordinate()
    told.apply(ReconfigureService(excluded=()), AddServiceMember(second))
    told.coordinate()
    told.apply(RemoveServiceMember(first))
    told.coordinate()
    told.apply(CreatePrincipal("root", "admin"), CreatePrincipal("ops", "operator", ("ks",)), GrantRole("ops", "admin"))
    told.apply(RequireApprovals(("TruncateLog",)), RequireApprovals(()))
    told.apply(RevokeRole("ops", "operator"), RotatePrincipalKey("ops", 2), RevokePrincipal("ops"))
    told.apply(PauseChanges(("splits",), "", "a test"), EnterRecovery("a test", "ops"))
    told.apply(ForceState("a test", "ops", (ForcedPart("pauses", b""),)), LeaveRecovery("mended", "ops"))


def _plan(told: Story) -> None:
    """Approve a plan, reject another one, and leave a third one in the state."""
    drop = planned(DropKeyspace("later"))
    told.apply(StagePlan("done", (planned(CreateKeyspace("later", Replication("simple", 1))),)))
    told.apply(ApprovePlan("done", told.state.epoch), StagePlan("wrong", (drop,)))
    told.apply(RejectPlan("wrong", told.state.epoch, "not now"), StagePlan("waiting", (drop, planned(Noop()))))


def _expire(told: Story) -> None:
    """Expire the rows of the first generation a day later, and remove its streams."""
    first, second = told.state.generations[:2]
    end = expires_at(told.state, first, second)
    assert end is not None, "the first generation has an expiry time"
    told.clock.advance((end - told.clock.now_us()) / 1_000_000)
    told.apply(ExpireCdcGeneration(first.id, told.clock.now_us()), ForgetCdcGeneration(first.id))


def states() -> tuple[ClusterState, ...]:
    """Return typical states of the story: empty, created, one for each stage of an operation, last."""
    chosen = {"empty": EMPTY_STATE, "founded": story().steps[0].after}
    for step in story().steps:
        stages = " ".join(f"{name}:{found.stage}" for name, found in in_order(step.after.operations))
        chosen[stages.rpartition(":")[2]] = step.after
    chosen["last"] = story().state
    return tuple(chosen.values())

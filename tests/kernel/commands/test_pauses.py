"""Pauses: the commands that each scope blocks, and the end of a pause."""

from __future__ import annotations

import pytest

from ringlog.kernel.balance.advice import advise
from ringlog.kernel.commands.cdc.generations import RequestCdcGeneration
from ringlog.kernel.commands.cluster.cluster import ChangeSettings
from ringlog.kernel.commands.cluster.service import ReconfigureService
from ringlog.kernel.commands.control.pauses import PauseChanges, ResumeChanges, paused
from ringlog.kernel.commands.placement.rebalances import TriggerRebalance
from ringlog.kernel.commands.placement.tablets import MigrateTablets, TabletMigration
from ringlog.kernel.commands.placement.zones import AlterZone
from ringlog.kernel.commands.schema.keyspaces import DropKeyspace
from ringlog.kernel.commands.topology.movements import Assassinate, Leave, Remove, Replace
from ringlog.kernel.commands.topology.nodes import DeclareDown
from ringlog.kernel.encoding.encoder import digest
from ringlog.kernel.fold import decide
from ringlog.kernel.model.modes import SCOPES, UNPAUSED, pause_text
from ringlog.kernel.model.outcome import Accepted, Decision, EntryContext, Rejected
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.registry import COMMANDS
from ringlog.kernel.values import Command, replace
from ringlog.operator.views.zones import full_view
from tests.kernel.balance.test_advice import PILED
from tests.kernel.entries import node
from tests.kernel.zones.states import done, tried
from tests.kernel.zones.zone_keyspaces import run_to_idle, with_data

UNPAUSED_KINDS = {
    *("AdvanceCdcWriter", "AdvanceOperation", "AdvanceService", "AdvanceTablets", "Assassinate", "CancelOperation"),
    *("CancelRebalance", "CloseCdcGeneration", "CommitCdcGeneration", "ConfirmSnapshot", "DeclareDown", "DeclareUp"),
    *("EnterRecovery", "ExpireCdcGeneration", "FailOperation", "FenceCdcWriter", "FinishCancel", "FinishResize"),
    *("ForceState", "ForgetCdcGeneration", "InitializeCluster", "LeaveRecovery", "LowerCdcWriter", "Noop"),
    *("LowerSettledTime", "PauseChanges", "PublishCdcGeneration", "PutCdcGenerationData", "RecordArchive"),
    *(
        "RegisterCdcWriter",
        "RequireFeature",
        "ResetPartitions",
        "ResumeChanges",
        "RetryOperation",
        "RevertTablets",
        "SettleVerdicts",
    ),
    *("CreatePrincipal", "GrantRole", "RevokePrincipal", "RevokeRole", "RotatePrincipalKey"),
    *("StagePlan", "ApprovePlan", "RejectPlan", "RequireApprovals"),
    *("SwitchStable", "TakeOver", "TakeSnapshot", "UpdateNode", "WithdrawCdcGeneration"),
}
"""Steps and ends of running operations, reports, last resorts, recoveries, pauses, principals and plans.

The commands of a plan are paused as if they were sent alone.
"""


def test_each_command_declares_its_pause_scope() -> None:
    for name, kind in COMMANDS.items():
        assert "PAUSED_BY" in vars(kind), f"{name} declares no scope"
        assert kind.PAUSED_BY in (*SCOPES, UNPAUSED), name
    assert {name for name, kind in COMMANDS.items() if kind.PAUSED_BY == UNPAUSED} == UNPAUSED_KINDS


def test_the_scope_all_blocks_each_other_command() -> None:
    held = after(PILED, PauseChanges(("all",)))
    for name, kind in COMMANDS.items():
        if kind not in (MigrateTablets, Remove, Replace):  # their fields count, too
            found = paused(held, kind(**dict.fromkeys(kind.__struct_fields__, "")))
            assert (found is None) == (name in UNPAUSED_KINDS), name


def decided(state: ClusterState, command: Command) -> Decision:
    return decide(state, command, EntryContext(state.epoch + 1, "s", 1))


def after(state: ClusterState, command: Command) -> ClusterState:
    found = decided(state, command)
    assert isinstance(found, Accepted), found
    return replace(found.state, epoch=state.epoch + 1)


def code(state: ClusterState, command: Command) -> str:
    found = decided(state, command)
    return found.code if isinstance(found, Rejected) else ""


REPAIR = MigrateTablets((TabletMigration("ks.t", 0, "repair"),))


@pytest.mark.parametrize(
    ("scope", "command"),
    [
        ("schema", DropKeyspace("ks")),
        ("topology", Leave("n1")),
        ("repairs", REPAIR),
        ("zones", AlterZone("z", replicas=2)),
        ("zones", TriggerRebalance("z", 1)),
        ("service", ReconfigureService(3)),
        ("settings", ChangeSettings((("tablet_streams_max", 5),))),
        ("cdc", RequestCdcGeneration(bytes(16))),
        ("registrations", node(9)),
        ("all", DropKeyspace("ks")),
        ("all", Leave("n1")),
        ("all", REPAIR),
    ],
)
def test_a_scope_blocks_its_commands(scope: str, command: Command) -> None:
    held = after(PILED, PauseChanges((scope,), reason="upgrade"))
    found = decided(held, command)
    assert isinstance(found, Rejected)
    assert found.code == "changes_paused"
    assert f"{pause_text(scope)} since epoch 10: upgrade" in found.detail
    assert code(after(held, ResumeChanges((scope,))), command) != "changes_paused"
    assert code(after(PILED, PauseChanges(("balancing", "splits"))), command) != "changes_paused"


def test_pauses_do_not_block_last_resorts() -> None:
    assert code(after(PILED, PauseChanges(("all",))), Assassinate("n1")) != "changes_paused"


@pytest.mark.parametrize("of", ["", "ks", "ks.t"])
def test_a_pause_stops_the_balancer_in_its_scope(of: str) -> None:
    assert advise(PILED, {}).moves
    held = after(PILED, PauseChanges(("balancing",), of))
    assert not advise(held, {}).moves
    assert advise(after(held, ResumeChanges(("balancing",), of)), {}).moves


def test_an_operator_moves_tablets_despite_a_balancer_pause() -> None:
    move = MigrateTablets(advise(PILED, {}).moves[:1])
    assert isinstance(decided(after(PILED, PauseChanges(("balancing",))), move), Accepted)


def test_a_pause_of_splits_blocks_only_decisions() -> None:
    least = replace(PILED, settings=PILED.settings.set("balance_tablets_per_shard_min", 10))
    assert advise(least, {}).resizes
    held = after(least, PauseChanges(("splits",), "ks.t"))
    assert not advise(held, {}).resizes
    assert advise(held, {}).moves


def test_everything_paused_is_the_reason_of_an_empty_plan() -> None:
    assert advise(after(PILED, PauseChanges(("all",))), {}).stop == "paused"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (PauseChanges(()), "bad_field"),
        (PauseChanges(("balancing", "balancing")), "bad_field"),
        (PauseChanges(("holidays",)), "bad_field"),
        (PauseChanges(("schema",), "ks"), "bad_field"),
        (PauseChanges(("balancing",), "ks.u"), "unknown_table"),
        (PauseChanges(("balancing",), "other"), "unknown_keyspace"),
        (PauseChanges(("all",), reason="x" * 10_000), "bad_field"),
        (ResumeChanges(("holidays",)), "bad_field"),
    ],
)
def test_invalid_pauses_are_rejected(command: Command, expected: str) -> None:
    assert code(PILED, command) == expected


def test_a_resume_always_applies() -> None:
    held = after(PILED, PauseChanges(SCOPES))
    assert len(held.pauses) == len(SCOPES)
    assert after(PILED, ResumeChanges(SCOPES)).pauses is PILED.pauses
    resumed = after(held, ResumeChanges(SCOPES))
    assert not resumed.pauses
    same = replace(resumed, epoch=PILED.epoch, changed=PILED.changed)
    assert digest(same) == digest(PILED), "a state without pauses has no such section"


def test_a_dead_node_is_removed_or_replaced_while_topology_is_paused() -> None:
    """CEP-21: topology pauses permit commands after node failures, except with ``all``."""
    (first, second, *_) = sorted(PILED.nodes)
    dead = after(PILED, DeclareDown(first, "burnt"))
    for command in (Remove(first), Replace(second, first)):
        assert code(after(dead, PauseChanges(("topology",))), command) != "changes_paused"
        assert code(after(dead, PauseChanges(("all", "topology"))), command) == "changes_paused"
    alive = after(PILED, PauseChanges(("topology",)))
    assert code(alive, Replace(second, first)) == "changes_paused"
    assert code(alive, Remove("nobody")) == "changes_paused"


def test_a_pause_of_all_keeps_zone_partitions_in_place() -> None:
    state = run_to_idle(with_data("ABC", partitions=1, replicas=1))[0]
    held = done(state, PauseChanges(("all",)))
    assert tried(held, AlterZone("z", replicas=3))[1] == "changes_paused"
    altered = done(state, AlterZone("z", replicas=3), PauseChanges(("all",)))
    assert run_to_idle(altered)[1] == []
    row = full_view(altered, altered.zones["z"], {})["partitions"][0]
    assert row["waits"].endswith("all changes are paused (ringlog resume all)")
    begun = done(altered, ResumeChanges(("all",)), TriggerRebalance("z", altered.epoch), PauseChanges(("all",)))
    ended, asked = run_to_idle(begun)
    assert "MigrateTablets" in asked, "running operations end"
    assert len(ended.tablets["ks.t"].replicas(0)) == 3

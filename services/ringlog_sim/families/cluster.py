"""Cluster, directory and roles: cluster creation, settings, registrations, take-overs, barriers; and the log itself."""

from __future__ import annotations

from ringlog.kernel.commands.cluster.cluster import ChangeSettings, InitializeCluster, Noop, TakeOver
from ringlog.kernel.commands.topology.nodes import DeclareDown, DeclareUp, RegisterNode, UnregisterNode, UpdateNode
from ringlog.kernel.model.state import ClusterState, in_order
from ringlog.runtime.draw import draw_uuid
from ringlog_sim.checks.base import Family
from ringlog_sim.checks.log.answers import Answers, Defects
from ringlog_sim.checks.log.chain import ChainCheck
from ringlog_sim.checks.log.log_ends import Beginnings
from ringlog_sim.checks.log.projections import CacheIsAState, ChangesAreTheDifferences
from ringlog_sim.checks.log.replicas import Replicas
from ringlog_sim.checks.log.terms import Terms
from ringlog_sim.devices.world import Chance


def _initialize(_: ClusterState, __: Chance) -> InitializeCluster:
    return InitializeCluster("again")


def _settings(_: ClusterState, chance: Chance) -> ChangeSettings:
    name, value = chance.pick(
        [
            ("history_entries", 100),
            ("history_entries", 200),
            ("gate_prepared", 0),
            ("gate_prepared", 1),
            ("operations_kept_max", 1),
            ("operations_kept_max", 100),
            ("cdc_generation_lead_us", 1_000_000),
            ("cdc_generation_lead_us", 3_000_000),
            ("cdc_leeway_us", 1_600_000),
            ("cdc_leeway_us", 400_000),
            ("no_such_setting", 1),
            ("ranges_max", -1),
        ]
    )
    more = (("stream_tries_max", 3),) if value == 200 else ()
    return ChangeSettings(((name, value), *more))


def _register(state: ClusterState, chance: Chance) -> RegisterNode:
    taken = [node.name for node in state.nodes.values()]
    name = chance.pick(sorted(taken)) if taken and chance.happens(0.3) else f"x{chance.below(50)}"
    return RegisterNode(
        name=name,
        id=draw_uuid(chance),
        address=f"{name}:{7000 + chance.below(3)}",
        datacenter="dc1",
        rack=chance.pick(["r1", "r2"]),
        shards=chance.between(1, 3),
        ignore_msb=12,
        release="0.1.0",
        features=(),
        capacity=1,
    )


def _update(state: ClusterState, chance: Chance) -> UpdateNode | None:
    """Return an update, but not of a running node's shards, which the node does not read from the log."""
    nodes = [node for _, node in in_order(state.nodes)]
    if not nodes:
        return None
    node = chance.pick(nodes)
    shards = chance.between(0, 3) if node.name.startswith("x") else None
    return UpdateNode(node.id, None, chance.pick(["0.1.0", "0.2.0", "-"]), None, chance.between(1, 3), shards)


def _unregister(state: ClusterState, chance: Chance) -> UnregisterNode | None:
    """Return an unregistration, mostly of a node that does not run. A running node would join sooner or later."""
    names = [node.id for _, node in in_order(state.nodes) if node.name.startswith("x") or chance.happens(0.1)]
    return UnregisterNode(chance.pick(names)) if names else None


def _down(state: ClusterState, chance: Chance) -> DeclareDown | None:
    """Return a declaration of a node as down. The node usually runs, because an operator may be wrong."""
    nodes = [node.id for _, node in in_order(state.nodes)]
    return DeclareDown(chance.pick(nodes), "no heartbeat") if nodes else None


def _up(state: ClusterState, chance: Chance) -> DeclareUp | None:
    down = [node.id for _, node in in_order(state.nodes) if node.down or chance.happens(0.1)]
    return DeclareUp(chance.pick(down), "heartbeat") if down else None


def _take_over(state: ClusterState, chance: Chance) -> TakeOver | None:
    """Return a take-over of a spare role, or of an agent's role with a term that is not above the agent's.

    So operators do not disturb agents.
    """
    if state.terms and chance.happens(0.6):
        role, held = chance.pick(in_order(state.terms))
        return TakeOver(role, f"operator-{chance.below(9)}", max(held.term - chance.below(2), 1))
    spare_term = state.terms.get("spare")
    return TakeOver("spare", f"operator-{chance.below(9)}", (spare_term.term if spare_term else 0) + chance.below(3))


def _noop(_: ClusterState, __: Chance) -> Noop:
    return Noop()


FAMILY = Family(
    name="cluster",
    commands={
        "InitializeCluster": (1, _initialize),
        "ChangeSettings": (3, _settings),
        "RegisterNode": (2, _register),
        "UpdateNode": (1, _update),
        "UnregisterNode": (1, _unregister),
        "RequireFeature": None,
        "EnableFeature": None,
        "TakeSnapshot": None,
        "ConfirmSnapshot": None,
        "RecordArchive": None,
        "TruncateLog": None,
        "PauseChanges": None,
        "ResumeChanges": None,
        # ``tests/sim/test_plans.py`` has authors and approvers.
        **dict.fromkeys(("StagePlan", "ApprovePlan", "RejectPlan", "RequireApprovals")),
        "DeclareDown": (2, _down),
        "DeclareUp": (1, _up),
        "TakeOver": (2, _take_over),
        "Noop": (6, _noop),
    },
    checks=(ChainCheck, Replicas, Answers, Defects, Terms, ChangesAreTheDifferences, CacheIsAState, Beginnings),
)

"""A short history of a cluster: nodes, an operation, a keyspace that is created and dropped, a table and settings."""

from __future__ import annotations

from functools import cache

from ringlog.kernel.commands.cdc.writers import RegisterCdcWriter
from ringlog.kernel.commands.cluster.cluster import ChangeSettings, InitializeCluster, Noop
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace, DropKeyspace
from ringlog.kernel.commands.schema.tables import CreateTable, DropTable
from ringlog.kernel.commands.topology.movements import Join
from ringlog.kernel.commands.topology.nodes import RegisterNode
from ringlog.kernel.fold import fold
from ringlog.kernel.model.outcome import OutcomeKind
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState
from ringlog.kernel.values import CdcOptions, Column, Command, Replication
from ringlog.runtime.draw import SeededDraw, draw_uuid
from ringlog.wire.entries import author_entry
from ringlog.wire.ids import new_state_id
from tests.agents.operation_runner import finish_operations

AT = 1_700_000_000_000_000


def after(state: ClusterState, command: Command, seed: bytes = b"cache") -> ClusterState:
    """Return the state after one more entry, which must apply."""
    draw = SeededDraw(seed + state.epoch.to_bytes(4, "big"))
    encoded = author_entry(
        cluster_id=state.cluster_id or draw_uuid(draw),
        state_id=new_state_id(state.state_id or None, AT, draw.take(8)),
        prev_state_id=state.state_id or None,
        request_id=draw_uuid(draw),
        since_epoch=state.epoch,
        submitter="tester",
        at=AT,
        command=command,
    )
    folded = fold(state, encoded.entry)
    assert folded.outcome.kind is OutcomeKind.APPLIED, folded.outcome
    return folded.state


@cache
def history(tokens: int = 3) -> tuple[ClusterState, ...]:
    """Return the states of consecutive epochs, from the initial entry on: two nodes, and the first one owns that many
    ``tokens``.
    """
    node = "11111111-1111-4111-8111-111111111111"
    other = "33333333-3333-4333-8333-333333333333"
    columns = (Column("k", "text"), Column("v", "double"))
    table = "22222222-2222-4222-8222-222222222222"
    states = [after(EMPTY_STATE, InitializeCluster("cached"))]
    commands: tuple[Command, ...] = (
        RegisterNode("n1", node, "127.0.0.1:1", "dc", "r", 2, 12, "1", (), 1),
        Join(node, tuple(range(-(2**62), 2**62 + 1, 2**63 // (tokens - 1))), bytes(16)),
        CreateKeyspace("ks", Replication("simple", 1)),
        RegisterNode("n2", other, "127.0.0.1:2", "dc", "r", 2, 12, "1", (), 1),
        Join(other, (77,), bytes(16)),
        CreateTable("ks", "t", table, columns, ("k",), (), CdcOptions(enabled=True)),
        RegisterCdcWriter("spark", "a"),
        ChangeSettings((("operations_kept_max", 9),)),
        Noop(),
        DropTable("ks", "t"),
        DropKeyspace("ks"),
    )
    for command in commands:
        states.append(after(states[-1], command))
        states += finish_operations(states[-1], after)
    return tuple(states)


def another_cluster() -> ClusterState:
    """Return a younger cluster with the same name."""
    return after(EMPTY_STATE, InitializeCluster("cached"), b"another")

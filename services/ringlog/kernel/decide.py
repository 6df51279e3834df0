"""From a command to its decision: the one place that knows which rule belongs to which command.

Every rule is a pure function ``(state, command, context) -> Decision`` of a family module. Rules check the command's
own fields first (code ``bad_field``), then what they need of the state, and only then make the next state. What that
makes larger than readers can carry is refused here, for all of them (``kernel.carried``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ringlog.kernel.carried import too_large
from ringlog.kernel.commands import (
    cdc,
    cdc_clock,
    cdc_expiry,
    cluster,
    keyspaces,
    movements,
    nodes,
    operations,
    schema,
    user_types,
)
from ringlog.kernel.commands import model as m
from ringlog.kernel.counts import too_many
from ringlog.kernel.outcome import Accepted, Context, Decision, Rejected
from ringlog.kernel.state import ClusterState

RULES: Final[dict[type[m.Command], Callable[[ClusterState, Any, Context], Decision]]] = {
    m.InitializeCluster: cluster.decide_initialize_cluster,
    m.ChangeSettings: cluster.decide_change_settings,
    m.TakeOver: cluster.decide_take_over,
    m.Noop: cluster.decide_noop,
    m.RegisterNode: nodes.decide_register_node,
    m.UnregisterNode: nodes.decide_unregister_node,
    m.DeclareDown: nodes.decide_declare_down,
    m.DeclareUp: nodes.decide_declare_up,
    m.Join: movements.decide_join,
    m.Leave: movements.decide_leave,
    m.Move: movements.decide_move,
    m.Replace: movements.decide_replace,
    m.Remove: movements.decide_remove,
    m.Assassinate: movements.decide_assassinate,
    m.Rebuild: movements.decide_rebuild,
    m.AdvanceOperation: operations.decide_advance_operation,
    m.CancelOperation: operations.decide_cancel_operation,
    m.FailOperation: operations.decide_fail_operation,
    m.RetryOperation: operations.decide_retry_operation,
    m.CreateKeyspace: keyspaces.decide_create_keyspace,
    m.AlterKeyspace: keyspaces.decide_alter_keyspace,
    m.DropKeyspace: keyspaces.decide_drop_keyspace,
    m.CreateTable: schema.decide_create_table,
    m.AlterTable: schema.decide_alter_table,
    m.DropTable: schema.decide_drop_table,
    m.CreateType: user_types.decide_create_type,
    m.AlterType: user_types.decide_alter_type,
    m.DropType: user_types.decide_drop_type,
    m.RequestCdcGeneration: cdc.decide_request_cdc_generation,
    m.PutCdcGenerationData: cdc.decide_put_cdc_generation_data,
    m.RegisterCdcWriter: cdc.decide_register_cdc_writer,
    m.AdvanceCdcWriter: cdc.decide_advance_cdc_writer,
    m.CommitCdcGeneration: cdc.decide_commit_cdc_generation,
    m.PublishCdcGeneration: cdc.decide_publish_cdc_generation,
    m.CloseCdcGeneration: cdc.decide_close_cdc_generation,
    m.ExpireCdcGeneration: cdc_expiry.decide_expire_cdc_generation,
    m.ForgetCdcGeneration: cdc_expiry.decide_forget_cdc_generation,
    m.FenceCdcWriter: cdc.decide_fence_cdc_writer,
    m.LowerCdcWriter: cdc_clock.decide_lower_cdc_writer,
    m.WithdrawCdcGeneration: cdc_clock.decide_withdraw_cdc_generation,
}

DEFECT: Final = "broken_rule"
"""The code of a decision that failed: an author answers it as a rejection, a fold halts on it."""


def decide(state: ClusterState, command: m.Command, context: Context) -> Decision:
    """What ``command`` does to ``state``; never raises.

    A rule that raises has a defect. Who authors must survive it, or one request could stop every validator that reads
    it, so it becomes a rejection (code ``broken_rule``): nothing is appended.
    """
    try:
        decision = RULES[type(command)](state, command, context)
        if isinstance(decision, Accepted):
            assert decision.state.epoch == state.epoch, "the epoch belongs to the fold"
            assert decision.state.history is state.history, "the history belongs to the fold"
            return too_many(state, decision.state) or too_large(state, decision.state, command) or decision
        return decision
    except Exception as defect:
        return Rejected(DEFECT, f"{type(command).__name__}: {type(defect).__name__}: {defect}")

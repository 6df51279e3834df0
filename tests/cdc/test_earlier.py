"""Rows of earlier writes: the job reaches the kernel's verdicts, one by one and in batches, at any decision time."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from ringlog.kernel.generations.admission import rules_of, verdict
from ringlog.kernel.model.state import ClusterState
from ringlog.wire.records import Mutation, decode_cdc_row, encode_mutation
from ringlog_cdc.bulk.arrow import going_out
from ringlog_cdc.bulk.rows import Input, PartContext, outgoing
from ringlog_cdc.columnar.routing import CODES, ROUTED, SKIPPED, RoutingTable
from ringlog_cdc.plan.decisions import context_of, table_of
from tests.kernel.verdicts.logs import random_log, writes

LOGS = 12


def table_by(state: ClusterState) -> RoutingTable:
    """Return the routing table of a part decided at that epoch, read back from its stored context."""
    context = json.loads(json.dumps(context_of(state, "mutations", 4, 1_000_000)))
    return table_of(context, (), state)


def part_by(state: ClusterState) -> PartContext:
    return PartContext(
        "mutations", state.cluster_id or "00000000-0000-7000-8000-000000000001", "w-0", state.epoch, 1_000_000
    )


@pytest.mark.parametrize("seed", range(LOGS))
def test_the_job_agrees_with_the_kernel(seed: int) -> None:
    log = random_log(seed)
    states = [state for state in log if state.settled.until]
    every = list(writes(states))
    for state in states[-1:] + states[:1]:
        rules, table, part = rules_of(state), table_by(state), part_by(state)
        judged = [(write, at) for write, at in every if verdict(rules, write, at) is not None]
        for number, (write, at) in enumerate(judged):
            found = verdict(rules, write, at)
            assert found is not None
            outs = outgoing(table, [Input(0, number, at, b"k", encode_mutation(write), write)], part)
            is_logged = found.version is not None and found.version.shape.cdc
            reason = outs[0].reason
            if reason == SKIPPED:
                assert not is_logged or found.code
            elif reason == ROUTED:
                assert is_logged
                assert found.version is not None
                row = decode_cdc_row(outs[0].value)
                assert found.version.epoch <= row.epoch <= state.epoch
                assert table_at(log, write, row.epoch) == found.version.id
            else:
                assert CODES[reason] == found.code


def table_at(states: list[ClusterState], write: Mutation, epoch: int) -> str:
    """Return the id of the table that a reader with this epoch assigns to a row."""
    known = [state for state in states if state.epoch <= epoch]
    found = known[-1].tables.get(f"{write.keyspace}.{write.table}") if known else None
    return found.id if found is not None else ""


@pytest.mark.parametrize("seed", range(LOGS))
def test_batches_match_single_decisions(seed: int) -> None:
    states = [state for state in random_log(seed) if state.settled.until]
    state = states[-1] if states else random_log(0)[-1]
    rules, table, part = rules_of(state), table_by(state), part_by(state)
    judged = [(write, at) for write, at in writes(states) if verdict(rules, write, at) is not None]
    inputs = [Input(0, number, at, b"k", encode_mutation(write), write) for number, (write, at) in enumerate(judged)]
    if not inputs:
        return
    batch = pa.record_batch(
        {
            "partition": pa.array([0] * len(inputs), pa.int32()),
            "offset": pa.array([item.offset for item in inputs], pa.int64()),
            "appended": pa.array([item.appended for item in inputs], pa.int64()),
            "key": pa.array([item.key for item in inputs], pa.binary()),
            "value": pa.array([item.value for item in inputs], pa.binary()),
        }
    )
    together = going_out(table, batch, part)
    alone = outgoing(table, inputs, part)
    loud = [out for out in alone if out.reason >= ROUTED]
    reasons = [reason for reason in together.reasons.tolist() if reason >= ROUTED]
    values = [value for value, reason in zip(together.values.to_pylist(), together.reasons, strict=True) if reason >= 0]
    assert reasons == [out.reason for out in loud]
    assert values == [out.value for out in loud]

"""Rows of earlier writes: the job reaches the kernel's verdicts, one by one and in batches, at any decision time."""

from __future__ import annotations

import json
from itertools import pairwise
from random import Random

import pyarrow as pa
import pytest

from ringlog.kernel.generations.admission import rules_of, verdict
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import replace
from ringlog.wire.records import Cell, Mutation, decode_cdc_row, decode_dead_letter, encode_mutation
from ringlog_cdc.bulk.arrow import going_out
from ringlog_cdc.bulk.routing import bulk_table
from ringlog_cdc.definition.decision import Input, PartContext, decide
from ringlog_cdc.definition.reasons import CODES, NUMBERS, ROUTED, SKIPPED
from ringlog_cdc.definition.routing_table import RoutingTable
from ringlog_cdc.plan.decisions import context_of, table_of
from ringlog_sim.checks.cdc.judge import VerdictTimes
from tests.kernel.verdicts.logs import TIMES, UNIT, random_log, writes
from tests.record_keys import record_key

LOGS = 12


def table_by(state: ClusterState) -> RoutingTable:
    """Return the routing table of a part decided at that epoch, read back from its stored context."""
    context = json.loads(json.dumps(context_of(state, "mutations", 4, 1_000_000)))
    context["cluster_id"] = state.cluster_id or "00000000-0000-7000-8000-000000000001"
    return table_of(context, (), state)


def part_by(state: ClusterState) -> PartContext:
    return PartContext("mutations", "w-0", state.epoch, 1_000_000)


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
            outs = decide(table, Input(0, number, at, record_key(write), encode_mutation(write), write), part)
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


def batch_of(inputs: list[Input]) -> pa.RecordBatch:
    """Return the records as Spark passes them."""
    return pa.record_batch(
        {
            "partition": pa.array([0] * len(inputs), pa.int32()),
            "offset": pa.array([item.offset for item in inputs], pa.int64()),
            "appended": pa.array([item.appended for item in inputs], pa.int64()),
            "key": pa.array([item.key for item in inputs], pa.binary()),
            "value": pa.array([item.value for item in inputs], pa.binary()),
        }
    )


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
    inputs = [
        Input(0, number, at, record_key(write), encode_mutation(write), write)
        for number, (write, at) in enumerate(judged)
    ]
    if not inputs:
        return
    together = going_out(bulk_table(table), batch_of(inputs), part)
    alone = [out for item in inputs for out in decide(table, item, part)]
    loud = [out for out in alone if out.reason >= ROUTED]
    reasons = [reason for reason in together.reasons.tolist() if reason >= ROUTED]
    values = [value for value, reason in zip(together.values.to_pylist(), together.reasons, strict=True) if reason >= 0]
    assert reasons == [out.reason for out in loud]
    assert values == [out.value for out in loud]


def random_writes(log: list[ClusterState], chance: Random) -> list[tuple[Mutation, int]]:
    """Return writes of three random columns that name no version, or one of the log, with their append times."""
    base = Mutation(None, None, "ks", "t", 0, None, "UPDATE", (b"a",), (b"\0\0\0\1",), ())
    versions = sorted({found.version for state in log for found in state.tables.values()})
    found = []
    for _ in range(100):
        names = chance.sample(("v", "v3", "v4", "v5", "nosuch"), 3)
        cells = tuple(Cell(name, b"\0\0\0\1") for name in names)
        time, version = chance.choice(TIMES) * UNIT, chance.choice([None, None, *versions])
        found.append((replace(base, timestamp=time, cells=cells, table_version=version), time))
    return found


def test_a_letter_names_the_first_column_that_the_deciding_version_lacks() -> None:
    """An independent model of the simulator finds the version. Many letters are about columns of a later version."""
    about_later = 0
    for seed in range(LOGS):
        log, times, chance = random_log(seed), VerdictTimes(), Random(seed)
        for before, after in pairwise(log):
            times.observe(before, after)
        state = log[-1]
        if not state.settled.until:
            continue
        rules, table, part = rules_of(state), table_by(state), part_by(state)
        judged = [one for one in random_writes(log, chance) if verdict(rules, *one) is not None]
        if not judged:
            continue
        inputs = [
            Input(0, number, at, record_key(write), encode_mutation(write), write)
            for number, (write, at) in enumerate(judged)
        ]
        alone = [
            (number, out.reason, out.value) for number, item in enumerate(inputs) for out in decide(table, item, part)
        ]
        made = going_out(bulk_table(table), batch_of(inputs), part)
        together = zip(made.numbers.tolist(), made.reasons.tolist(), made.values.to_pylist(), strict=True)
        for number, reason, value in [*alone, *together]:
            if reason != NUMBERS["unknown_column"]:
                continue
            write, at = judged[number]
            version = times.table_of(write, at)
            assert not isinstance(version, str)
            columns = {column.name for column in version.columns}
            first = next(cell.column for cell in write.cells if cell.column not in columns)
            assert f"(column {first!r}; " in decode_dead_letter(value).detail
            newest = state.tables.get(f"{write.keyspace}.{write.table}")
            about_later += newest is not None and first in {column.name for column in newest.columns}
    assert about_later > 5

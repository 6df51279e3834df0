"""Rows of tables in tablets: single and in batches, from stored contexts, across table versions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ringlog.kernel.commands.cdc.verdicts import SettleVerdicts
from ringlog.kernel.commands.schema.tables import DropTable
from ringlog.kernel.generations.acceptance import generation_at, stream_of
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.ring.murmur3 import token_of
from ringlog.kernel.values import TabletOptions, replace
from ringlog.wire.records import Mutation, encode_mutation
from ringlog_cdc.bulk.arrow import going_out
from ringlog_cdc.bulk.routing import bulk_table
from ringlog_cdc.definition.decision import Input, PartContext, decide
from ringlog_cdc.definition.routing_table import RoutingTable
from ringlog_cdc.plan.decisions import context_of, table_of
from tests.cdc.test_earlier import batch_of
from tests.kernel.entries import applied
from tests.kernel.generations.test_tablet_streams import LOGGED, coordinated, cut, initial_state
from tests.kernel.tablets import clusters
from tests.record_keys import record_key

KEYS = tuple(number.to_bytes(4, "big") for number in range(12))


@pytest.fixture(scope="module")
def start() -> ClusterState:
    return applied(initial_state(), LOGGED)


def stored(state: ClusterState) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(context_of(state, "mutations", 4, 1_000_000)))
    return found


def write(key: bytes, at: int) -> Mutation:
    return Mutation(None, None, "ks", "t", at, None, "INSERT", (key,), (), ())


def streams_of(table: RoutingTable, key: bytes, at: int) -> set[bytes]:
    """Return the streams of a write appended at ``at``, by both paths."""
    mutation, part = write(key, at), PartContext("mutations", "one", 9, 1_000_000)
    item = Input(0, 0, at, record_key(mutation), encode_mutation(mutation), mutation)
    (alone,) = decide(table, item, part)
    (among,) = going_out(bulk_table(table), batch_of([item]), part).keys.to_pylist()
    return {alone.key, among}


def wanted(state: ClusterState, key: bytes, at: int, table: str) -> set[bytes]:
    generation = generation_at(state.generations, at)
    assert generation is not None
    return {stream_of(generation, token_of(key), table)}


def test_a_stored_context_returns_equal_streams(start: ClusterState) -> None:
    later = coordinated(cut(start), 10_000_000)
    first, second = (generation.timestamp for generation in later.generations)
    context = stored(start)
    for key in KEYS:
        for state in (start, later):
            assert streams_of(table_of(context, (), state), key, first) == wanted(start, key, first, LOGGED.id)
        for at in (first, second):
            assert streams_of(table_of(stored(later), (), later), key, at) == wanted(later, key, at, LOGGED.id)


def test_a_write_of_a_dropped_table_keeps_its_streams(start: ClusterState) -> None:
    again = replace(clusters.create_table("t", TabletOptions(8), 2), cdc=LOGGED.cdc)
    state = applied(start, SettleVerdicts(5_000_000), DropTable("ks", "t"), again)
    table = table_of(stored(state), (), state)
    for key in KEYS:
        assert streams_of(table, key, 4_000_000) == wanted(state, key, 4_000_000, LOGGED.id)
        assert streams_of(table, key, 6_000_000) == wanted(state, key, 6_000_000, again.id)
    assert wanted(state, KEYS[0], 4_000_000, LOGGED.id) != wanted(state, KEYS[0], 4_000_000, again.id)

"""The audit rebuilds rows from the CDC log. Random histories of all write operations must give the rows that a node
returns.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from ringlog.client.data.row_merge import merged
from ringlog.kernel.generations import statements
from ringlog.kernel.generations.statements import TableShape
from ringlog.node.servers.http_server import shown
from ringlog.wire.records import Mutation
from ringlog_audit.copies import LoggedPartition, answered, deviations
from ringlog_audit.rules.compound import STATIC, AuditColumns
from ringlog_cdc.definition.row import plain_piece
from ringlog_cdc.definition.split import split
from tests.kernel.rows.histories import KEYS, SECOND, SHAPE, TYPES, draw, mutation_of

COLUMNS = AuditColumns(("text",), ("int", "int"), frozenset("s"), {name: TYPES[name] for name in KEYS})
OWN = frozenset(("s", "v", "w", *KEYS))


def logged(write: Mutation, number: int, shape: TableShape = SHAPE) -> list[dict[str, Any]]:
    """Return the decoded log rows of a write."""
    pieces = split(write, shape) if statements.is_compound(write, shape) else (plain_piece(write),)
    return [
        {
            "timestamp": piece.timestamp,
            "operation": piece.operation,
            "ttl": piece.ttl,
            "clustering_key": list(piece.clustering_key),
            "cells": [{"column": cell.column, "value": cell.value} for cell in piece.cells],
            "deleted": list(piece.deleted),
            "deleted_elements": [{"column": one.column, "keys": list(one.keys)} for one in piece.deleted_elements],
            "source_partition": 0,
            "source_offset": number,
        }
        for piece in pieces
    ]


def history(chance: Random) -> list[Mutation]:
    return [mutation_of([draw(chance) for _ in range(chance.choice((1, 1, 3)))]) for _ in range(chance.randint(1, 15))]


def made_of(writes: list[Mutation], chance: Random) -> LoggedPartition:
    """Put the writes into a partition in random order, some of them twice. The rows of one write keep their order."""
    partition = LoggedPartition(COLUMNS)
    numbered = [*enumerate(writes), *(pair for pair in enumerate(writes) if chance.random() < 0.2)]
    for number, write in chance.sample(numbered, len(numbered)):
        for row in logged(write, number):
            partition.put(row)
    return partition


def test_random_histories() -> None:
    met = 0
    for seed in range(120):
        chance = Random(seed)
        writes = history(chance)
        partition = made_of(writes, chance)
        for now in (5, 15, 29, 60):
            answer = shown(merged(writes, SHAPE, now * SECOND))
            found = answered(answer, COLUMNS, {})
            assert deviations(partition, found, OWN, now * SECOND, now * SECOND) == [], (seed, now)
            met += len(found)
    assert met > 300


def test_a_row_near_its_expiry_may_be_present_or_missing() -> None:
    chance = Random(1)
    for seed in range(60):
        writes = history(Random(seed))
        partition = made_of(writes, chance)
        for now in range(1, 40, 3):
            found = answered(shown(merged(writes, SHAPE, now * SECOND)), COLUMNS, {})
            assert deviations(partition, found, OWN, (now - 2) * SECOND, (now + 2) * SECOND) == [], (seed, now)


@pytest.mark.parametrize("lost", [True, False])
def test_a_deviation_names_row_and_column(lost: bool) -> None:
    differing = 0
    for seed in range(60):
        chance = Random(seed)
        writes = history(chance)
        partition, now = made_of(writes if lost else writes[:-1], chance), 60 * SECOND
        held = writes[:-1] if lost else writes
        mine, theirs = (merged(one, SHAPE, now) for one in (held, writes if lost else writes[:-1]))
        found = deviations(partition, answered(shown(mine), COLUMNS, {}), OWN, now, now)
        seen = answered(shown(theirs), COLUMNS, {}) == answered(shown(mine), COLUMNS, {})
        assert (found == []) == seen, seed
        differing += not seen
    assert differing > 10


def test_a_deviation_contains_the_values_of_node_and_log() -> None:
    partition = LoggedPartition(COLUMNS)
    row = {"timestamp": 5, "ttl": None, "clustering_key": [b"\0", b"\1"], "deleted": [], "deleted_elements": []}
    said = {"cells": [{"column": "w", "value": b"of the log"}], "source_partition": 0, "source_offset": 1}
    partition.put(row | said | {"operation": 2})
    there = {(b"\0", b"\1"): {"w": b"\xff" * 99, "v": b"\0"}, (b"\2",): {}, STATIC: {"s": b"\3"}}
    assert deviations(partition, there, OWN, 9, 9) == [
        "static columns, exists only on the node",
        "row [00 01], column v: 00 on the node, null in the log",
        f"row [00 01], column w: {'ff' * 24}… on the node, {b'of the log'.hex()} in the log",
        "row [02], exists only on the node",
    ]
    assert deviations(partition, {}, OWN, 9, 9) == ["row [00 01], exists only in the log"]


def test_cells_of_a_column_that_was_dropped_keep_no_row() -> None:
    partition = LoggedPartition(COLUMNS)
    row = {"timestamp": 5, "ttl": None, "clustering_key": [b"\0", b"\1"], "deleted": [], "deleted_elements": []}
    said = {"cells": [{"column": "w", "value": b"x"}], "source_partition": 0, "source_offset": 1}
    partition.put(row | said | {"operation": 1})
    assert partition.seen(9, OWN) == {(b"\0", b"\1"): {"w": b"x"}}
    assert partition.seen(9, OWN - {"w"}) == {}


@pytest.mark.parametrize(
    "answer", [{}, {"static": [], "rows": []}, {"static": {}, "rows": [{"clustering_key": ["x"]}]}]
)
def test_an_invalid_answer_is_rejected(answer: dict[str, Any]) -> None:
    with pytest.raises((AttributeError, KeyError, TypeError, ValueError)):
        answered(answer, COLUMNS, {})

"""The audit's images and the job's, which share nothing, are the same: random histories of every kind of write."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from ringlog.audit.compound import AuditColumns, elements, is_compound, log_rows, plain_row
from ringlog.audit.images import Images, Wanted
from ringlog.kernel.generations import statements
from ringlog.wire.codec import decode
from ringlog.wire.records import encode_mutation
from ringlog_cdc.images.define import imaged
from ringlog_cdc.pieces import plain_piece
from ringlog_cdc.split import Piece, split
from tests.cdc.images.memory import MemoryStates
from tests.cdc.images.tables import image_table
from tests.client.cdc.test_table import TABLE
from tests.kernel.rows.histories import KEYS, SECOND, SHAPE, TYPES, draw, mutation_of

COLUMNS = AuditColumns(("text",), ("int", "int"), frozenset("s"), {name: TYPES[name] for name in KEYS})


def said(piece: Piece) -> tuple[Any, ...]:
    values = {
        one.column: elements(TYPES[one.column], one.value or b"") if one.column in KEYS else one.value
        for one in piece.cells
    }
    taken = {one.column: set(one.keys) for one in piece.deleted_elements}
    place = (piece.timestamp, piece.batch_seq_no, piece.end_of_batch, piece.operation, piece.ttl)
    return (*place, piece.clustering_key, values, set(piece.deleted), taken)


@pytest.mark.parametrize("preimage", ["false", "true", "full"])
@pytest.mark.parametrize("keys_only", [False, True])
def test_random_histories(preimage: str, keys_only: bool) -> None:
    for seed in range(30):
        chance = Random(seed)
        wanted = Wanted(preimage, seed % 2 > 0 or preimage == "false", ("v", "w", *KEYS), ("s",))
        table = image_table(TABLE.columns, TABLE.clustering_key, preimage, wanted.postimage, partition=("p",))
        states, audited = MemoryStates(), Images()
        for number in range(chance.randint(1, 15)):
            now = (5 + 3 * number) * SECOND
            mutation = mutation_of([draw(chance) for _ in range(chance.choice((1, 1, 3)))])
            _, record = decode(encode_mutation(mutation))
            compound = statements.is_compound(mutation, SHAPE)
            assert is_compound(record, COLUMNS) == compound
            pieces = split(mutation, SHAPE) if compound else (plain_piece(mutation),)
            made = imaged(states, "k.t", table, b"p", pieces, now, keys_only)
            for state in made.states.items():
                states.put(*state)
            logged = log_rows(record, COLUMNS, keys_only) if compound else plain_row(record, keys_only)
            rows = audited.rows("k.t", b"p", record, logged, COLUMNS, wanted, now)
            found = [
                (r.timestamp, r.sequence, r.last, r.operation, r.ttl, r.clustering_key, r.values, r.deleted, r.taken)
                for r in rows
            ]
            assert found == [said(piece) for piece in made.pieces], (seed, number)

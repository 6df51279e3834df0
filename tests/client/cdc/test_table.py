"""A table rebuilt from its log equals the table: random histories of all operations against a brute-force model.

The fold gets the rows of the log in any order, some of them twice.
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from random import Random

from ringlog.client.cdc.copies.partition import FoldedShape
from ringlog.kernel.changes import TableChange
from ringlog.kernel.cql.types import serialize
from ringlog.kernel.rows.log_rows import fold
from ringlog.kernel.rows.partition import PartitionState, Range
from ringlog.kernel.rows.reading import next_expiry, seen
from ringlog.kernel.values import CdcOptions, Column, replace
from ringlog.wire.records import CdcRow, Cell, DeletedElements
from ringlog_cdc.definition.split import Piece, split
from tests.kernel.rows import histories
from tests.kernel.rows.histories import KINDS, SECOND, TYPES, Statement, draw, element_key, model, mutation_of, viewed

TABLE = TableChange(
    epoch=1,
    id="",
    keyspace="ks",
    name="t",
    columns=tuple(Column(name, kind, name == "s") for name, kind in TYPES.items()),
    partition_key=("p",),
    clustering_key=("c", "d"),
    cdc=CdcOptions(enabled=True),
    version="",
    changed=1,
    committed_by_log=True,
)
SHAPE = FoldedShape(TABLE)

# ------------------------------------------------------------------------------------------------------ rows of the log


def rows_of(statement: Statement) -> tuple[CdcRow, ...]:
    """Return the log rows of a statement: live cells with their time to live, dead ones without."""
    base = row(2 if statement.kind == "insert" else 1, statement.at, statement.key)
    match statement.kind:
        case "partition_delete":
            return (replace(base, operation=4),)
        case "row_delete":
            return (replace(base, operation=3),)
        case "range_delete":
            start, start_in, end, end_in = statement.bounds
            first = replace(row(5 if start_in else 6, statement.at, start), end_of_batch=False)
            return first, replace(row(7 if end_in else 8, statement.at, end), batch_seq_no=1)
    live = tuple(Cell(name, serialize(TYPES[name], value)) for name, value in statement.cells if value is not None)
    dead = tuple(name for name, value in statement.cells if value is None) + statement.replaced
    taken = tuple(
        DeletedElements(name, tuple(element_key(name, key) for key in keys)) for name, keys in statement.taken
    )
    rows = [replace(base, cells=live, ttl=statement.ttl)] if live or statement.kind == "insert" else []
    if dead or taken:
        rows.append(replace(base, operation=1, deleted=dead, deleted_elements=taken))
    return tuple(
        replace(found, batch_seq_no=number, end_of_batch=number == len(rows) - 1) for number, found in enumerate(rows)
    )


def row(operation: int, at: int, key: tuple[int, ...]) -> CdcRow:
    return CdcRow(
        bytes(16), 0, bytes(16), 0, operation, None, True, "ks", "t", None, "m", 0, 0, at,
        (b"p",), tuple(serialize("int", part) for part in key), (), (),
    )  # fmt: skip


def test_random_histories_rebuild_the_table_at_every_instant() -> None:
    met: Counter[str] = Counter()
    for seed in range(400):
        chance = Random(seed)
        history = [draw(chance) for _ in range(chance.randint(1, 25))]
        met.update(statement.kind for statement in history)
        arrivals = [*history, *chance.sample(history, len(history) // 3)]
        chance.shuffle(arrivals)
        state = PartitionState()
        for statement in arrivals:
            state = fold(state, rows_of(statement), SHAPE.columns)
        for now in (0, 15 * SECOND, 31 * SECOND, 60 * SECOND):
            got = seen(state, SHAPE.columns, now)
            static, rows = model(history, now)
            assert viewed(got) == (static, rows), (seed, now)
            assert bool(got) == bool(rows or static), (seed, now)
            keys = [found.clustering_key for found in got if found.clustering_key is not None]
            assert keys == sorted(keys, key=SHAPE.columns.order)
    assert set(met) == set(KINDS)


def test_the_log_of_random_mutations_rebuilds_the_table() -> None:
    """The pipeline splits each mutation into these rows; the model reads the statements."""
    for seed in range(300):
        chance = Random(seed)
        history, state, latest = [], PartitionState(), chance.choice((3, 30))
        for _ in range(chance.randint(1, 6)):
            statements = [draw(chance, latest) for _ in range(chance.randint(1, 5))]
            history += statements
            for _, pieces in groupby(
                split(mutation_of(statements), histories.SHAPE), key=lambda piece: piece.timestamp
            ):
                rows = [row_of(piece) for piece in pieces]
                state = fold(state, rows, SHAPE.columns)
        for now in (0, 15 * SECOND, 60 * SECOND):
            assert viewed(seen(state, SHAPE.columns, now)) == model(history, now), (seed, now)


def row_of(piece: Piece) -> CdcRow:
    return replace(
        row(piece.operation, piece.timestamp, ()),
        batch_seq_no=piece.batch_seq_no,
        end_of_batch=piece.end_of_batch,
        ttl=piece.ttl,
        clustering_key=piece.clustering_key,
        cells=piece.cells,
        deleted=piece.deleted,
        deleted_elements=piece.deleted_elements,
    )


def test_the_order_of_arrival_makes_no_difference() -> None:
    for seed in range(60):
        chance = Random(seed)
        history = [draw(chance) for _ in range(12)]
        views = set()
        for _ in range(4):
            chance.shuffle(history)
            state = PartitionState()
            for statement in history:
                state = fold(state, rows_of(statement), SHAPE.columns)
            views.add(str(seen(state, SHAPE.columns, 31 * SECOND)))
        assert len(views) == 1, seed


def test_images_change_nothing_and_the_next_expiry_is_known() -> None:
    live = Cell("v", serialize("int", 1))
    written = fold(PartitionState(), [replace(row(1, SECOND, (1, 1)), cells=(live,), ttl=5)], SHAPE.columns)
    images = [replace(row(code, 9 * SECOND, (1, 1)), cells=(live,)) for code in (0, 9)]
    assert fold(written, images, SHAPE.columns) == written
    assert next_expiry(written, 0) == 6 * SECOND
    assert next_expiry(written, 6 * SECOND) is None
    assert len(seen(written, SHAPE.columns, 6 * SECOND - 1)) == 1
    assert seen(written, SHAPE.columns, 6 * SECOND) == ()


def test_a_table_without_clustering_columns_has_one_row_in_a_partition() -> None:
    table = replace(TABLE, clustering_key=(), columns=(Column("p", "text"), Column("v", "int")))
    shape = FoldedShape(table)
    state = fold(PartitionState(), [replace(row(2, 1, ()), cells=(Cell("v", serialize("int", 3)),))], shape.columns)
    (found,) = seen(state, shape.columns, 1)
    assert (found.clustering_key, dict(found.values), dict(found.static)) == ((), {"v": serialize("int", 3)}, {})
    assert seen(fold(state, [row(4, 1, ())], shape.columns), shape.columns, 1) == ()


def test_a_range_uses_the_order_of_the_type_instead_of_bytes() -> None:
    one, minus = serialize("int", 1), serialize("int", -1)
    assert minus > one
    both = Range((minus,), True, (one,), False, 9)
    assert [SHAPE.columns.covers(both, (serialize("int", c), one)) for c in (-2, -1, 0, 1, 2)] == [
        False,
        True,
        True,
        False,
        False,
    ]

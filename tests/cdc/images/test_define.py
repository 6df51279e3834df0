"""Images of writes: ScyllaDB's black-box cases, the single rules, and random histories against a model.

For each write, the model scans all statements since the start (``tests.kernel.rows.histories``).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from ringlog.kernel.generations.statements import TableShape
from ringlog.kernel.rows.log_rows import fold
from ringlog.kernel.rows.partition import PartitionState
from ringlog.kernel.rows.reading import seen
from ringlog.kernel.values import Column, replace
from ringlog.wire.records import Mutation, MutationStatement
from ringlog_cdc.definition.image_states import GRACE
from ringlog_cdc.definition.image_tables import ImageTable
from ringlog_cdc.definition.images import imaged
from ringlog_cdc.definition.split import Piece, split
from tests.cdc.images.memory import MemoryStates
from tests.cdc.images.tables import Shown, image_table, shown
from tests.cdc.test_split import NO_ROWS, T, bounded, change, write
from tests.client.cdc.test_table import SHAPE, TABLE
from tests.kernel.rows import histories
from tests.kernel.rows.histories import SECOND, TYPES, Statement, draw, model, mutation_of

UPDATE, INSERT, ROW, PARTITION, RANGE = "UPDATE", "INSERT", "ROW_DELETE", "PARTITION_DELETE", "RANGE_DELETE"
INTS = [Column(name, "int") for name in ("pk", "ck", "v1", "v2")]
ROWS, SINGLE = TableShape(1, 1, True, ("int",), ("int",), ("s",)), TableShape(1, 0, True, ("int",))


class Log:
    """The log of one partition of a table; ``write`` returns the numbered rows of a write in order."""

    def __init__(
        self, table: ImageTable, shape: TableShape, only_keys: bool = False, columns: Sequence[Column] = INTS
    ) -> None:
        self.states = MemoryStates()
        self.pieces: list[Piece] = []
        self._table = table
        self._shape = shape
        self._only_keys = only_keys
        self._types = {column.name: column.type for column in columns}

    def write(self, mutation: Mutation, now: int) -> tuple[Piece, ...]:
        pieces = split(mutation, self._shape)
        self.pieces += pieces
        found = imaged(self.states, "k.t", self._table, b"p", pieces, now, self._only_keys)
        for state in found.states.items():
            self.states.put(*state)
        for one, following in zip(found.pieces, (*found.pieces[1:], None), strict=False):
            ends = following is None or following.timestamp != one.timestamp
            assert (one.end_of_batch, following is None or following.batch_seq_no) == (
                ends,
                following is None or (0 if ends else one.batch_seq_no + 1),
            )
        return found.pieces

    def shown(self, now: int, *changes: MutationStatement) -> list[Shown]:
        return [shown(piece, self._types) for piece in self.write(write(*changes), now)]


def log(columns: list[Column] = INTS, shape: TableShape = ROWS, only_keys: bool = False, **options: Any) -> Log:
    return Log(image_table(columns, **options), shape, only_keys, columns)


# ------------------------------------------------------------------------------------------------- black-box cases


def test_e_two_inserts_and_a_delete_without_clustering_key() -> None:
    """Insert; preimage, insert; preimage, partition delete."""
    found = log([INTS[0], *INTS[2:]], SINGLE, clustering=(), postimage=False)
    assert [row[0] for row in found.shown(T, change(INSERT, None, T, v1=1, v2=2))] == [2]
    assert found.shown(T, change(INSERT, None, T + 1, v1=3)) == [
        (0, (), {"v1": 1, "v2": 2}, ()),
        (2, (), {"v1": 3}, ()),
    ]
    assert found.shown(T, change(PARTITION, None, T + 2)) == [(0, (), {"v1": 3, "v2": 2}, ()), (4, (), {}, ())]
    assert found.shown(T, change(INSERT, None, T + 3, v1=1)) == [(2, (), {"v1": 1}, ())]


def test_f_a_table_without_regular_columns() -> None:
    """Insert and postimage."""
    found = log(INTS[:2], preimage="false")
    assert found.shown(T, change(INSERT, 1, T)) == [(2, (1,), {}, ()), (9, (1,), {}, ())]
    assert found.shown(T, change(ROW, 1, T + 1)) == [(3, (1,), {}, ())]


# ------------------------------------------------------------------------------------------------------- rules


@pytest.mark.parametrize(
    ("preimage", "expected"), [("true", (0, (1,), {}, ("v2",))), ("full", (0, (1,), {"v1": 1}, ("v2",)))]
)
def test_deleted_nulls_are_shown_if_requested(preimage: str, expected: Shown) -> None:
    found = log(preimage=preimage, postimage=False)
    found.shown(T, change(INSERT, 1, T, v1=1))
    assert found.shown(T, change(UPDATE, 1, T + 1, v2=5))[0] == expected
    touched = found.shown(T, change(UPDATE, 1, T + 2, v1=2))[0]
    assert touched == (0, (1,), {"v1": 1} if preimage == "true" else {"v1": 1, "v2": 5}, ())
    assert found.shown(T, change(ROW, 1, T + 3))[0] == (0, (1,), {"v1": 2, "v2": 5}, ())
    assert [row[0] for row in found.shown(T, change(UPDATE, 1, T + 4, v1=None))] == [1]


def test_range_and_partition_deletes_have_no_images_but_delete() -> None:
    found = log()
    for number in range(4):
        found.shown(T, change(INSERT, number, T, v1=number))
    assert [r[0] for r in found.shown(T, change(RANGE, None, T + 1, bounds=bounded(0, True, 2, False)))] == [5, 8]
    assert [row[0] for row in found.shown(T, change(UPDATE, 1, T + 2, v2=1))] == [1, 9]
    assert found.shown(T, change(UPDATE, 2, T + 2, v2=1))[0] == (0, (2,), {"v1": 2}, ("v2",))
    assert [row[0] for row in found.shown(T, change(PARTITION, None, T + 3))] == [4]
    assert [row[0] for row in found.shown(T, change(ROW, 3, T + 4))] == [3]
    assert [row[0] for row in found.shown(T, change(INSERT, 3, T + 3, v1=1))] == [2]  # a late write is not visible


def test_static_images_precede_row_images_in_key_order() -> None:
    static = [*INTS, Column("s", "int", True)]
    found = log(static, ROWS)
    found.shown(T, change(UPDATE, None, T, s=1), change(INSERT, 2, T, v1=2), change(INSERT, -1, T, v1=1))
    assert found.shown(T, change(UPDATE, 2, T + 1, v1=3), change(ROW, -1, T + 1), change(UPDATE, None, T + 1, s=2)) == [
        (0, (), {"s": 1}, ()),
        (0, (-1,), {"v1": 1}, ("v2",)),
        (0, (2,), {"v1": 2}, ("v2",)),
        (1, (), {"s": 2}, ()),
        (1, (2,), {"v1": 3}, ()),
        (3, (-1,), {}, ()),
        (9, (), {"s": 2}, ()),
        (9, (2,), {"v1": 3}, ()),
    ]


def test_each_timestamp_of_a_write_sees_the_one_before() -> None:
    rows = log().write(write(change(INSERT, 1, T, v1=1), change(UPDATE, 1, T + 1, v2=2)), T)
    assert [(row.operation, row.timestamp - T, row.batch_seq_no, row.end_of_batch) for row in rows] == [
        (2, 0, 0, False),
        (9, 0, 1, True),
        (0, 1, 0, False),
        (1, 1, 1, False),
        (9, 1, 2, True),
    ]


def test_a_log_of_keys_has_whole_images() -> None:
    found = log(only_keys=True)
    assert found.shown(T, change(INSERT, 1, T, v1=1)) == [(2, (1,), {}, ()), (9, (1,), {"v1": 1}, ())]
    assert found.shown(T, change(UPDATE, 1, T + 1, v1=2)) == [
        (0, (1,), {"v1": 1}, ("v2",)),
        (1, (1,), {}, ()),
        (9, (1,), {"v1": 2}, ()),
    ]


def test_the_highest_timestamp_wins_in_any_order() -> None:
    found = log()
    found.shown(T, change(INSERT, 1, T + 9, v1=9))
    assert found.shown(T, change(UPDATE, 1, T + 1, v1=1, v2=1)) == [
        (0, (1,), {"v1": 9}, ("v2",)),
        (1, (1,), {"v1": 1, "v2": 1}, ()),
        (9, (1,), {"v1": 9, "v2": 1}, ()),
    ]


def test_expired_cells_are_not_in_images() -> None:
    found = log()
    found.shown(T, change(INSERT, 1, T, 5, v1=1), change(UPDATE, 2, T, 5, v1=1))
    assert [row[0] for row in found.shown(T + 4_999_999, change(UPDATE, 1, T + 1, v2=2))] == [0, 1, 9]
    late = found.shown(T + 5_000_000, change(UPDATE, 1, T + 2, v2=3))
    assert late == [(0, (1,), {"v2": 2}, ("v1",)), (1, (1,), {"v2": 3}, ()), (9, (1,), {"v2": 3}, ())]
    assert [row[0] for row in found.shown(T + 5_000_000, change(ROW, 2, T + 1))] == [3]


def test_collections_are_whole_in_images() -> None:
    maps = [INTS[0], Column("m1", "map<int, int>"), Column("m2", "map<int, int>")]
    found = log(maps, NO_ROWS, clustering=())
    found.shown(T, change(UPDATE, None, T, m1={1: 1, 2: 2}))
    assert found.shown(T, change(UPDATE, None, T + 1, m1={3: 3}, taken={"m1": [1]})) == [
        (0, (), {"m1": {(1, 1), (2, 2)}}, ("m2",)),
        (1, (), {"m1": {(3, 3)}}, ()),
        (9, (), {"m1": {(2, 2), (3, 3)}}, ()),
    ]
    assert found.shown(T, change(UPDATE, None, T + 2, m1={}, replaced=["m1"]))[-1][0] == 1  # the collection is empty


def test_unknown_columns_follow_the_others() -> None:
    found = log()
    found.shown(T, change(INSERT, 1, T, z=1, v2=2, a=3))
    (before, *_) = found.write(write(change(UPDATE, 1, T + 1, b=1)), T)
    assert ([cell.column for cell in before.cells], before.deleted) == (["v2", "a", "z"], ("v1", "b"))


# ------------------------------------------------------------------------------------------------- forgetting


def test_an_unwritten_row_is_pruned_after_the_image_ttl() -> None:
    found = log(ttl=60 * SECOND)
    found.shown(T, change(INSERT, 1, T, v1=1))
    assert [row[0] for row in found.shown(T + 60 * SECOND - 1, change(UPDATE, 1, T + 1, v2=1))] == [0, 1, 9]
    assert [row[0] for row in found.shown(T + 120 * SECOND - 1, change(UPDATE, 1, T + 2, v2=2))] == [1, 9]


def test_pruned_tombstones_do_not_revive_deleted_cells() -> None:
    found = log()
    for number in (1, 2, 3):
        found.shown(T, change(INSERT, number, T, v1=1))
    found.shown(T, change(RANGE, None, T + 5, bounds=bounded(1, True, 1, True)), change(ROW, 2, T + 5))
    assert [row[0] for row in found.shown(T + GRACE - 1, change(UPDATE, 2, T + 4, v1=1))] == [1]
    later = T + 2 * GRACE
    assert [row[0] for row in found.shown(later, change(ROW, 1, T + 9))] == [3]
    assert [row[0] for row in found.shown(later, change(UPDATE, 2, T + 4, v1=1))] == [1, 9]  # older than what is known
    assert [row[0] for row in found.shown(later, change(ROW, 3, T + 9))] == [0, 3]


# ------------------------------------------------------------------------------------------- against the model


def wanted(before: list[Statement], own: list[Statement], now: int, mode: str) -> list[Shown]:
    """Return the images that a write of these statements must have, all with one timestamp."""
    every = [name for name in TYPES if name not in "pcds"]
    static, rows = model(before, now)
    found: list[Shown] = []
    touched: dict[tuple[int, ...], set[str]] = {}
    for one in own:
        names = {*dict(one.cells), *dict(one.taken), *one.replaced}
        if one.kind in ("insert", "update", "row_delete"):
            touched.setdefault(one.key, set()).update(every if one.kind == "row_delete" else names)
    is_static = any(one.kind == "static" for one in own)
    if is_static and static:
        found.append((0, (), static, ()))
    for key in sorted(touched):
        if key in rows:
            names = touched[key] if mode == "true" else {*every}
            shown = {name: value for name, value in rows[key].items() if name in names}
            found.append((0, key, shown, tuple(name for name in every if name in names - {*shown})))
    static, rows = model([*before, *own], now)
    if is_static and static:
        found.append((9, (), static, ()))
    return found + [(9, key, rows[key], ()) for key in sorted(touched) if key in rows]


@pytest.mark.parametrize("mode", ["true", "full"])
def test_images_of_random_histories_match_the_model(mode: str) -> None:
    met = set()
    for seed in range(150):
        chance = Random(seed)
        table = image_table(TABLE.columns, TABLE.clustering_key, mode, partition=("p",))
        found, before = Log(table, histories.SHAPE), list[Statement]()
        for number in range(chance.randint(1, 12)):
            now, at = (5 + 4 * number) * SECOND, chance.randint(1, 40) * SECOND
            own = [replace(draw(chance), at=at) for _ in range(chance.randint(1, 4))]
            rows = [shown(piece, TYPES, ("int", "int")) for piece in found.write(mutation_of(own), now)]
            images = [row for row in rows if row[0] in (0, 9)]
            assert images == wanted(before, own, now, mode), (seed, number)
            codes = [row[0] for row in rows]
            assert codes == sorted(codes, key=lambda code: (code == 9) - (code == 0)), "preimage, delta, postimage"
            before += own
            met |= {*codes}
    assert met == {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}


def test_row_states_match_the_whole_partition() -> None:
    """Writes have several timestamps each; the oracle is one fold of all their rows."""
    for seed in range(150):
        chance = Random(seed)
        found = Log(image_table(TABLE.columns, TABLE.clustering_key, partition=("p",)), histories.SHAPE)
        for number in range(chance.randint(1, 10)):
            now = (5 + 3 * number) * SECOND
            rows = found.write(mutation_of([draw(chance) for _ in range(chance.randint(1, 4))]), now)
            whole = seen(fold(PartitionState(), found.pieces, SHAPE.columns), SHAPE.columns, now)
            by_key = {row.clustering_key: row.values for row in whole} | {(): whole[0].static if whole else {}}
            newest = {p.clustering_key: p for p in rows if p.operation == 9 and p.timestamp == rows[-1].timestamp}
            for key, piece in newest.items():
                assert {cell.column: cell.value for cell in piece.cells} == by_key[key], (seed, number)

"""Splitting of writes: ScyllaDB's black-box cases, the single rules, and properties of any write."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlog.kernel.cql.collections import cells_of
from ringlog.kernel.cql.types import deserialize, serialize
from ringlog.kernel.generations.statements import TableShape, bad_statement, is_compound, statements_of
from ringlog.kernel.values import replace
from ringlog.wire.records import Bounds, Cell, DeletedElements, Mutation, MutationStatement
from ringlog_cdc.definition.split import Piece, keys_only, split

T = 1_700_000_000_000_000
TABLE = TableShape(
    1, 1, True, ("int",), ("int",), ("s",), (("m", "map<int, int>"), ("l", "list<int>"), ("z", "set<text>"))
)
PLAIN = TableShape(1, 1, True, ("int",), ("int",))
NO_ROWS = TableShape(1, 0, True, ("int",), (), (), (("m1", "map<int, int>"), ("m2", "map<int, int>")))
UPDATE, INSERT, ROW, PARTITION, RANGE = "UPDATE", "INSERT", "ROW_DELETE", "PARTITION_DELETE", "RANGE_DELETE"


def number(value: int) -> bytes:
    return serialize("int", value)


def key(value: int | None) -> tuple[bytes, ...]:
    return () if value is None else (number(value),)


def cell(column: str, value: Any) -> Cell:
    """Return a cell of an int column, or of the map ``m`` for a dictionary."""
    if isinstance(value, dict):
        return Cell(column, serialize("map<int, int>", tuple(value.items())))
    return Cell(column, None if value is None else number(value))


def change(
    operation: str, ck: int | None, at: int | None = None, ttl: int | None = None, **columns: Any
) -> MutationStatement:
    """Return a statement; ``replaced``, ``taken`` (column to keys) and ``bounds`` are options, all others are
    columns.
    """
    replaced = tuple(columns.pop("replaced", ()))
    taken = tuple(DeletedElements(name, tuple(map(number, keys))) for name, keys in columns.pop("taken", {}).items())
    bounds = columns.pop("bounds", None)
    cells = tuple(cell(name, value) for name, value in columns.items())
    return MutationStatement(operation, key(ck), cells, at, ttl, taken, replaced, bounds)


def bounded(start: int | None, start_inclusive: bool, end: int | None, end_inclusive: bool) -> Bounds:
    return Bounds(key(start), start_inclusive, key(end), end_inclusive)


def write(*changes: MutationStatement) -> Mutation:
    """Return a mutation of these statements; the first sets the timestamp (default: T) and the time to live."""
    first, *more = changes
    return Mutation(
        None,
        None,
        "k",
        "t",
        T if first.timestamp is None else first.timestamp,
        first.ttl,
        first.operation,
        (number(0),),
        first.clustering_key,
        first.cells,
        first.deleted_elements,
        first.replaced,
        first.bounds,
        tuple(more),
    )


def shown(piece: Piece) -> tuple[Any, ...]:
    """Return the decoded rows: (timestamp - T, sequence, operation, ttl, clustering key, cells, deleted, deleted
    elements).
    """

    def value(one: Cell) -> Any:
        assert one.value is not None
        if one.column in ("m", "m1", "m2"):
            return dict(deserialize("map<int, int>", one.value))  # type: ignore[arg-type]
        return deserialize("int", one.value)

    return (
        piece.timestamp - T,
        piece.batch_seq_no,
        piece.operation,
        piece.ttl,
        tuple(deserialize("int", part) for part in piece.clustering_key if part is not None),
        {one.column: value(one) for one in piece.cells},
        piece.deleted,
        {one.column: [deserialize("int", part) for part in one.keys] for one in piece.deleted_elements},
    )


def rows(table: TableShape, *changes: MutationStatement) -> list[tuple[Any, ...]]:
    found = split(write(*changes), table)
    for one, following in zip(found, (*found[1:], None), strict=False):
        assert one.end_of_batch == (following is None or following.timestamp != one.timestamp)
    return [shown(piece) for piece in found]


# ------------------------------------------------------------------------------------------------- black-box cases


def test_three_timestamps_are_three_batches() -> None:
    assert rows(
        TABLE, change(UPDATE, None, T, s=-1), change(UPDATE, 0, T + 1, v1=1), change(UPDATE, 0, T + 2, v2=2)
    ) == [
        (0, 0, 1, None, (), {"s": -1}, (), {}),
        (1, 0, 1, None, (0,), {"v1": 1}, (), {}),
        (2, 0, 1, None, (0,), {"v2": 2}, (), {}),
    ]


def test_each_time_to_live_is_a_row_and_nulls_join_the_unlimited() -> None:
    assert rows(
        TABLE,
        change(UPDATE, 1, ttl=5, v1=5, v2=None),
        change(UPDATE, 1, ttl=6, m={0: 6, 1: 6}),
        change(UPDATE, 1, ttl=7, m={2: 7}, taken={"m": [3]}),
        change(UPDATE, 1, ttl=0, m={4: 0}),
    ) == [
        (0, 0, 1, None, (1,), {"m": {4: 0}}, ("v2",), {"m": [3]}),
        (0, 1, 1, 5, (1,), {"v1": 5}, (), {}),
        (0, 2, 1, 6, (1,), {"m": {0: 6, 1: 6}}, (), {}),
        (0, 3, 1, 7, (1,), {"m": {2: 7}}, (), {}),
    ]


def test_everything_in_one_batch_and_a_later_insert_takes_the_marker() -> None:
    assert rows(
        TABLE,
        change(PARTITION, None, T),
        change(RANGE, None, T + 1, bounds=bounded(0, True, 3, False)),
        change(ROW, 0, T + 2),
        change(INSERT, 0, T + 3, v1=1),
        change(UPDATE, 0, T + 3, v2=2),
        change(INSERT, 0, T + 4, m={3: 3}, replaced=["m"]),
        change(INSERT, 1, T + 5, 5, m={4: 4}, replaced=["m"]),
    ) == [
        (0, 0, 4, None, (), {}, (), {}),
        (1, 0, 5, None, (0,), {}, (), {}),
        (1, 1, 8, None, (3,), {}, (), {}),
        (2, 0, 3, None, (0,), {}, (), {}),
        (3, 0, 1, None, (0,), {"v1": 1, "v2": 2}, (), {}),
        (4, 0, 2, None, (0,), {"m": {3: 3}}, ("m",), {}),
        (5, 0, 2, 5, (1,), {}, (), {}),
        (5, 1, 1, None, (1,), {}, ("m",), {}),
        (5, 2, 1, 5, (1,), {"m": {4: 4}}, (), {}),
    ]


def test_insert_update_column_delete_and_row_delete() -> None:
    found = [
        rows(PLAIN, one)
        for one in (change(INSERT, 0, v1=1), change(UPDATE, 0, v1=2), change(UPDATE, 0, v1=None), change(ROW, 0))
    ]
    assert [(row[2], row[6]) for (row,) in found] == [(2, ()), (1, ()), (1, ("v1",)), (3, ())]


def test_a_table_without_clustering_key_and_one_without_regular_columns() -> None:
    assert rows(NO_ROWS, change(INSERT, None, v=1)) == [(0, 0, 2, None, (), {"v": 1}, (), {})]
    assert rows(NO_ROWS, change(PARTITION, None)) == [(0, 0, 4, None, (), {}, (), {})]
    assert rows(PLAIN, change(INSERT, 3)) == [(0, 0, 2, None, (3,), {}, (), {})]


@pytest.mark.parametrize(
    ("bounds", "codes"),
    [
        (bounded(1, False, 23, False), [6, 8]),
        (bounded(4, True, 56, True), [5, 7]),
        (bounded(4, True, 4, True), [5, 7]),
        (bounded(None, False, 4, True), [5, 7]),
        (bounded(-5, False, None, False), [6, 7]),
        (bounded(2, False, 1, False), []),
        (bounded(1, True, 1, False), []),
        (bounded(1, True, -1, True), []),
    ],
)
def test_a_range_is_two_rows_and_none_if_it_is_empty(bounds: Bounds, codes: list[int]) -> None:
    assert [row[2] for row in rows(PLAIN, change(RANGE, None, bounds=bounds))] == codes


def test_an_insert_that_expires_and_replaces_two_collections() -> None:
    assert rows(NO_ROWS, change(INSERT, None, ttl=5, m1={1: 1}, m2={2: 2}, replaced=["m1", "m2"])) == [
        (0, 0, 2, 5, (), {}, (), {}),
        (0, 1, 1, None, (), {}, ("m1", "m2"), {}),
        (0, 2, 1, 5, (), {"m1": {1: 1}, "m2": {2: 2}}, (), {}),
    ]


def test_an_insert_of_static_and_other_columns() -> None:
    assert rows(TABLE, change(INSERT, 2, s=3, m={5: 6}, replaced=["m"])) == [
        (0, 0, 1, None, (), {"s": 3}, (), {}),
        (0, 1, 2, None, (2,), {"m": {5: 6}}, ("m",), {}),
    ]


# ------------------------------------------------------------------------------------------------------ the rules


def test_an_insert_cannot_add_elements() -> None:
    assert rows(TABLE, change(INSERT, 2, v=1, m={5: 6}, taken={"m": [7]})) == [
        (0, 0, 2, None, (2,), {"v": 1}, (), {}),
        (0, 1, 1, None, (2,), {"m": {5: 6}}, (), {"m": [7]}),
    ]


def test_a_collection_set_to_null_and_elements_of_another_time() -> None:
    changes = (change(UPDATE, 1, T, m={1: 1}), change(UPDATE, 1, T + 1, m=None), change(UPDATE, 1, T + 2, m={2: 2}))
    assert rows(TABLE, *changes) == [
        (1, 0, 1, None, (1,), {}, ("m",), {}),
        (2, 0, 1, None, (1,), {"m": {2: 2}}, (), {}),
    ]


def test_the_newest_cell_wins_and_a_delete_beats_a_value() -> None:
    assert rows(TABLE, change(UPDATE, 1, T + 1, v=1), change(UPDATE, 1, T, v=2)) == [
        (1, 0, 1, None, (1,), {"v": 1}, (), {})
    ]
    assert rows(TABLE, change(UPDATE, 1, v=1), change(UPDATE, 1, v=None)) == [(0, 0, 1, None, (1,), {}, ("v",), {})]
    assert rows(TABLE, change(UPDATE, 1, v=1), change(UPDATE, 1, v=2)) == [(0, 0, 1, None, (1,), {"v": 2}, (), {})]
    assert rows(TABLE, change(ROW, 1, T), change(ROW, 1, T + 1), change(PARTITION, None, T - 1)) == [
        (-1, 0, 4, None, (), {}, (), {}),
        (1, 0, 3, None, (1,), {}, (), {}),
    ]


def test_kinds_are_ordered_and_rows_keep_the_write_order() -> None:
    found = rows(
        TABLE,
        change(PARTITION, None),
        change(RANGE, None, bounds=bounded(1, True, 2, True)),
        change(ROW, 9),
        change(UPDATE, 7, ttl=3, v=1),
        change(UPDATE, 8, ttl=0, v=1),
        change(INSERT, 6, ttl=2, v=1),
        change(INSERT, 5, ttl=0, v=1),
        change(UPDATE, None, s=1),
    )
    assert [(row[2], row[4], row[3]) for row in found] == [
        (1, (), None),
        (2, (5,), None),
        (2, (6,), 2),
        (1, (8,), None),
        (1, (7,), 3),
        (3, (9,), None),
        (5, (1,), None),
        (7, (2,), None),
        (4, (), None),
    ]
    assert [row[1] for row in found] == list(range(9))


def test_lists_and_sets_have_keys_too() -> None:
    cells = tuple(
        Cell(column, serialize(kind, value))
        for column, kind, value in (
            ("z", "set<text>", ("b", "a")),
            ("l", "map<timeuuid, int>", (("04c29680-833b-11ee-8000-000000000000", 1),)),
        )
    )
    (piece,) = split(replace(write(change(UPDATE, 1)), cells=cells), TABLE)
    found = {one.column: one.value for one in piece.cells}
    assert deserialize("set<text>", found["z"] or b"") == ("a", "b")
    assert found["l"] == cells[1].value


def test_a_log_of_keys_only() -> None:
    (piece,) = keys_only(split(write(change(UPDATE, 1, v=1, w=None, m={1: 1})), TABLE))
    assert shown(piece) == (0, 0, 1, None, (1,), {}, (), {})


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        (change("UNKNOWN", 1), "unknown_operation"),
        (change(UPDATE, None, v=1), "bad_key"),
        (change(UPDATE, None), "bad_key"),
        (change(UPDATE, None, s=1, v=1), "bad_key"),
        (change(ROW, None), "bad_key"),
        (change(PARTITION, 1), "bad_key"),
        (change(RANGE, 1, bounds=bounded(1, True, 2, True)), "bad_key"),
        (replace(change(UPDATE, 1, v=1), clustering_key=(None,)), "bad_key"),
        (change(RANGE, None), "bad_change"),
        (change(UPDATE, 1, v=1, bounds=bounded(1, True, 2, True)), "bad_change"),
        (change(RANGE, None, bounds=Bounds(key(1) * 2, True, (), True)), "bad_change"),
        (change(ROW, 1, v=1), "bad_change"),
        (change(PARTITION, None, replaced=["m"]), "bad_change"),
        (change(UPDATE, 1, ttl=-1, v=1), "bad_change"),
        (change(UPDATE, 1, replaced=["v"]), "bad_change"),
        (change(UPDATE, 1, taken={"s": [1]}), "bad_change"),
        (change(UPDATE, 1, m={1: 1}, taken={"m": [2]}, replaced=["z"]), ""),
        (change(UPDATE, None, s=1), ""),
        (change(INSERT, None, s=1), ""),
        (change(RANGE, None, bounds=bounded(None, True, None, True)), ""),
    ],
)
def test_statements_that_contradict_the_table(statement: MutationStatement, code: str) -> None:
    assert bad_statement(statement, TABLE) == code


# ------------------------------------------------------------------------------------------------ for any write

keys_drawn = st.sampled_from([0, 1])
cells_drawn = st.dictionaries(st.sampled_from(["v", "w"]), st.none() | st.integers(0, 3), max_size=2)
maps_drawn = st.dictionaries(st.integers(0, 3), st.integers(0, 3), max_size=3)


@st.composite
def random_changes(draw: st.DrawFn) -> MutationStatement:
    at, ttl = T + draw(st.integers(0, 3)), draw(st.sampled_from([None, 0, 5]))
    operation = draw(st.sampled_from([UPDATE, INSERT, UPDATE, INSERT, ROW, PARTITION, RANGE]))
    if operation == RANGE:
        drawn = bounded(draw(keys_drawn), draw(st.booleans()), draw(keys_drawn), draw(st.booleans()))
        return change(RANGE, None, at, bounds=drawn)
    if operation in (ROW, PARTITION):
        return change(operation, draw(keys_drawn) if operation == ROW else None, at)
    columns: dict[str, Any] = dict(draw(cells_drawn))
    if draw(st.booleans()):
        columns |= {"m": draw(st.none() | maps_drawn), "replaced": draw(st.sampled_from([(), ("m",)]))}
        columns |= {"taken": {"m": draw(st.lists(st.integers(0, 3), max_size=2, unique=True))}}
    if draw(st.booleans()):
        columns["s"] = draw(st.integers(0, 3))
    return change(operation, draw(keys_drawn), at, ttl, **columns)


@given(st.lists(random_changes(), min_size=1, max_size=6))
def test_the_newest_of_every_cell_is_in_exactly_one_row(changes: list[MutationStatement]) -> None:
    mutation = write(*changes)
    assert all(bad_statement(statement, TABLE) == "" for statement in statements_of(mutation))
    found = split(mutation, TABLE)
    assert [(p.timestamp, p.batch_seq_no) for p in found] == sorted({(p.timestamp, p.batch_seq_no) for p in found})
    said: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for piece in found:
        assert bool(piece.clustering_key) or piece.operation in (1, 4)
        for one in piece.cells:
            if one.column == "m":
                for element, _ in cells_of("map<int, int>", one.value or b""):
                    said[piece.clustering_key, "m", element].append(piece.timestamp)
            else:
                said[piece.clustering_key, one.column].append(piece.timestamp)
        for column in piece.deleted:
            said[piece.clustering_key, column].append(piece.timestamp)
        for taken in piece.deleted_elements:
            for element in taken.keys:
                said[piece.clustering_key, "m", element].append(piece.timestamp)
    newest: dict[tuple[Any, ...], int] = {}
    tombstones: dict[Any, int] = {}
    for statement in changes:
        assert statement.timestamp is not None
        where = statement.clustering_key
        for one in statement.cells:
            if one.column == "m" and one.value is not None:
                places: list[tuple[Any, ...]] = [(where, "m", each) for each, _ in cells_of("map<int, int>", one.value)]
            else:
                places = [((), "s") if one.column == "s" else (where, one.column)]
            for place in places:
                newest[place] = max(newest.get(place, 0), statement.timestamp)
        for column in statement.replaced:
            newest[where, column] = max(newest.get((where, column), 0), statement.timestamp)
        for element in (each for taken in statement.deleted_elements for each in taken.keys):
            newest[where, "m", element] = max(newest.get((where, "m", element), 0), statement.timestamp)
    tombstones = {place[0]: at for place, at in newest.items() if place[1:] == ("m",)}
    kept = {p: at for p, at in newest.items() if len(p) == 2 or at >= tombstones.get(p[0], 0)}
    assert said == {place: [at] for place, at in kept.items()}


@given(st.sampled_from([UPDATE, INSERT, ROW, PARTITION]), cells_drawn, st.sampled_from([None, 5]))
def test_a_plain_write_is_one_row(operation: str, columns: dict[str, Any], ttl: int | None) -> None:
    deletes = operation in (ROW, PARTITION)
    one = change(operation, None if operation == PARTITION else 1, ttl=ttl, **({} if deletes else columns))
    mutation = write(one)
    if is_compound(mutation, PLAIN) or (operation == UPDATE and not columns):
        return
    (piece,) = split(mutation, PLAIN)
    assert (piece.clustering_key, piece.cells) == (
        one.clustering_key,
        tuple(c for c in one.cells if c.value is not None),
    )
    assert piece.deleted == tuple(c.column for c in one.cells if c.value is None)
    assert piece.ttl == (None if deletes or not (piece.cells or operation == INSERT) else ttl)

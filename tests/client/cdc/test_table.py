"""A table rebuilt from its log is the table: random histories of every operation against a brute-force model.

The model keeps the statements with their Python values and, for every column of every row, looks through all of them.
The fold gets the rows of the log, in any order, some twice.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import groupby
from random import Random
from typing import Any

from ringlog.client.cdc.table import PartitionState, Range, TableShape, fold, next_expiry, seen
from ringlog.kernel.changes import TableChange
from ringlog.kernel.commands.model import CdcOptions, Column
from ringlog.kernel.generations.statements import TableShape as Split
from ringlog.kernel.schema.types import deserialize, serialize
from ringlog.wire.records import Bounds, CdcRow, Cell, Change, DeletedElements, Mutation
from ringlog_cdc.split import Piece, split

SECOND = 1_000_000
TYPES = {
    "p": "text",
    "c": "int",
    "d": "int",
    "s": "int",
    "v": "int",
    "w": "text",
    "m": "map<text, int>",
    "e": "set<int>",
}
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
SHAPE = TableShape(TABLE)
KINDS = ("insert", "update", "static", "row_delete", "range_delete", "partition_delete")


@dataclass(frozen=True)
class Statement:
    """One statement, in Python values. ``cells``: column to value, None: null; of ``m`` and ``e`` what is added."""

    kind: str
    at: int
    key: tuple[int, ...] = ()
    cells: tuple[tuple[str, Any], ...] = ()
    taken: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    replaced: tuple[str, ...] = ()
    ttl: int | None = None
    bounds: tuple[tuple[int, ...], bool, tuple[int, ...], bool] = ((), True, (), True)


def draw(chance: Random, latest: int = 30) -> Statement:
    """``latest``: few seconds make many statements of one timestamp."""
    at = chance.randint(1, latest) * SECOND
    kind = chance.choices(KINDS, (6, 10, 3, 2, 2, 1))[0]
    key = (chance.randint(-1, 1), chance.randint(-1, 1))
    ttl = chance.choice((None, None, chance.randint(1, 20)))
    if kind == "partition_delete":
        return Statement(kind, at)
    if kind == "row_delete":
        return Statement(kind, at, key)
    if kind == "range_delete":
        ends = [tuple(chance.randint(-1, 1) for _ in range(chance.randint(0, 2))) for _ in range(2)]
        return Statement(kind, at, bounds=(ends[0], chance.random() < 0.5, ends[1], chance.random() < 0.5))
    if kind == "static":
        return Statement(kind, at, (), (("s", chance.choice((None, 1, 2))),), ttl=ttl)
    cells: dict[str, Any] = {}
    taken, replaced = [], []
    for column in chance.sample(("v", "w", "m", "e"), chance.randint(0 if kind == "insert" else 1, 3)):
        if column in "vw":
            cells[column] = chance.choice((None, 1, 2)) if column == "v" else chance.choice((None, "a", "b"))
            continue
        keys = ("x", "y") if column == "m" else (1, 2)
        what = chance.choice(("add", "replace", "null", "take"))
        if what == "take":
            taken.append((column, tuple(chance.sample(keys, chance.randint(1, 2)))))
            continue
        if what != "add":
            replaced.append(column)
        if what != "null":
            chosen = chance.sample(keys, chance.randint(1, 2))
            cells[column] = tuple((k, chance.randint(0, 2)) for k in chosen) if column == "m" else tuple(chosen)
    return Statement(kind, at, key, tuple(cells.items()), tuple(taken), tuple(replaced), ttl)


# ------------------------------------------------------------------------------------------------ as the log has it


def rows_of(statement: Statement) -> tuple[CdcRow, ...]:
    """The rows of the log of a statement: live cells with their time to live, dead ones without."""
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
        DeletedElements(name, tuple(serialize("text" if name == "m" else "int", key) for key in keys))
        for name, keys in statement.taken
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


# ------------------------------------------------------------------------------------------------ the model


def model(statements: list[Statement], now: int) -> tuple[dict[str, Any], dict[tuple[int, ...], dict[str, Any]]]:
    """(static columns, key to columns) that a reader sees."""
    keys = sorted({s.key for s in statements if s.kind in ("insert", "update")})
    partition = max((s.at for s in statements if s.kind == "partition_delete"), default=-1)
    static = columns([s for s in statements if s.kind == "static"], partition, now)
    found = {}
    for key in keys:
        gone = max([partition, *(s.at for s in statements if deletes(s, key))])
        own = [s for s in statements if s.key == key and s.kind in ("insert", "update")]
        values = columns(own, gone, now)
        markers = [(s.at, s.ttl is not None, s.at + (s.ttl or 0) * SECOND) for s in own if s.kind == "insert"]
        marker = max(markers, default=None)
        if values or (marker and marker[0] > gone and (not marker[1] or marker[2] > now)):
            found[key] = values
    return static, found


def deletes(statement: Statement, key: tuple[int, ...]) -> bool:
    if statement.kind == "row_delete":
        return statement.key == key
    if statement.kind != "range_delete":
        return False
    start, start_in, end, end_in = statement.bounds
    first, last = key[: len(start)], key[: len(end)]
    is_behind = first > start or (first == start and (start_in or not start))
    return is_behind and (last < end or (last == end and (end_in or not end)))


def columns(statements: list[Statement], gone: int, now: int) -> dict[str, Any]:
    candidates: dict[tuple[str, Any], list[tuple[Any, ...]]] = {}
    wiped: Counter[str] = Counter()
    for s in statements:
        expiry = (s.ttl is not None, s.at + (s.ttl or 0) * SECOND if s.ttl else 0)
        for name in s.replaced:
            wiped[name] = max(wiped[name], s.at - 1)
        for name, value in s.cells:
            if name in "me":
                for element in value:
                    place, held = (element[0], element[1]) if name == "m" else (element, None)
                    data = b"" if held is None else serialize("int", held)
                    candidates.setdefault((name, place), []).append((s.at, False, *expiry, data))
            elif value is None:
                candidates.setdefault((name, None), []).append((s.at, True, False, 0, b""))
            else:
                data = serialize(TYPES[name], value)
                candidates.setdefault((name, None), []).append((s.at, False, *expiry, data))
        for name, keys in s.taken:
            for key in keys:
                candidates.setdefault((name, key), []).append((s.at, True, False, 0, b""))
    found: dict[str, Any] = {}
    for (name, place), cells in sorted(candidates.items(), key=str):
        at, is_dead, has_ttl, expires, data = max(cells)
        if is_dead or at <= max(gone, wiped[name]) or (has_ttl and expires <= now):
            continue
        if name == "m":
            found.setdefault(name, set()).add((place, deserialize("int", data)))
        elif name == "e":
            found.setdefault(name, set()).add(place)
        else:
            found[name] = deserialize(TYPES[name], data)
    return found


def typed(values: Any) -> dict[str, Any]:
    found = {name: deserialize(TYPES[name], data) for name, data in values.items()}
    return {name: set(value) if name in "me" else value for name, value in found.items()}


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
            state = fold(state, rows_of(statement), SHAPE)
        for now in (0, 15 * SECOND, 31 * SECOND, 60 * SECOND):
            static, rows = model(history, now)
            got = seen(state, SHAPE, now)
            table = {
                tuple(deserialize("int", part or b"") for part in found.clustering_key): typed(found.values)
                for found in got
                if found.clustering_key is not None
            }
            assert table == rows, (seed, now)
            assert all(typed(found.static) == static for found in got), (seed, now)
            assert bool(got) == bool(rows or static), (seed, now)
            keys = [found.clustering_key for found in got if found.clustering_key is not None]
            assert keys == sorted(keys, key=SHAPE.order)
    assert set(met) == set(KINDS)


def test_the_log_of_random_mutations_rebuilds_the_table() -> None:
    """The rows are those that the pipeline splits a mutation into; the model looks at its statements."""
    for seed in range(300):
        chance = Random(seed)
        history, state, latest = [], PartitionState(), chance.choice((3, 30))
        for _ in range(chance.randint(1, 6)):
            statements = [draw(chance, latest) for _ in range(chance.randint(1, 5))]
            history += statements
            for _, pieces in groupby(split(mutation_of(statements), SPLIT), key=lambda piece: piece.timestamp):
                rows = [row_of(piece) for piece in pieces]
                state = fold(state, rows, SHAPE)
        for now in (0, 15 * SECOND, 60 * SECOND):
            static, wanted = model(history, now)
            got = seen(state, SHAPE, now)
            table = {
                tuple(deserialize("int", part or b"") for part in found.clustering_key): typed(found.values)
                for found in got
                if found.clustering_key is not None
            }
            assert table == wanted, (seed, now)
            assert all(typed(found.static) == static for found in got), (seed, now)


SPLIT = Split(1, 2, True, ("text",), ("int", "int"), ("s",), (("m", TYPES["m"]), ("e", TYPES["e"])))


def mutation_of(statements: list[Statement]) -> Mutation:
    """One write of several statements, each with a timestamp and a time to live of its own."""
    changes = [change_of(statement) for statement in statements]
    first = changes[0]
    return Mutation(
        None, None, "ks", "t", first.timestamp or 0, first.ttl, first.operation, (b"p",), first.clustering_key,
        first.cells, first.deleted_elements, first.replaced, first.bounds, tuple(changes[1:]),
    )  # fmt: skip


def change_of(statement: Statement) -> Change:
    operation = {"static": "UPDATE"}.get(statement.kind, statement.kind.upper())
    start, start_in, end, end_in = statement.bounds
    return Change(
        operation,
        tuple(serialize("int", part) for part in statement.key),
        tuple(Cell(name, None if v is None else serialize(TYPES[name], v)) for name, v in statement.cells),
        statement.at,
        statement.ttl or 0,
        tuple(
            DeletedElements(name, tuple(serialize("text" if name == "m" else "int", key) for key in keys))
            for name, keys in statement.taken
        ),
        statement.replaced,
        Bounds(prefix(start), start_in, prefix(end), end_in) if operation == "RANGE_DELETE" else None,
    )


def prefix(parts: tuple[int, ...]) -> tuple[bytes, ...]:
    return tuple(serialize("int", part) for part in parts)


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
                state = fold(state, rows_of(statement), SHAPE)
            views.add(str(seen(state, SHAPE, 31 * SECOND)))
        assert len(views) == 1, seed


def test_images_change_nothing_and_the_next_expiry_is_known() -> None:
    live = Cell("v", serialize("int", 1))
    written = fold(PartitionState(), [replace(row(1, SECOND, (1, 1)), cells=(live,), ttl=5)], SHAPE)
    images = [replace(row(code, 9 * SECOND, (1, 1)), cells=(live,)) for code in (0, 9)]
    assert fold(written, images, SHAPE) == written
    assert next_expiry(written, 0) == 6 * SECOND
    assert next_expiry(written, 6 * SECOND) is None
    assert len(seen(written, SHAPE, 6 * SECOND - 1)) == 1
    assert seen(written, SHAPE, 6 * SECOND) == ()


def test_a_table_without_clustering_columns_has_one_row_in_a_partition() -> None:
    table = replace(TABLE, clustering_key=(), columns=(Column("p", "text"), Column("v", "int")))
    shape = TableShape(table)
    state = fold(PartitionState(), [replace(row(2, 1, ()), cells=(Cell("v", serialize("int", 3)),))], shape)
    (found,) = seen(state, shape, 1)
    assert (found.clustering_key, dict(found.values), dict(found.static)) == ((), {"v": serialize("int", 3)}, {})
    assert seen(fold(state, [row(4, 1, ())], shape), shape, 1) == ()


def test_a_range_is_told_by_the_order_of_the_type_and_not_of_the_bytes() -> None:
    one, minus = serialize("int", 1), serialize("int", -1)
    assert minus > one
    both = Range((minus,), True, (one,), False, 9)
    assert [SHAPE.covers(both, (serialize("int", c), one)) for c in (-2, -1, 0, 1, 2)] == [
        False,
        True,
        True,
        False,
        False,
    ]

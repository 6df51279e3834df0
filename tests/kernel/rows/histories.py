"""Random histories of all write operations as Python values, and a brute-force model of the visible rows.

The model keeps all statements and searches all of them for each column of each row.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

from ringlog.kernel.cql.types import deserialize, serialize
from ringlog.kernel.generations.statements import TableShape
from ringlog.kernel.rows.reading import SeenRow
from ringlog.kernel.values import Value
from ringlog.wire.records import Bounds, Cell, DeletedElements, Mutation, MutationStatement

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
    "u": "udt<a int, b text>",
}
KEYS: dict[str, tuple[Any, ...]] = {"m": ("x", "y"), "e": (1, 2), "u": ("a", "b")}
"""Multi-cell column to the keys of its elements. The keys of ``u`` are the names of its fields."""
KINDS = ("insert", "update", "static", "row_delete", "range_delete", "partition_delete")


class Statement(Value, dict=True):
    """One statement in Python values. ``cells`` maps a column to its value, to None for null, or to added elements."""

    kind: str
    at: int
    key: tuple[int, ...] = ()
    cells: tuple[tuple[str, Any], ...] = ()
    taken: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    replaced: tuple[str, ...] = ()
    ttl: int | None = None
    bounds: tuple[tuple[int, ...], bool, tuple[int, ...], bool] = ((), True, (), True)


def draw(chance: Random, latest: int = 30) -> Statement:
    """Draw a statement. With few seconds in ``latest``, many statements have equal timestamps."""
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
    for column in chance.sample(("v", "w", *KEYS), chance.randint(0 if kind == "insert" else 1, 3)):
        if column in "vw":
            cells[column] = chance.choice((None, 1, 2)) if column == "v" else chance.choice((None, "a", "b"))
            continue
        keys = KEYS[column]
        what = chance.choice(("add", "replace", "null", "take"))
        if what == "take":
            taken.append((column, tuple(chance.sample(keys, chance.randint(1, 2)))))
            continue
        if what != "add":
            replaced.append(column)
        if what != "null":
            chosen = chance.sample(keys, chance.randint(1, 2))
            cells[column] = added(chance, column, chosen)
    return Statement(kind, at, key, tuple(cells.items()), tuple(taken), tuple(replaced), ttl)


def added(chance: Random, column: str, keys: list[Any]) -> Any:
    """Return a value of a multi-cell column with these elements."""
    if column == "u":
        return {key: chance.randint(0, 2) if key == "a" else chance.choice("pq") for key in keys}
    return tuple((key, chance.randint(0, 2)) for key in keys) if column == "m" else tuple(keys)


# Model


def model(statements: list[Statement], now: int) -> tuple[dict[str, Any], dict[tuple[int, ...], dict[str, Any]]]:
    """Return the visible (static columns, key to columns)."""
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
            if name in KEYS and value is not None:
                for place, data in elements(name, value):
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
        if name == "u":
            found.setdefault(name, {})[place] = deserialize(FIELDS[place], data)
        elif name == "m":
            found.setdefault(name, set()).add((place, deserialize("int", data)))
        elif name == "e":
            found.setdefault(name, set()).add(place)
        else:
            found[name] = deserialize(TYPES[name], data)
    return found


def typed(values: Any) -> dict[str, Any]:
    found = {name: deserialize(TYPES[name], data) for name, data in values.items()}
    return {name: set(value) if name in ("m", "e") else value for name, value in found.items()}


FIELDS = {"a": "int", "b": "text"}


def elements(column: str, value: Any) -> list[tuple[Any, bytes]]:
    """Return (key, bytes) of the elements of a value."""
    if column == "u":
        return [(field, serialize(FIELDS[field], held)) for field, held in value.items()]
    if column == "m":
        return [(key, serialize("int", held)) for key, held in value]
    return [(element, b"") for element in value]


def element_key(column: str, key: Any) -> bytes:
    """Return the key of an element in a mutation. For a user type it is the field number."""
    if column == "u":
        return list(FIELDS).index(key).to_bytes(2, "big")
    return serialize("text" if column == "m" else "int", key)


def viewed(got: tuple[SeenRow, ...]) -> tuple[dict[str, Any], dict[tuple[int, ...], dict[str, Any]]]:
    """Return the visible rows in the form of the model. Static columns are equal in all rows."""
    rows = {
        tuple(deserialize("int", part or b"") for part in found.clustering_key): typed(found.values)
        for found in got
        if found.clustering_key is not None
    }
    statics = [typed(found.static) for found in got]
    assert all(static == statics[0] for static in statics)
    return (statics[0] if statics else {}), rows  # type: ignore[return-value]  # clustering columns are ints


# Conversion to mutations


SHAPE = TableShape(1, 2, True, ("text",), ("int", "int"), ("s",), tuple((name, TYPES[name]) for name in KEYS))


def mutation_of(statements: list[Statement]) -> Mutation:
    """Return one write of several statements with their own timestamps and times to live."""
    changes = [change_of(statement) for statement in statements]
    first = changes[0]
    return Mutation(
        None, None, "ks", "t", first.timestamp or 0, first.ttl, first.operation, (b"p",), first.clustering_key,
        first.cells, first.deleted_elements, first.replaced, first.bounds, tuple(changes[1:]),
    )  # fmt: skip


def change_of(statement: Statement) -> MutationStatement:
    operation = {"static": "UPDATE"}.get(statement.kind, statement.kind.upper())
    start, start_in, end, end_in = statement.bounds
    return MutationStatement(
        operation,
        tuple(serialize("int", part) for part in statement.key),
        tuple(Cell(name, None if v is None else serialize(TYPES[name], v)) for name, v in statement.cells),
        statement.at,
        statement.ttl or 0,
        tuple(DeletedElements(name, tuple(element_key(name, key) for key in keys)) for name, keys in statement.taken),
        statement.replaced,
        Bounds(prefix(start), start_in, prefix(end), end_in) if operation == "RANGE_DELETE" else None,
    )


def prefix(parts: tuple[int, ...]) -> tuple[bytes, ...]:
    return tuple(serialize("int", part) for part in parts)

"""Rows as text and JSON: values that people type, and what a read has found.

A value is typed as JSON has it (``5``, ``true``, ``[1, 2]``; text as it is, bytes as ``0x`` and hex digits), and shown
likewise. One that cannot be shown by its type, as that of a user type, is bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from ringlog.client.cdc.output import json_value
from ringlog.client.merge import LiveCell, merged
from ringlog.client.row_reads import FoundPartition
from ringlog.kernel.generations.statements import shape_of_table
from ringlog.kernel.schema.types import TypeMismatch, deserialize, serialize
from ringlog.kernel.state import ClusterState, Table
from ringlog.kernel.values import Micros
from ringlog.operator.requests import about
from ringlog.operator.views import name_of
from ringlog.wire.records import Cell, decode_mutation


def value_of(type_name: str, text: str) -> bytes:
    """The bytes of a value that was typed. Raises TypeMismatch."""
    refused = TypeMismatch(type_name, f"{text[:40]!r} is none")
    for meant in _meanings(text):
        try:
            return serialize(type_name, meant)
        except TypeMismatch as error:
            refused = error
    raise refused


def _meanings(text: str) -> Iterable[object]:
    """What a text may stand for; the first that is of the type is meant."""
    if text.startswith("0x"):
        with suppress(ValueError):
            yield bytes.fromhex(text[2:])
    yield text
    with suppress(ValueError):
        found = json.loads(text)
        yield _tuples(found)
        if type(found) is int:
            yield float(found)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def key_of(table: Table, parts: Iterable[str]) -> tuple[bytes, ...]:
    """Components of the key, as many as were typed. Raises TypeMismatch."""
    types = {column.name: column.type for column in table.columns}
    names = (*table.partition_key, *table.clustering_key)
    return tuple(value_of(types[name], part) for name, part in zip(names, parts, strict=False))


def cells_of(table: Table, values: Mapping[str, str | None]) -> tuple[Cell, ...]:
    """Cells by column, None: null. Raises TypeMismatch: also of a column that the table does not have."""
    types = {column.name: column.type for column in table.columns}
    for name in values:
        if name not in types:
            raise TypeMismatch("none", f"{table.full_name} has no column {name}", name)
    return tuple(Cell(name, None if text is None else value_of(types[name], text)) for name, text in values.items())


def found_json(state: ClusterState, found: FoundPartition, now: Micros) -> dict[str, Any]:
    """What a read has found, as of ``now``: the rows, and what it went by."""
    table = state.tables[found.table]
    types = {column.name: column.type for column in table.columns}
    live = merged((decode_mutation(one) for one in found.writes), shape_of_table(table), now)

    def shown(cells: Iterable[LiveCell]) -> dict[str, Any]:
        return {cell.column: _shown(types.get(cell.column, "blob"), cell.value) for cell in cells}

    def key(parts: tuple[bytes | None, ...]) -> dict[str, Any]:
        pairs = zip(table.clustering_key, parts, strict=True)
        return {name: None if part is None else _shown(types[name], part) for name, part in pairs}

    return {
        "static": shown(live.static),
        "rows": [key(row.clustering_key) | shown(row.cells) for row in live.rows],
        "writes": len(found.writes),
        "positions": {str(partition): offset for partition, offset in sorted(found.positions.items())},
        **about(state, found),
        "lacking": [name_of(state, node) for node in found.lacking],
    }


def _shown(type_name: str, data: bytes) -> Any:
    try:
        return json_value(deserialize(type_name, data))
    except TypeMismatch:
        return json_value(data)

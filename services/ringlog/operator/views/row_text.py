"""Rows and register values as text and JSON, for arguments and results of reads and writes.

A value is typed as JSON (``5``, ``true``, ``[1, 2]``), with text unquoted and bytes as ``0x`` and hex digits. It is
shown in the same form. A value that its type cannot decode is shown as bytes. Results include the plan, the epochs and
the nodes that answered.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from ringlog.client.cdc.output import json_value
from ringlog.client.data.plans import RequestPlan
from ringlog.client.data.registers import RegisterResult
from ringlog.client.data.row_merge import LiveCell, merged
from ringlog.client.data.row_reads import FoundPartition
from ringlog.kernel.cql.types import TypeMismatch, deserialize, serialize
from ringlog.kernel.generations.statements import shape_of_table
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.tables import Table
from ringlog.kernel.values import Micros
from ringlog.operator.errors import Refused
from ringlog.operator.views.views import name_of
from ringlog.operator.views.words import picked
from ringlog.wire.records import Cell, decode_mutation


def text_of(value: bytes, as_hex: bool) -> str:
    """Return a value as text or as hex digits."""
    return value.hex() if as_hex else value.decode(errors="backslashreplace")


def register_view(state: ClusterState, result: RegisterResult, as_hex: bool) -> dict[str, Any]:
    """Return a successful register request as JSON, with node names."""
    cell = result.cell
    return {
        "value": None if cell is None or cell.deleted else text_of(cell.value, as_hex),
        "timestamp": None if cell is None else cell.timestamp,
        "deleted": cell is not None and cell.deleted,
        **request_view(state, result),
    }


def request_view(state: ClusterState, result: RegisterResult | FoundPartition) -> dict[str, Any]:
    """Return the epoch, plan, answers and attempts of a successful request."""
    return {
        "epoch": result.epoch,
        "plan": _plan(state, result.plan),
        "answers": [{"node": name_of(state, answer.node), "epoch": answer.epoch} for answer in result.answers],
        "attempts": result.attempts,
        "repair": None if result.repair is None else _plan(state, result.repair),
    }


def _plan(state: ClusterState, plan: RequestPlan) -> dict[str, Any]:
    return {
        **picked(plan.request, "level", "token"),
        **picked(plan, "epoch", "changed"),
        "asked": [name_of(state, node) for node in plan.asked],
        "needs": [
            picked(need, "group", "datacenter", "count") | {"of": [name_of(state, node) for node in need.members]}
            for need in plan.needs
        ],
    }


def value_of(type_name: str, text: str) -> bytes:
    """Return the bytes of a typed value. Raises TypeMismatch."""
    refused = TypeMismatch(type_name, f"{text[:40]!r} is not valid")
    for meant in _meanings(text):
        try:
            return serialize(type_name, meant)
        except TypeMismatch as error:
            refused = error
    raise refused


def _meanings(text: str) -> Iterable[object]:
    """Yield the possible values of a text in order of precedence. The first one that the type accepts is used.

    Text precedes JSON, so that ``5`` in a text column remains text.
    """
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
    """Return the components of a complete or partial key. Raises TypeMismatch."""
    types = {column.name: column.type for column in table.columns}
    names = (*table.partition_key, *table.clustering_key)
    return tuple(value_of(types[name], part) for name, part in zip(names, parts, strict=False))


def cells_of(table: Table, values: Mapping[str, str | None]) -> tuple[Cell, ...]:
    """Return a cell for each column; None sets the column to null.

    Raises TypeMismatch, and Refused for an unknown column or a column of the key.
    """
    key = {*table.partition_key, *table.clustering_key}
    types = {column.name: column.type for column in table.columns if column.name not in key}
    for name in values:
        if name in key:
            raise Refused(
                "unknown_column", f"{name} is a key column of {table.full_name}. Give its value as part of the key"
            )
        if name not in types:
            raise Refused("unknown_column", f"{table.full_name} has no column {name}. {_columns_of(table, types)}")
    return tuple(Cell(name, None if text is None else value_of(types[name], text)) for name, text in values.items())


def _columns_of(table: Table, settable: Iterable[str]) -> str:
    key = ", ".join((*table.partition_key, *table.clustering_key))
    return f"Its columns: {', '.join(settable) or 'none'}; its key: {key}"


def found_json(state: ClusterState, found: FoundPartition, now: Micros) -> dict[str, Any]:
    """Return the result of a read as of ``now``: the live rows, and the epoch, plan and nodes of the request."""
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
        **request_view(state, found),
        "lacking": [name_of(state, node) for node in found.lacking],
    }


def _shown(type_name: str, data: bytes) -> Any:
    try:
        return json_value(deserialize(type_name, data))
    except TypeMismatch:
        return json_value(data)

"""JSON encoding of a partition's state, for stores."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from immutables import Map

from ringlog.kernel.rows.cells import RowCell, RowState
from ringlog.kernel.rows.partition import PartitionState, Range


def state_text(state: PartitionState) -> str:
    """Encode a partition's state as JSON."""
    found = {
        "deleted": state.deleted,
        "ranges": [
            [_hexes(item.start), item.start_inclusive, _hexes(item.end), item.end_inclusive, item.deleted]
            for item in state.ranges
        ],
        "static": _row_json(state.static),
        "rows": [[_hexes(key), _row_json(row)] for key, row in sorted(state.rows.items(), key=str)],
    }
    return json.dumps(found, separators=(",", ":"))


def state_of(text: str) -> PartitionState:
    """Decode the output of ``state_text``."""
    found = json.loads(text)
    ranges = tuple(Range(_bytes(a), b, _bytes(c), d, at) for a, b, c, d, at in found["ranges"])
    rows = Map({_bytes(key): _row(row) for key, row in found["rows"]})
    return PartitionState(found["deleted"], ranges, _row(found["static"]), rows)


def _row_json(row: RowState) -> list[Any]:
    marker = None if row.marker is None else [row.marker.timestamp, row.marker.expires]
    cells = [
        [column, _hex(key), cell.timestamp, _hex(cell.value), cell.expires]
        for (column, key), cell in sorted(row.cells.items(), key=str)
    ]
    return [row.deleted, marker, cells, dict(sorted(row.wiped.items()))]


def _row(found: list[Any]) -> RowState:
    deleted, marker, cells, wiped = found
    return RowState(
        deleted,
        None if marker is None else RowCell(marker[0], b"", marker[1]),
        Map({(column, _unhex(key)): RowCell(at, _unhex(value), expires) for column, key, at, value, expires in cells}),
        Map(wiped),
    )


def _hex(data: bytes | None) -> str | None:
    return None if data is None else data.hex()


def _unhex(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


def _hexes(parts: Iterable[bytes | None]) -> list[str | None]:
    return [_hex(part) for part in parts]


def _bytes(parts: Iterable[str | None]) -> tuple[bytes | None, ...]:
    return tuple(_unhex(part) for part in parts)

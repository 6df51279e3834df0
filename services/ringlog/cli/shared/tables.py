"""Tables that fit the width of the terminal.

A table that is too wide changes in steps: less space between columns, short ids, wrapped text, fewer columns, long
columns as lines below. Addresses and numbers are never cut or wrapped. ``COLUMNS`` sets the width in a pipe, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ringlog.cli.shared.connection import out
from ringlog.operator.views.words import printable

Cell = str | Text
LOW_VALUE: Final = ("release", "shards", "tokens", "trust", "log-in", "redis", "incarnation", "rack", "datacenter")
"""Columns that a narrow table drops, in this order."""
NARROW: Final = 160
"""Below this width columns of low value are dropped; else they are shown as lines below."""
WRAPPED_MIN: Final = 30
"""A longer column of text is wrapped down to this width."""
GAP, SMALL_GAP = 4, 2
_ID: Final = re.compile(r"\b([0-9a-f]{8})(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")


def show_table(columns: Sequence[str], rows: Iterable[Sequence[Cell]], none: str = "") -> None:
    """Print rows below their column names; ``none`` in place of an empty table."""
    out.print(draw_table(columns, list(rows), none))


def show_fields(view: Mapping[str, Any]) -> None:
    """Print a value in lines, a field in each. Lists of values are joined, other values are JSON."""
    for name, value in view.items():
        is_plain = not isinstance(value, dict | list) or (
            isinstance(value, list) and not any(isinstance(one, dict | list) for one in value)
        )
        shown = ", ".join(map(str, value)) if isinstance(value, list) else "-" if value is None else value
        out.print(printable(f"{name.replace('_', ' ')}: {shown if is_plain else json.dumps(value)}"), markup=False)


def draw_table(
    columns: Sequence[str], rows: Sequence[Sequence[Cell]], none: str = "", width: int | None = None
) -> RenderableType:
    """Return what ``show_table`` prints; ``width`` in characters, None: that of the console."""
    if none and not rows:
        return none
    width = out.width if width is None else width
    key = next((index for index, name in enumerate(columns) if name), 0)
    shown, dropped, below = list(range(len(columns))), list[int](), list[int]()
    natural = _natural(columns, rows)
    gap = GAP if sum(natural) + GAP * len(shown) <= width else SMALL_GAP
    if sum(natural) + gap * len(shown) > width:
        rows = [[cell if index == key else _short(cell) for index, cell in enumerate(row)] for row in rows]
        natural = _natural(columns, rows)
    least = [_least(natural[index], [str(row[index]) for row in rows]) for index in shown]
    while len(shown) > 1 and sum(least[index] for index in shown) + gap * len(shown) > width:
        low = next((index for name in LOW_VALUE for index in shown if columns[index] == name), None)
        if low is not None and width < NARROW:
            shown.remove(low)
            dropped.append(low)
            continue
        widest = max((index for index in shown if index != key), key=natural.__getitem__)
        shown.remove(widest)
        below.append(widest)
    widths = _shrunk({index: natural[index] for index in shown}, least, width - gap * len(shown))
    table = Table(box=None, padding=(0, 2) if gap == GAP else (0, gap, 0, 0))
    for index in shown:
        table.add_column(columns[index], width=widths[index], overflow="fold")
    for row in rows:
        table.add_row(*(row[index] for index in shown))
    lines = [
        Text.assemble(f"{columns[key]} ", (str(row[key]), "bold"), f" {columns[index]}: ", row[index])
        for row in rows
        for index in sorted(below)
        if str(row[index])
    ]
    note = f"not shown: {', '.join(columns[index] for index in sorted(dropped))} (widen the terminal, or use --json)"
    return Group(table, *lines, *([Text(note, "dim")] if dropped else []))


def _natural(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[int]:
    """Return the width of each column in characters if nothing is wrapped."""
    return [
        max(cell_len(line) for cell in (name, *(row[index] for row in rows)) for line in str(cell).split("\n"))
        for index, name in enumerate(columns)
    ]


def _least(natural: int, cells: Iterable[str]) -> int:
    """Return the smallest width of a column: long text is wrapped, but only between words."""
    word = max((cell_len(word) for cell in cells for word in cell.split()), default=0)
    return natural if natural <= WRAPPED_MIN else max(WRAPPED_MIN, word)


def _shrunk(widths: Mapping[int, int], least: Sequence[int], room: int) -> dict[int, int]:
    """Return the widths, the greatest ones reduced until all fit."""
    found = dict(widths)
    while sum(found.values()) > room:
        reducible = [index for index in found if found[index] > least[index]]
        if not reducible:
            break
        found[max(reducible, key=found.__getitem__)] -= 1
    return found


def _short(cell: Cell) -> Cell:
    """Return the cell with the first 8 characters of each id."""
    return Text(_ID.sub(r"\1", cell.plain), cell.style) if isinstance(cell, Text) else _ID.sub(r"\1", cell)

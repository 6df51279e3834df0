"""Shapes of tables in stored contexts: the order of a shape's fields is a format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ringlog.kernel.generations.statements import TableShape

COLLECTIONS = 3
"""Place of the collections among the fields of a table's shape that the first format had not."""


def shape_of_fields(fields: Sequence[Any]) -> TableShape:
    """The shape of a table in a stored context; the first release stored only its first three fields."""
    numbers, rest = fields[:3], [tuple(part) if isinstance(part, list) else part for part in fields[3:]]
    if len(rest) > COLLECTIONS:
        rest[COLLECTIONS] = tuple((column, kind) for column, kind in rest[COLLECTIONS])
    return TableShape(*numbers, *rest)

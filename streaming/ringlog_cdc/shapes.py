"""Shapes of tables in stored contexts: the order of a shape's fields is a format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any

from ringlog.kernel.generations.statements import TableShape

PAIRS = (3, 6)
"""Places of the pairs among the fields of a table's shape that the first format had not: collections, stored names."""


def fields_of_shape(shape: TableShape) -> list[Any]:
    """The fields of a shape, for a context; without stored names where none differs, as before there were any."""
    values = list(_values(shape))
    return values if shape.stored else values[:-1]


_values = attrgetter(*(field.name for field in fields(TableShape)))


def shape_of_fields(stored: Sequence[Any]) -> TableShape:
    """The shape of a table in a stored context; the first release stored only its first three fields."""
    numbers, rest = stored[:3], [tuple(part) if isinstance(part, list) else part for part in stored[3:]]
    for place in PAIRS:
        if len(rest) > place:
            rest[place] = tuple((column, said) for column, said in rest[place])
    return TableShape(*numbers, *rest)

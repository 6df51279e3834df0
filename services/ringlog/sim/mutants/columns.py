"""Bugs in where the cells of columns lie."""

from __future__ import annotations

from ringlog.sim.mutants.plant import Mutant
from ringlog.sim.respelling import PROFILE

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "dropped_column_comes_back",
        "ringlog.kernel.schema.stored",
        'others, first = frozenset(taken), f"{name}@{epoch}"',
        "others, first = frozenset(taken), name",
        "a column has the cells of a dropped one of its name",
        20,
        PROFILE,
    ),
    Mutant(
        "renamed_column_read_by_name",
        "ringlog.client.merge",
        "inner, names = stored_shape(shape), {place: name for name, place in shape.stored}",
        "inner, names = shape, dict(())",
        "a node looks for the cells of a renamed column under its new name",
        20,
        PROFILE,
    ),
    Mutant(
        "rows_logged_by_name",
        "ringlog_cdc.pieces",
        "compound, mutation = is_compound(mutation, shape), as_stored(mutation, shape.stored)",
        "compound = is_compound(mutation, shape)",
        "rows of the CDC log have the names that columns had when they were written",
        20,
        PROFILE,
    ),
    Mutant(
        "dropped_column_shown_as_namesake",
        "ringlog.kernel.schema.stored",
        "    return free | {place",
        "    return {place",
        "a reader of the CDC log takes cells of a dropped column for those of its namesake",
        20,
        PROFILE,
    ),
)

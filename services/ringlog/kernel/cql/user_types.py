"""Names of user types within a type's name, replaced by their definition: ``udt<field type, …>``.

Types have this form wherever values are read or written, so parsing a type needs no schema.
"""

from __future__ import annotations

from collections.abc import Mapping

from ringlog.kernel.cql.collections import FROZEN, PARTS, TUPLE, USER_TYPE, shape_of, tokens_of
from ringlog.kernel.cql.types import TYPES

Fields = tuple[tuple[str, str], ...]
"""Names and types, in order."""

BUILT_IN = frozenset({*TYPES, *PARTS, TUPLE, USER_TYPE, FROZEN})
"""Names that a user type must not have."""


def type_signature(fields: Fields) -> str:
    """Return a user type by its fields."""
    return f"{USER_TYPE}<{', '.join(f'{name} {kind}' for name, kind in fields)}>"


def used_in(type_name: str) -> frozenset[str]:
    """Return the names in a type's name that are not built-in types."""
    return frozenset(name for name in _named(type_name) if name) - BUILT_IN


def expand_types(type_name: str, known: Mapping[str, Fields]) -> str:
    """Return the type with the names of ``known`` types replaced recursively. Other names stay. Types are acyclic."""
    if not used_in(type_name) & known.keys():
        return type_name
    tokens = tokens_of(type_name) or ()
    parts = []
    for token, name in zip(tokens, _named(type_name), strict=True):
        fields = known.get(name)
        parts.append(
            token if fields is None else type_signature(tuple((one, expand_types(kind, known)) for one, kind in fields))
        )
    found = " ".join(parts)
    shape = shape_of(found)
    return found if shape is None else str(shape)


def is_part(name: str, type_name: str, known: Mapping[str, Fields]) -> bool:
    """Return True if a type contains the user type ``name``, directly or within its own user types."""
    used = used_in(type_name)
    return name in used or any(is_part(name, kind, known) for other in used & known.keys() for _, kind in known[other])


def _named(type_name: str) -> list[str]:
    """Return for each token of a type's name the token if it names a type, else an empty text.

    A field of a user type has its name before its type.
    """
    found, inside, before = [], list[str](), ""
    for token in tokens_of(type_name) or ():
        is_field = before in ("<", ",") and inside[-1:] == [USER_TYPE]
        found.append("" if is_field or token in "<>," else token)
        if token == "<":
            inside.append(before)
        elif token == ">" and inside:
            inside.pop()
        before = token
    return found

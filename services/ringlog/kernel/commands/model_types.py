"""Commands of user types. Their rules are in ``user_types``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TypeField:
    """A field of a user type and its CQL type name, which may be that of another user type, frozen."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class CreateType:
    """A new user type of a keyspace. A second create of the same name is refused, not merged."""

    keyspace: str
    name: str
    fields: tuple[TypeField, ...]


@dataclass(frozen=True, slots=True)
class AlterType:
    """Add fields behind those that there are; whatever is of the type has them from then on."""

    keyspace: str
    name: str
    fields: tuple[TypeField, ...]


@dataclass(frozen=True, slots=True)
class DropType:
    """Drop a user type that no table and no other type uses."""

    keyspace: str
    name: str

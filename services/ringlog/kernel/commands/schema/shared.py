"""Shared rules of all parts of the schema: names, existence, and the last alteration.

A part is a keyspace, table, type, view, index, function or aggregate. ``code``: that of the rejection.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from ringlog.kernel.commands.rules import IDENTIFIER_RULE, broken_field, made_of
from ringlog.kernel.model.outcome import Accepted, EntryContext, Rejected
from ringlog.kernel.model.state import ClusterState, advance
from ringlog.kernel.values import Value, is_identifier, is_uuid

T = TypeVar("T", bound=Value)


def broken_names(keyspace: str, name: str) -> Rejected | None:
    """Reject invalid names of a part of the schema."""
    return broken_field(
        (is_identifier(keyspace), "keyspace", IDENTIFIER_RULE), (is_identifier(name), "name", IDENTIFIER_RULE)
    )


def find_object(known: Mapping[str, T], code: str, subject: str, keyspace: str, name: str) -> T | Rejected:
    """Return the part of the schema with that name, or the rejection. ``subject``: its kind."""
    if (broken := broken_names(keyspace, name)) is not None:
        return broken
    found = known.get(f"{keyspace}.{name}")
    return found if found is not None else Rejected(code, f"name: there is no {subject} {keyspace}.{name}")


def no_keyspace(state: ClusterState, keyspace: str) -> Rejected | None:
    """Reject a new part of the schema in a keyspace that does not exist."""
    known = keyspace in state.keyspaces
    return None if known else Rejected("unknown_keyspace", f"keyspace: there is no keyspace {keyspace}")


def part_of(kind: type[T], command: Any, context: EntryContext, **own: Any) -> T:
    """Return the part of the schema that a command makes, with additional ``own`` fields."""
    return made_of(kind, command, version=context.state_id, changed=context.epoch, **own)


def exists(state: ClusterState, code: str, subject: str, version: str) -> Rejected:
    """Return the rejection of a new part of the schema that already exists. ``subject``: its kind and name."""
    return Rejected(code, f"name: the {subject} exists, {last_change(state, version)}")


def with_schema(state: ClusterState, context: EntryContext, **parts: object) -> Accepted:
    """Return the state with changed ``parts`` of the schema. The schema version is that of the entry."""
    return Accepted(advance(state, context.epoch, schema_version=context.state_id, **parts))


def last_change(state: ClusterState, version: str) -> str:
    """Return a text about the entry that made or last altered a part of the schema: its epoch, if still known, and its
    time.

    ``version``: the id of the state that the entry made, whose leading 48 bits are milliseconds since 1970.
    """
    applied = state.history.of_state(version)
    epoch = f"epoch {applied.epoch}" if applied is not None else f"an epoch before {state.history.oldest}"
    at = f", {utc(int(version[:8] + version[9:13], 16) // 1000)}" if is_uuid(version) else ""
    return f"made or last altered by {epoch}{at}"


def utc(seconds: int) -> str:
    """Return seconds since 1970 as ``2026-11-23T04:35:00Z``. Howard Hinnant's ``civil_from_days``: years begin in
    March.
    """
    days, rest = divmod(seconds, 86_400)
    era, day_of_era = divmod(days + 719_468, 146_097)
    year = (day_of_era - day_of_era // 1_460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day = day_of_era - (365 * year + year // 4 - year // 100)
    month = (5 * day + 2) // 153
    date = (
        year + era * 400 + month // 10,
        month % 12 + 3 - 12 * (month % 12 + 3 > 12),
        day - (153 * month + 2) // 5 + 1,
    )
    assert 1 <= date[1] <= 12, "the month is from 1 to 12"
    assert 1 <= date[2] <= 31, "the day is from 1 to 31"
    return f"{date[0]:04}-{date[1]:02}-{date[2]:02}T{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}Z"

"""Versions of the schema: state ids from the log; in a recovery, digests of what they are versions of.

An entry gives its state id to the schema and to each table that it changes, so nobody computes a version. In a recovery
the log is not what vouches for the state: there each is the SHA-256 of what it stands for, in hex, and a table says so
(``committed_by_log`` false) until an entry outside a recovery changes it again.

``by_log_or_digest`` is asked behind every rule, so that no rule has to know of it.

Source: ScyllaDB, ``docs/dev`` on Raft, "Group 0 schema versioning": in recovery mode the old behaviour,
hashes, is forced.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ringlog.kernel.encoding import encode, sha256_of
from ringlog.kernel.outcome import EntryContext
from ringlog.kernel.parts import PARTS, SCHEMA
from ringlog.kernel.service import in_recovery
from ringlog.kernel.state import ClusterState, Table, TableLife, advance, in_order

SCHEMA_PARTS: Final = tuple(part.name for part in PARTS if part.topic == SCHEMA)
"""All that the version of the schema is one of: whatever changes there has another version, also in a recovery."""


def by_log_or_digest(before: ClusterState, after: ClusterState, context: EntryContext) -> ClusterState:
    """The state that a command made, its new versions as they are to be in or outside a recovery."""
    if after.schema_version != context.state_id:
        return after
    recovery = in_recovery(before) is not None
    tables, lives = after.tables, after.table_lives
    for name, table in in_order(after.tables) if after.tables is not before.tables else ():
        if table.version == context.state_id and table.committed_by_log == recovery:
            marked = digested(table) if recovery else replace(table, committed_by_log=True)
            tables = tables.set(name, marked)
            if name in lives:
                lives = lives.set(name, tuple(_with(life, table, marked) for life in lives[name]))
    if not recovery:
        return advance(after, context.epoch, tables=tables, table_lives=lives)
    after = advance(after, context.epoch, tables=tables, table_lives=lives)
    whole = tuple(getattr(after, name) for name in SCHEMA_PARTS)
    return advance(after, context.epoch, schema_version=sha256_of(encode(whole)))


def digested(table: Table) -> Table:
    """The table under its digest, which no other table has, nor this one with another epoch of its change."""
    return replace(table, version=sha256_of(encode(replace(table, version=""))), committed_by_log=False)


def _with(life: TableLife, table: Table, marked: Table) -> TableLife:
    versions = tuple(replace(one, table=marked) if one.table == table else one for one in life.versions)
    return replace(life, versions=versions)

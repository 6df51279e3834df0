"""What was in force at an epoch, from the metadata log itself.

The publisher names the newest state; from there the entries lead back to the founding one, each naming the state before
it. Those are the entries that count, one an epoch: an author that lost a race, and a command that was refused, made
states that nothing follows.

Which columns of a table count: those of the epoch at which a write was judged. A dead letter tells that epoch, a row
does not; but columns are only added, so one that was there then is there today.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import fastavro

from ringlog.audit.topics import AuditError, Decoder, latest, records

SHAPERS = ("CreateTable", "AlterTable", "DropTable")


@dataclass(frozen=True, slots=True)
class ColumnSteps:
    """Of each table, by its full name: (epoch, names of the columns from there on), by ascending epoch."""

    steps: dict[str, list[tuple[int, frozenset[str]]]] = field(default_factory=dict)

    def at_epoch(self, table: str, epoch: int) -> frozenset[str] | None:
        """The columns of a table outside its key at an epoch; None if no entry says."""
        return next((names for since, names in reversed(self.steps.get(table, [])) if since <= epoch), None)


def columns_over_time(entries: Iterable[dict[str, Any]], decoder: Decoder) -> ColumnSteps:
    """What the entries of all epochs from 1 on say of the columns of tables."""
    steps: dict[str, list[tuple[int, frozenset[str]]]] = {}
    for epoch, entry in enumerate(entries, start=1):
        if entry["kind"] not in SHAPERS:
            continue
        command = command_of(entry, decoder)
        name = f"{command['keyspace']}.{command['name']}"
        if entry["kind"] == "CreateTable":
            key = {*command["partition_key"], *command["clustering_key"]}
            before = frozenset[str]()
            added = {column["name"] for column in command["columns"]} - key
        else:
            before = steps[name][-1][1] if entry["kind"] == "AlterTable" else frozenset()
            added = {column["name"] for column in command.get("add_columns", ())}
        steps.setdefault(name, []).append((epoch, before | added))
    return ColumnSteps(steps)


def command_of(entry: dict[str, Any], decoder: Decoder) -> Any:
    """The command of an entry, decoded."""
    schema = decoder.named(f"ringlog.commands.{entry['kind']}", entry["version"])
    return fastavro.schemaless_reader(io.BytesIO(entry["command"]), schema, None)


def published_entries(bootstrap: str, cluster: str, decoder: Decoder) -> list[dict[str, Any]]:
    """The entries that made the epochs from 1 to the published one; raises AuditError if they do not lead to the
    founding one.
    """
    # The head first: the cluster goes on meanwhile, and what is published later is not in the log that was read.
    heads = [decoder.decode(value) for value in latest(bootstrap, f"{cluster}.epochs").values()]
    if not heads:
        raise AuditError(f"nothing is published in {cluster}.epochs: is the publisher running?")
    entries = {}
    for message in records(bootstrap, f"{cluster}.metadata"):
        try:
            entry = decoder.decode(message.value() or b"")
        except AuditError:
            continue  # bytes that are no entry make no state
        entries[entry["state_id"]] = entry
    return chain(entries, heads[0]["epoch"], bytes.fromhex(heads[0]["state_id"].replace("-", "")))


def chain(entries: dict[bytes, dict[str, Any]], epoch: int, head: bytes | None) -> list[dict[str, Any]]:
    """The entries that made the epochs from 1 to ``epoch``, whose state is ``head``."""
    found: list[dict[str, Any]] = []
    while head is not None:
        if head not in entries or len(found) == epoch:
            raise AuditError(f"the metadata log does not lead from epoch {epoch} to the founding entry")
        found.append(entries[head])
        head = entries[head]["prev_state_id"]
    if len(found) != epoch:
        raise AuditError(f"epoch {epoch} is published, and {len(found)} entries lead to it")
    return found[::-1]

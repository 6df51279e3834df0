"""What was in force at an epoch, from the metadata log itself.

The publisher names the newest state; from there the entries lead back to the founding one, each naming the state before
it. Those are the entries that count, one an epoch: an author that lost a race, and a command that was refused, made
states that nothing follows.

Which version of a table reads a write is the kernel's one rule (``ringlog.kernel.generations.verdicts``), worked out a
second time here, since the audit is a second opinion: what an entry changes counts for writes appended from the settled
time of the state before it. Without a settled time it is the version of the epoch at which the write was judged, which
a dead letter and a row name; where nobody does, any version may have been the one. The rule of stored names
(``ringlog.kernel.schema.stored``) is worked out again, too: once a column of a table was dropped or renamed, what is
added lies under ``name@epoch``.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import fastavro

from ringlog.audit.topics import AuditError, Decoder, latest, records

SHAPERS = {"CreateTable": "create_table", "AlterTable": "alter_table", "DropTable": "drop_table"}
"""Commands that change the columns of a table, each with its field in a statement of a batch."""
BATCH = "SchemaBatch"
SETTLERS = ("SettleVerdicts", "AdvanceCdcWriter", "LowerCdcWriter", "LowerSettledTime")
"""Commands that may change the settled time."""


@dataclass(frozen=True, slots=True)
class ColumnsVersion:
    """The columns of a table from ``epoch`` on, those outside its key, by name: what rows call each. They count for
    writes appended from ``since`` on. ``id``: of the version, 16 bytes; ``respelled``: a column was dropped or renamed;
    ``begins``: it is the first one of its table.
    """

    epoch: int
    since: int
    id: bytes
    columns: dict[str, str]
    respelled: bool = False
    begins: bool = False


@dataclass(slots=True)
class ColumnSteps:
    """Of each table, by its full name, the versions by ascending epoch, and (type, static) of each column that it ever
    had, by what rows call it. ``settled``: the settled time; 0: none was promised. ``horizons``: of CDC writers.
    """

    steps: dict[str, list[ColumnsVersion]] = field(default_factory=dict)
    kinds: dict[str, dict[str, tuple[str, bool]]] = field(default_factory=dict)
    settled: int = 0
    horizons: dict[str, int] = field(default_factory=dict)

    def read_by(self, write: dict[str, Any], now: int, epoch: int | None) -> ColumnsVersion | None:
        """The version that reads a write appended at ``now``, and judged at ``epoch``; None if no entry says."""
        known = self.steps.get(f"{write['keyspace']}.{write['table']}", [])
        if not self.settled:
            return next((one for one in reversed(known) if epoch is not None and one.epoch <= epoch), None)
        counting = [one for one in known if one.since <= now]
        if (version := write.get("table_version")) is not None:
            counting = [one for one in counting if one.id == version]
        elif (by := write.get("epoch")) is not None:
            counting = [one for one in counting if one.epoch <= by]
        return counting[-1] if counting else None

    def names(self, table: str) -> frozenset[str]:
        """Every column that a table ever had."""
        return frozenset(name for one in self.steps.get(table, ()) for name in one.columns)

    def settle(self, kind: str, command: dict[str, Any]) -> None:
        """An entry may change the settled time, which is above all horizons from the first time on."""
        if kind == "LowerSettledTime":
            self.settled = command["until"]
            for name, known in self.steps.items():
                self.steps[name] = [replace(one, since=min(one.since, self.settled)) for one in known]
        elif kind == "SettleVerdicts":
            horizons = self.horizons.values() if not self.settled else ()
            self.settled = max(self.settled, command["until"], *horizons)
        else:
            self.horizons[command["writer"]] = command["horizon"]
            if self.settled and kind == "AdvanceCdcWriter":
                self.settled = max(self.settled, command["horizon"])

    def shape(self, kind: str, command: dict[str, Any], epoch: int, state_id: bytes, since: int) -> None:
        """An entry makes, alters or drops a table."""
        name = f"{command['keyspace']}.{command['name']}"
        last = self.steps[name][-1] if kind == "AlterTable" else ColumnsVersion(0, 0, b"", {})
        columns, respelled, added = dict(last.columns), last.respelled, command.get("add_columns", ())
        if kind == "CreateTable":
            key = {*command["partition_key"], *command["clustering_key"]}
            added = [column for column in command["columns"] if column["name"] not in key]
        for gone in command.get("drop_columns", ()):
            del columns[gone]
            respelled = True
        if renames := {one["from"]: one["to"] for one in command.get("rename_columns", ())}:
            columns = {renames.get(own, own): place for own, place in columns.items()}
            respelled = True
        for column in added:
            columns[column["name"]] = place = _place(column["name"], epoch, columns) if respelled else column["name"]
            self.kinds.setdefault(name, {})[place] = column["type"], bool(column.get("static"))
        self.steps.setdefault(name, []).append(
            ColumnsVersion(epoch, since, state_id, columns, respelled, begins=kind == "CreateTable")
        )


def _place(name: str, epoch: int, columns: dict[str, str]) -> str:
    place, number = f"{name}@{epoch}", 1
    while place in columns.values():
        number += 1
        place = f"{name}@{epoch}.{number}"
    return place


def columns_over_time(entries: Iterable[dict[str, Any]], decoder: Decoder) -> ColumnSteps:
    """What the entries of all epochs from 1 on say of the columns of tables."""
    found, there = ColumnSteps(), set[str]()
    for epoch, entry in enumerate(entries, start=1):
        since = found.settled
        if entry["kind"] in SETTLERS:
            found.settle(entry["kind"], command_of(entry, decoder))
        for kind, command in shaping(entry, decoder):
            name = f"{command['keyspace']}.{command['name']}"
            if (kind == "CreateTable") == (name in there):
                continue  # a statement that its batch passed over
            there = there | {name} if kind != "DropTable" else there - {name}
            found.shape(kind, command, epoch, entry["state_id"], since)
    return found


def shaping(entry: dict[str, Any], decoder: Decoder) -> Iterator[tuple[str, Any]]:
    """(kind, command) of what changes the columns of a table in an entry, in its order."""
    if entry["kind"] in SHAPERS:
        yield entry["kind"], command_of(entry, decoder)
    elif entry["kind"] == BATCH:
        for statement in command_of(entry, decoder)["statements"]:
            for kind, place in SHAPERS.items():
                if statement[place] is not None:
                    yield kind, statement[place]


def command_of(entry: dict[str, Any], decoder: Decoder) -> Any:
    """The command of an entry, decoded."""
    schema = decoder.named(f"ringlog.commands.{entry['kind']}", entry["version"])
    return fastavro.schemaless_reader(io.BytesIO(entry["command"]), schema, None)


def published_entries(
    bootstrap: str, cluster: str, decoder: Decoder, archived: Iterable[bytes] = ()
) -> list[dict[str, Any]]:
    """The entries that made the epochs from 1 to the published one; raises AuditError if they do not lead to the
    founding one. ``archived``: records that the log had before those which it begins with now.
    """
    # The head first: the cluster goes on meanwhile, and what is published later is not in the log that was read.
    heads = [decoder.decode(value) for value in latest(bootstrap, f"{cluster}.epochs").values()]
    if not heads:
        raise AuditError(f"nothing is published in {cluster}.epochs: is the publisher running?")
    log = (message.value() or b"" for message in records(bootstrap, f"{cluster}.metadata"))
    entries = {}
    for data in (*archived, *log):
        try:
            entry = decoder.decode(data)
        except AuditError:
            continue  # bytes that are no entry make no state
        entries[entry["state_id"]] = entry
    return chain(entries, heads[0]["epoch"], bytes.fromhex(heads[0]["state_id"].replace("-", "")))


def chain(entries: dict[bytes, dict[str, Any]], epoch: int, head: bytes | None) -> list[dict[str, Any]]:
    """The entries that made the epochs from 1 to ``epoch``, whose state is ``head``."""
    found: list[dict[str, Any]] = []
    while head is not None:
        if head not in entries or len(found) == epoch:
            raise AuditError(
                f"the metadata log does not lead from epoch {epoch} to the founding entry; if it was truncated, name "
                "the archive of what went (--archive)"
            )
        found.append(entries[head])
        head = entries[head]["prev_state_id"]
    if len(found) != epoch:
        raise AuditError(f"epoch {epoch} is published, and {len(found)} entries lead to it")
    return found[::-1]

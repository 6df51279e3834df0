"""The plan of a recording: registrations, joins and the schema, as lines for ``ringlog rehearse`` and ``plan stage``.

Each line is rehearsed on an empty cluster before it is part of the plan. An object that the rules of the log reject is
left out with their reason, and so is each object that depends on it. A rejected node or keyspace refuses the import,
because nothing can be placed without it.

Parts of a plan end with ``{"do": "finish"}``: keyspaces need nodes that have joined. Tablets of ScyllaDB get their
places with ``{"do": "place"}``, which only a rehearsal carries out; in a running cluster the balancer places them.

Invariant: equal recordings give equal plans, byte for byte.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from ringlog.kernel.commands.schema.batch import STATEMENTS_MAX
from ringlog.kernel.model.plans import COMMANDS_MAX
from ringlog.kernel.model.settings import SETTINGS
from ringlog.kernel.model.tablet_map import uniform_ends
from ringlog.kernel.values import Value, is_identifier
from ringlog.operator.ddl.reading import DdlError, read_ddl
from ringlog.operator.ddl.writing import identifier, literal
from ringlog.operator.imports.recording import SCYLLA, TABLETS, BadSource, Row, SourceNode, SourceRecording, nodes_of
from ringlog.operator.rehearsal.rehearsal import Rehearsal

Json = dict[str, Any]
FINISH: Final[Json] = {"do": "finish"}
_OWN: Final = frozenset(
    {
        *("system", "system_schema", "system_auth", "system_distributed", "system_traces", "system_views"),
        *("system_virtual_schema", "system_cluster_metadata", "system_distributed_everywhere"),
        *("system_replicated_keys", "audit"),
    }
)
"""Keyspaces of the source itself."""
_BATCH_BYTES: Final = 100_000
"""The most characters of a batch of statements, far below the limit of an entry."""
_CONDITION: Final = re.compile(r'("?\w+"?)\s+IS\s+NOT\s+NULL', re.IGNORECASE | re.ASCII)
_STORED_OTHERWISE: Final = frozenset({"dense", "super", "counter"})
"""Flags of tables whose rows have another form than rows of CQL."""
_LOG_TABLE: Final = "_scylla_cdc_log"
_NAME_RULE: Final = "must be a letter, then up to 47 letters, digits and _"


class _LeftOut(Exception):
    """An object that the plan cannot have. The message is the reason."""


class ImportedPlan(Value):
    """A plan, and how it differs from its source.

    Attributes:
        lines: JSON values of the plan's lines.
        left_out: Objects that the plan lacks, each with the reason.
        differences: Properties of objects that the plan changes.
    """

    lines: tuple[Json, ...]
    nodes: int
    keyspaces: tuple[str, ...]
    statements: int
    left_out: tuple[str, ...]
    differences: tuple[str, ...]

    def text(self) -> str:
        """Return the file of the plan: a line of JSON each."""
        return "".join(f"{json.dumps(line)}\n" for line in self.lines)

    def parts(self) -> int:
        """Return the number of parts that are staged one after the other."""
        return self.lines.count(FINISH) + bool(self.statements)


def plan_of(recording: SourceRecording, keyspaces: Iterable[str] = (), *, registered: bool = False) -> ImportedPlan:
    """Return the plan of a recording. Raises BadSource.

    Args:
        keyspaces: The keyspaces to import; none: all of users.
        registered: The nodes register themselves, so the plan only joins them.
    """
    nodes, left_out = nodes_of(recording)
    rehearsal = Rehearsal()
    lines = list(_node_lines(nodes, rehearsal, registered))
    schema = _Schema(recording, frozenset(keyspaces), nodes, rehearsal, left_out)
    schema.read()
    for number, batch in enumerate(_batches(schema.statements)):
        lines += [FINISH] if number and number % COMMANDS_MAX == 0 else []
        lines.append({"command": "SchemaBatch", "statements": batch})
    lines += schema.places
    return ImportedPlan(
        tuple(lines),
        len(nodes),
        tuple(schema.keyspaces),
        len(schema.statements),
        tuple(schema.left_out),
        tuple(schema.differences),
    )


def _node_lines(nodes: Sequence[SourceNode], rehearsal: Rehearsal, registered: bool) -> Iterator[Json]:
    """Yield the lines that register and join the nodes, as many in a part as may join at a time."""
    at_a_time = SETTINGS["operations_admitted_max"].default
    for begin in range(0, len(nodes), at_a_time):
        for node in nodes[begin : begin + at_a_time]:
            register = {
                "command": "RegisterNode",
                **{name: getattr(node, name) for name in ("name", "id", "address", "datacenter", "rack")},
                "shards": node.shards,
                "ignore_msb": node.ignore_msb,
            }
            join = {"command": "Join", "node": node.name, "tokens": list(node.tokens)}
            for line in (register, join):
                if (why := _rejected(rehearsal, line)) is not None:
                    raise BadSource(f"node {node.name}: {why}", "unsupported_source")
            yield from (join,) if registered else (register, join)
        rehearsal.line(json.dumps(FINISH), 1)
        yield FINISH


def _rejected(rehearsal: Rehearsal, line: Json) -> str | None:
    answer = rehearsal.line(json.dumps(line), 1)
    return None if answer.get("outcome", "applied") == "applied" else f"{answer['code']}: {answer['detail']}"


def _batches(statements: Sequence[Json]) -> Iterator[list[Json]]:
    """Yield the statements in the groups that one entry each applies."""
    batch: list[Json] = []
    size = 0
    for one in statements:
        length = len(json.dumps(one))
        if batch and (len(batch) == STATEMENTS_MAX or size + length > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(one)
        size += length
    if batch:
        yield batch


class _Schema:
    """The statements of the schema so far, in the order of their dependencies."""

    def __init__(
        self,
        recording: SourceRecording,
        wanted: frozenset[str],
        nodes: Sequence[SourceNode],
        rehearsal: Rehearsal,
        left_out: list[str],
    ) -> None:
        self._recording = recording
        self._wanted = wanted
        self._names = {node.id: node.name for node in nodes}
        self._rehearsal = rehearsal
        self._columns = _by_name(recording, "system_schema.columns", "table_name")
        self._cdc = _by_name(recording, "system_schema.scylla_tables", "table_name")
        self._indexes = _by_name(recording, "system_schema.indexes", "index_name")
        self._tablets = defaultdict[str, list[Row]](list)
        for row in sorted(recording.table(TABLETS), key=_last_token):
            self._tablets[row.uuid("table_id")].append(row)
        self.left_out = left_out
        self.keyspaces: list[str] = []
        self.statements: list[Json] = []
        self.places: list[Json] = []
        self.differences: list[str] = []

    def read(self) -> None:
        """Read all objects of the wanted keyspaces."""
        found = {row.text("keyspace_name"): row for row in self._recording.table("system_schema.keyspaces")}
        if len(found) != len(self._recording.table("system_schema.keyspaces")):
            raise BadSource("system_schema.keyspaces, keyspace_name: a keyspace appears twice")
        if missing := sorted(self._wanted - found.keys()):
            raise BadSource(f"the source has no keyspace {', '.join(missing)}", "unsupported_source")
        in_tablets = {
            row.text("keyspace_name")
            for row in self._recording.table("system_schema.scylla_keyspaces")
            if row.values.get("initial_tablets") is not None
        }
        for name in sorted(self._wanted or found.keys() - _OWN):
            self._keyspace(name, found[name], name in in_tablets)
        self._types()
        for kind, table, column, make in (
            ("function", "system_schema.functions", "function_name", _function),
            ("aggregate", "system_schema.aggregates", "aggregate_name", _aggregate),
            ("table", "system_schema.tables", "table_name", self._table),
            ("index", "system_schema.indexes", "index_name", _index),
            ("view", "system_schema.views", "view_name", self._view),
        ):
            for row in self._of_users(table):
                if (why := self._failure(row, make)) is not None:
                    self.left_out.append(f"{kind} {row.text('keyspace_name')}.{row.text(column)}: {why}")
                elif kind == "table":
                    self._describe_table(row)
        for row in self._of_users("system_schema.triggers"):
            place = f"{row.text('keyspace_name')}.{row.text('table_name')}"
            self.left_out.append(f"trigger {row.text('trigger_name')} of {place}: triggers are not supported")

    def _of_users(self, table: str) -> list[Row]:
        """Return the rows of imported keyspaces, without the log tables and index views that the source adds."""
        return [
            row
            for row in self._recording.table(table)
            if row.text("keyspace_name") in self.keyspaces and not self._is_derived(row)
        ]

    def _is_derived(self, row: Row) -> bool:
        if self._recording.kind != SCYLLA:
            return False
        keyspace, name = row.text("keyspace_name"), row.text("table_name", "")
        base = name.removesuffix(_LOG_TABLE)
        if base != name:
            return (keyspace, base) in self._columns
        view = row.text("view_name", "")
        return view.endswith("_index") and (keyspace, view.removesuffix("_index")) in self._indexes

    def _keyspace(self, name: str, row: Row, in_tablets: bool) -> None:
        if not is_identifier(name):
            row.refuse("keyspace_name", _NAME_RULE, "unsupported_source")
        statement = {"command": "CreateKeyspace", "name": name, "replication": _replication(row, in_tablets)}
        if (why := _rejected(self._rehearsal, statement)) is not None:
            raise BadSource(f"keyspace {name}: {why}", "unsupported_source")
        if not row.flag("durable_writes", True):
            self.differences.append(f"keyspace {name}: durable_writes is false. In Ringlog every write is durable")
        self.statements.append(statement)
        self.keyspaces.append(name)

    def _types(self) -> None:
        """Create the types, each after the types of its fields."""
        left = self._of_users("system_schema.types")
        while left:
            later = [row for row in left if self._failure(row, _type) is not None]
            if len(later) == len(left):
                break
            left = later
        for row in left:
            name = f"type {row.text('keyspace_name')}.{row.text('type_name')}"
            self.left_out.append(f"{name}: {self._failure(row, _type)}")

    def _failure(self, row: Row, make: Any) -> str | None:
        """Add the statement of a row. Return why the plan cannot have it, or None."""
        try:
            statement = make(row)
        except (_LeftOut, DdlError) as error:
            return str(error)
        why = _rejected(self._rehearsal, statement)
        if why is None:
            self.statements.append(statement)
        return why

    def _table(self, row: Row) -> Json:
        keyspace, name = row.text("keyspace_name"), row.text("table_name")
        if _STORED_OTHERWISE & set(flags := row.texts("flags")) or "compound" not in flags:
            raise _LeftOut("COMPACT STORAGE and counters are not supported")
        logged = self._cdc[keyspace, name]
        options = _cdc(logged[0].pairs("cdc")) if logged else {"enabled": row.flag("cdc", False)}
        tablets = len(self._tablets[row.uuid("id")])
        return {
            "command": "CreateTable",
            "keyspace": keyspace,
            "name": name,
            "id": row.uuid("id"),
            **_definition(self._columns[keyspace, name], keyspace),
            **({"cdc": options} if options.get("enabled") else {}),
            **({"tablets": {"min_count": tablets}} if tablets else {}),
        }

    def _describe_table(self, row: Row) -> None:
        """Add how a table of the plan differs from its source, and the places of its tablets."""
        place = f"{row.text('keyspace_name')}.{row.text('table_name')}"
        for column in self._columns[row.text("keyspace_name"), row.text("table_name")]:
            if column.text("clustering_order", "none").lower() == "desc":
                self.differences.append(
                    f"table {place}: {column.text('column_name')} is in descending order. It gets ASC"
                )
        if row.number_in("default_time_to_live", 0, 2**31 - 1, 0):
            self.differences.append(f"table {place}: default_time_to_live has no equivalent")
        tablets = self._tablets[row.uuid("id")]
        if not tablets:
            return
        if tuple(map(_last_token, tablets)) != uniform_ends(len(tablets)):
            self.differences.append(f"table {place}: its tablets have different sizes. The plan does not place them")
            return
        if any(one.text("stage", "") for one in tablets):
            self.differences.append(f"table {place}: tablets migrate. The plan has their present replicas")
        line = {"do": "place", "table": place, "replicas": [self._replicas(one) for one in tablets]}
        if (why := _rejected(self._rehearsal, line)) is not None:
            tablets[0].refuse("replicas", why)
        self.places.append(line)

    def _replicas(self, row: Row) -> list[list[Any]]:
        pairs = row.items("replicas")
        if not all(isinstance(one, list) and len(one) == 2 and str(one[0]) in self._names for one in pairs):
            row.refuse("replicas", "must be a list of [id of a node, shard]")
        return [[self._names[str(host)], shard] for host, shard in pairs]

    def _view(self, row: Row) -> Json:
        keyspace, name = row.text("keyspace_name"), row.text("view_name")
        conditions = re.split(r"\s+AND\s+", row.text("where_clause", many_lines=True).strip(), flags=re.IGNORECASE)
        found = _definition(self._columns[keyspace, name], keyspace)
        named = [match[1].strip('"') for one in conditions if (match := _CONDITION.fullmatch(one.strip()))]
        if len(named) < len(conditions) or not set(named) <= {*found["partition_key"], *found["clustering_key"]}:
            raise _LeftOut("its WHERE has more than IS NOT NULL of key columns")
        return {
            "command": "CreateView",
            "keyspace": keyspace,
            "name": name,
            "table": row.text("base_table_name"),
            "columns": [one["name"] for one in found["columns"]],
            "partition_key": found["partition_key"],
            "clustering_key": found["clustering_key"],
        }


@lru_cache(4_096)
def _read_type(text: str, keyspace: str) -> str:
    """Return a type of CQL as commands spell it. Raises DdlError, and _LeftOut for text that is more than a type."""
    try:
        statements = read_ddl(f"CREATE TYPE {identifier(keyspace)}.t (c {text});")
    except DdlError:
        raise _LeftOut(f"the type {text[:100]} is not supported") from None
    fields = statements[0].json.get("fields", [])
    if len(statements) != 1 or len(fields) != 1 or fields[0]["name"] != "c":
        raise _LeftOut(f"{text[:100]} is not a type")
    return str(fields[0]["type"])


def _last_token(row: Row) -> int:
    return row.number_in("last_token", -(2**63), 2**63 - 1)


def _by_name(recording: SourceRecording, table: str, column: str) -> defaultdict[tuple[str, str], list[Row]]:
    """Return the rows of a table by keyspace and this column."""
    found = defaultdict[tuple[str, str], list[Row]](list)
    for row in recording.table(table):
        found[row.text("keyspace_name"), row.text(column)].append(row)
    return found


def _definition(columns: Iterable[Row], keyspace: str) -> Json:
    """Return columns and key of a table or view."""
    by_kind: dict[str, list[tuple[int, str]]] = defaultdict(list)
    found = []
    for row in columns:
        name, kind = row.text("column_name"), row.text("kind")
        if kind not in ("partition_key", "clustering", "regular", "static"):
            row.refuse("kind", "must be partition_key, clustering, regular or static")
        by_kind[kind].append((row.number_in("position", -1, 2**31 - 1), name))
        static = {"static": True} if kind == "static" else {}
        found.append({"name": name, "type": _read_type(row.text("type"), keyspace), **static})
    keys = {kind: [name for _, name in sorted(by_kind[kind])] for kind in ("partition_key", "clustering")}
    order: dict[Any, int] = {name: index for index, name in enumerate(keys["partition_key"] + keys["clustering"])}
    found.sort(key=lambda one: (order.get(one["name"], len(order)), one["name"]))
    return {"columns": found, "partition_key": keys["partition_key"], "clustering_key": keys["clustering"]}


def _replication(row: Row, in_tablets: bool) -> Json:
    """Return the replication of a keyspace. Raises BadSource."""
    given = row.pairs("replication")
    name = given.pop("class", "").rpartition(".")[2]
    for key, value in given.items():
        if not re.fullmatch("[0-9]{1,4}", value):
            row.refuse(f"replication.{key}", f"{value[:40]} is not a number of replicas", "unsupported_source")
    text = f"CREATE KEYSPACE k WITH replication = {literal({'class': name, **_without_zeros(given)})}"
    try:
        found = dict(read_ddl(text)[0].json["replication"])
    except DdlError as error:
        row.refuse("replication", str(error).rpartition(": replication: ")[2] or name, "unsupported_source")
    return found | {"strategy": "tablets"} if in_tablets else found


def _without_zeros(given: Mapping[str, str]) -> dict[str, str]:
    """Return the factors by datacenter, without datacenters that have no replica."""
    return {key: value for key, value in given.items() if value.strip("0") or key == "replication_factor"}


def _cdc(given: Mapping[str, str]) -> Json:
    """Return the options of a CDC log."""
    flags = {"true": True, "false": False}
    found = {name: flags.get(value, value) for name, value in given.items() if name != "ttl"}
    return found | ({"ttl": int(given["ttl"])} if re.fullmatch("[0-9]{1,18}", given.get("ttl", "")) else {})


def _type(row: Row) -> Json:
    keyspace = row.text("keyspace_name")
    names, types = row.texts("field_names"), row.texts("field_types")
    if len(names) != len(types):
        row.refuse("field_types", "must be one for each of field_names")
    fields = [{"name": name, "type": _read_type(kind, keyspace)} for name, kind in zip(names, types, strict=True)]
    return {"command": "CreateType", "keyspace": keyspace, "name": row.text("type_name"), "fields": fields}


def _arguments(row: Row) -> list[str]:
    return [_read_type(kind, row.text("keyspace_name")) for kind in row.texts("argument_types")]


def _function(row: Row) -> Json:
    return {
        "command": "CreateFunction",
        "keyspace": row.text("keyspace_name"),
        "name": row.text("function_name"),
        "arguments": _arguments(row),
        "argument_names": list(row.texts("argument_names")),
        "returns": _read_type(row.text("return_type"), row.text("keyspace_name")),
        "language": row.text("language"),
        "body": row.text("body", many_lines=True),
        "called_on_null": row.flag("called_on_null_input", False),
    }


def _aggregate(row: Row) -> Json:
    final, initial = row.text("final_func", ""), row.text("initcond", "", many_lines=True)
    return {
        "command": "CreateAggregate",
        "keyspace": row.text("keyspace_name"),
        "name": row.text("aggregate_name"),
        "arguments": _arguments(row),
        "state_function": row.text("state_func"),
        "state_type": _read_type(row.text("state_type"), row.text("keyspace_name")),
        **({"final_function": final} if final else {}),
        **({"initial": initial} if initial else {}),
    }


def _index(row: Row) -> Json:
    if (kind := row.text("kind")) == "CUSTOM":
        raise _LeftOut(f"the class {row.pairs('options').get('class_name', kind)[:100]} is not supported")
    return {
        "command": "CreateIndex",
        "keyspace": row.text("keyspace_name"),
        "name": row.text("index_name"),
        "table": row.text("table_name"),
        "column": row.pairs("options").get("target", "").strip('"'),
    }

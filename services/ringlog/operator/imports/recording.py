"""Recorded answers of a Cassandra or ScyllaDB cluster: rows of its system tables as JSON.

``{"kind": "cassandra", "rows": {"system.local": [{"host_id": ...}, ...], ...}}``. ``source`` reads one from a running
cluster, and ``mapping`` makes a plan of it. UUIDs and addresses are text, sets are lists, and bytes are hex digits.

Invariant: nothing in a recording is trusted. Each value is read through ``Row``, which checks its type, its size and
its characters, and names table, row and field of a value that breaks a rule.

Source: the system tables of Cassandra 4.1 and 5.0 and of ScyllaDB 6; docs/dev/system_keyspace.md of ScyllaDB.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NoReturn

from ringlog.kernel.values import TOKEN_MAX, TOKEN_MIN, Value, is_name, is_token, is_uuid
from ringlog.operator.errors import Refused

CASSANDRA, SCYLLA = "cassandra", "scylla"
KINDS: Final = (CASSANDRA, SCYLLA)

_SCHEMA: Final[Mapping[str, tuple[str, ...]]] = {
    "system_schema.keyspaces": ("keyspace_name", "replication", "durable_writes"),
    "system_schema.types": ("keyspace_name", "type_name", "field_names", "field_types"),
    "system_schema.tables": ("keyspace_name", "table_name", "id", "flags", "default_time_to_live", "cdc"),
    "system_schema.columns": (
        *("keyspace_name", "table_name", "column_name", "kind", "position", "type", "clustering_order"),
    ),
    "system_schema.views": ("keyspace_name", "view_name", "base_table_name", "where_clause"),
    "system_schema.indexes": ("keyspace_name", "table_name", "index_name", "kind", "options"),
    "system_schema.triggers": ("keyspace_name", "table_name", "trigger_name"),
    "system_schema.functions": (
        *("keyspace_name", "function_name", "argument_types", "argument_names", "return_type", "language", "body"),
        "called_on_null_input",
    ),
    "system_schema.aggregates": (
        *("keyspace_name", "aggregate_name", "argument_types", "state_func", "state_type", "final_func", "initcond"),
    ),
}
_NODE: Final = ("host_id", "data_center", "rack", "tokens", "release_version", "schema_version")
LOCAL, PEERS, PEERS_V2 = "system.local", "system.peers", "system.peers_v2"
NODE_TABLES: Final[Mapping[str, tuple[str, ...]]] = {
    LOCAL: (*_NODE, "cluster_name", "partitioner", "broadcast_address", "broadcast_port"),
    PEERS: (*_NODE, "peer"),
    PEERS_V2: (*_NODE, "peer", "peer_port"),
}
TOPOLOGY, TABLETS = "system.topology", "system.tablets"
TABLES: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    CASSANDRA: {**NODE_TABLES, **_SCHEMA},
    SCYLLA: {
        **NODE_TABLES,
        **_SCHEMA,
        TOPOLOGY: ("host_id", "node_state", "shard_count", "ignore_msb"),
        TABLETS: ("table_id", "last_token", "replicas", "stage"),
        "system_schema.scylla_keyspaces": ("keyspace_name", "initial_tablets"),
        "system_schema.scylla_tables": ("keyspace_name", "table_name", "cdc"),
    },
}
"""The tables of each kind, and the columns that a recording keeps. A source may lack tables and columns."""

ROWS_MAX: Final = 500_000
"""The most rows of a table."""
TEXT_MAX: Final = 65_536
"""The most characters of a text, such as the body of a function."""
ITEMS_MAX: Final = 16_384
"""The most items of a list or of a map."""
_PARTITIONER: Final = "Murmur3Partitioner"
_PORT: Final = 7_000


class BadSource(Refused):
    """A value of the imported cluster that breaks a rule (``bad_source``), or that Ringlog lacks."""

    def __init__(self, text: str, code: str = "bad_source") -> None:
        super().__init__(code, text)


class Row(Value):
    """A row of a system table. ``number``: its position in the recording, from 1."""

    table: str
    number: int
    values: Mapping[str, Any]

    def refuse(self, field: str, rule: str, code: str = "bad_source") -> NoReturn:
        """Raise BadSource about this field."""
        raise BadSource(f"{self.table}, row {self.number}, {field}: {rule}", code)

    def text(self, field: str, default: str | None = None, *, many_lines: bool = False) -> str:
        """Return a text. A missing one is ``default``; without a default it is refused."""
        value = self.values.get(field)
        if value is None and default is not None:
            return default
        return self._text(field, value, many_lines)

    def name(self, field: str) -> str:
        """Return a name of a node, datacenter or rack."""
        found = self.text(field)
        if not is_name(found):
            self.refuse(field, "must be 1 to 100 letters, digits, _ . or -, and begin with a letter or digit")
        return found

    def uuid(self, field: str) -> str:
        """Return a UUID in lower case."""
        found = self.text(field).lower()
        if not is_uuid(found):
            self.refuse(field, "must be a UUID")
        return found

    def number_in(self, field: str, least: int, most: int, default: int | None = None) -> int:
        """Return a whole number of this range."""
        value = self.values.get(field)
        value = default if value is None else value
        if type(value) is not int or not least <= value <= most:
            self.refuse(field, f"must be a whole number between {least} and {most}")
        return value

    def flag(self, field: str, default: bool) -> bool:
        """Return true or false."""
        value = self.values.get(field)
        if value is not None and not isinstance(value, bool):
            self.refuse(field, "must be true or false")
        return default if value is None else bool(value)

    def texts(self, field: str) -> tuple[str, ...]:
        """Return a list of texts; empty if it is missing."""
        return tuple(self._text(f"{field}[{index}]", one, False) for index, one in enumerate(self.items(field)))

    def items(self, field: str) -> list[Any]:
        """Return a list of any values; empty if it is missing."""
        value = self.values.get(field)
        if value is None:
            return []
        if not isinstance(value, list) or len(value) > ITEMS_MAX:
            self.refuse(field, f"must be a list of at most {ITEMS_MAX:,} items")
        return value

    def pairs(self, field: str) -> dict[str, str]:
        """Return a map of texts; empty if it is missing."""
        value = self.values.get(field)
        if value is None:
            return {}
        if not isinstance(value, dict) or len(value) > ITEMS_MAX:
            self.refuse(field, f"must be a map of at most {ITEMS_MAX:,} items")
        return {self._text(field, key, False): self._text(f"{field}.{key}", one, False) for key, one in value.items()}

    def _text(self, field: str, value: Any, many_lines: bool) -> str:
        if not isinstance(value, str) or len(value) > TEXT_MAX:
            self.refuse(field, f"must be a text of at most {TEXT_MAX:,} characters")
        if not (value.replace("\n", "").replace("\t", "").replace("\r", "") if many_lines else value).isprintable():
            self.refuse(field, "must not have control characters")
        return value


class SourceRecording(Value):
    """The rows of one cluster, by table."""

    kind: str
    rows: Mapping[str, tuple[Row, ...]]

    def table(self, name: str) -> tuple[Row, ...]:
        """Return the rows of a table; none if the source lacks it."""
        return self.rows.get(name, ())

    def json(self) -> str:
        """Return the recording as JSON with one row per line."""
        tables = (
            f"  {json.dumps(table)}: [\n" + ",\n".join(f"    {json.dumps(row.values)}" for row in found) + "\n  ]"
            for table, found in self.rows.items()
            if found
        )
        return f'{{"kind": {json.dumps(self.kind)}, "rows": {{\n' + ",\n".join(tables) + "\n}}\n"


class SourceNode(Value):
    """A node of the imported cluster. ``name``: its address, as a name. ``shards``: 1 for Cassandra."""

    id: str
    name: str
    address: str
    datacenter: str
    rack: str
    tokens: tuple[int, ...]
    shards: int
    ignore_msb: int


def read_recording(text: str) -> SourceRecording:
    """Return the recording in a JSON text. Raises BadSource."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadSource(f"the recording is not JSON: {error}") from None
    if not isinstance(value, dict) or value.keys() != {"kind", "rows"}:
        raise BadSource("the recording: must have kind and rows")
    if value["kind"] not in KINDS:
        raise BadSource(f"kind: must be {' or '.join(KINDS)}")
    return recording_of(value["kind"], value["rows"])


def recording_of(kind: str, rows: Any) -> SourceRecording:
    """Return a recording of rows by table. Columns that no import needs are left out. Raises BadSource."""
    if not isinstance(rows, dict):
        raise BadSource("rows: must be an object")
    found = {}
    for table, columns in TABLES[kind].items():
        given = rows.get(table, [])
        if not isinstance(given, list) or len(given) > ROWS_MAX or not all(isinstance(one, dict) for one in given):
            raise BadSource(f"{table}: must be a list of at most {ROWS_MAX:,} rows")
        wanted = ({name: one[name] for name in columns if name in one} for one in given)
        found[table] = tuple(Row(table, number, one) for number, one in enumerate(wanted, start=1))
    return SourceRecording(kind, found)


# ---------------------------------------------------------------------------------------------------------- nodes


def nodes_of(recording: SourceRecording) -> tuple[tuple[SourceNode, ...], list[str]]:
    """Return the nodes by name, and the nodes that are left out, each with the reason. Raises BadSource.

    Every id, address and token belongs to one node, and all nodes agree on the schema.
    """
    local = recording.table(LOCAL)
    if len(local) != 1:
        raise BadSource(f"{LOCAL}: must have one row, not {len(local)}")
    if (partitioner := local[0].text("partitioner").rpartition(".")[2]) != _PARTITIONER:
        local[0].refuse("partitioner", f"{partitioner[:100]} is not {_PARTITIONER}", "unsupported_source")
    rows = [*local, *(recording.table(PEERS_V2) or recording.table(PEERS))]
    version = local[0].text("schema_version", "")
    shards = dict(_shards(recording))
    found: dict[str, SourceNode] = {}
    left_out = []
    for row in rows:
        node = _node(row, shards)
        if not node.tokens:
            left_out.append(f"node {node.name}: it owns no tokens")
            continue
        if row.text("schema_version", version) != version:
            row.refuse("schema_version", "the nodes have different schemas. Wait until they agree", "source_changed")
        if node.name in found:
            row.refuse("peer", f"{node.name} appears twice")
        found[node.name] = node
    _check_unique(found.values())
    if not found:
        raise BadSource("no node owns tokens", "unsupported_source")
    return tuple(found[name] for name in sorted(found)), left_out


def _node(row: Row, shards: Mapping[str, tuple[int, int]]) -> SourceNode:
    host = row.text("broadcast_address" if row.table == LOCAL else "peer")
    port = row.number_in("broadcast_port" if row.table == LOCAL else "peer_port", 1, 65_535, _PORT)
    name = host.replace(":", "-").strip("-")
    if not is_name(name):
        row.refuse("peer", "must be an address")
    if row.values.get("host_id") is None or not row.items("tokens"):
        return SourceNode("", name, "", "", "", (), 1, 0)
    tokens = sorted(_token(row, index, one) for index, one in enumerate(row.texts("tokens")))
    identity = row.uuid("host_id")
    return SourceNode(
        identity,
        name,
        f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
        row.name("data_center"),
        row.name("rack"),
        tuple(tokens),
        *shards.get(identity, (1, 12)),
    )


def _token(row: Row, index: int, text: str) -> int:
    try:
        found = int(text) if len(text) <= len(str(TOKEN_MIN)) else TOKEN_MIN - 1
    except ValueError:
        found = TOKEN_MIN - 1
    if not is_token(found):
        row.refuse(f"tokens[{index}]", f"must be a number between {TOKEN_MIN} and {TOKEN_MAX}")
    return found


def _shards(recording: SourceRecording) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield (node id, (shards, ignored token bits)). Refuses nodes that join or leave."""
    for row in recording.table(TOPOLOGY):
        state = row.text("node_state", "left")
        if state == "left":
            continue
        if state != "normal":
            row.refuse("node_state", f"the node is {state[:40]}. Wait until it is normal", "source_changed")
        yield row.uuid("host_id"), (row.number_in("shard_count", 1, 4_096), row.number_in("ignore_msb", 0, 63))


def _check_unique(nodes: Any) -> None:
    owners: dict[int | str, str] = {}
    for node in nodes:
        for value in (node.id, *node.tokens):
            if value in owners:
                what = "host_id" if isinstance(value, str) else "tokens"
                raise BadSource(f"node {node.name}, {what}: {value} also belongs to {owners[value]}")
            owners[value] = node.name

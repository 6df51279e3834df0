"""JSON as operators type it to commands, and commands to JSON.

``{"command": "Join", "node": "A", "num_tokens": 8}``: the command's fields under their own names. A node may be given
by name or id. What has a sensible default may be left out; every random choice is drawn here, so that the command
carries it. What cannot be a command is returned as ``InvalidCommand``; whether a command applies is not judged here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from ringlog import __version__
from ringlog.kernel.commands.model import COMMANDS, CdcOptions, Command, Replication
from ringlog.kernel.generations.describe import ranges_digest
from ringlog.kernel.state import CdcWriter, ClusterState
from ringlog.wire import json_readers as read
from ringlog.wire.draw import Draw, draw_uuid
from ringlog.wire.json_readers import InvalidJsonError, Reader, Source
from ringlog.wire.tokens import allocate

NUM_TOKENS = 16
"""How many tokens a joining node asks for if nothing is said."""

NUM_TOKENS_MAX = 65_536
SEED_BYTES = 16


@dataclass(frozen=True, slots=True)
class InvalidCommand:
    """Why JSON is no command. ``code``: bad_json, unknown_command, unknown_field, missing_field or bad_field."""

    code: str
    detail: str


@dataclass(frozen=True, slots=True)
class _Field:
    """How a field is read, and what it is when it is left out (no ``default``: it must be there)."""

    reader: Reader
    default: Callable[[Source], Any] | None = None


def from_json(state: ClusterState, value: Any, draw: Draw) -> Command | InvalidCommand:
    """The command that a JSON value describes, with names, defaults and choices resolved on ``state``; never raises."""
    try:
        kind, given = _kind_of(value)
        source = Source(state, draw, given)
        if kind in ("Join", "Move"):
            given = _with_tokens(source)
        elif kind in ("CreateTable", "AlterTable"):
            given = _without_options(given)
        return COMMANDS[kind](**_values(source, _FIELDS[kind], given))
    except InvalidJsonError as invalid:
        return InvalidCommand(invalid.code, invalid.detail)


def to_json(state: ClusterState, command: Command) -> dict[str, Any]:
    """The JSON of a command: nodes by name where ``state`` knows them, bytes in hex. ``from_json`` reads it back."""
    return {"command": type(command).__name__, **_object(state, command)}


# ---------------------------------------------------------------------------------------------------- reading


def _kind_of(value: Any) -> tuple[str, Mapping[str, Any]]:
    """(kind, fields without ``command``)."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise InvalidJsonError("bad_json", "a command is a JSON object")
    if "command" not in value:
        raise InvalidJsonError("missing_field", "command is missing")
    kind = value["command"]
    if not isinstance(kind, str):
        raise InvalidJsonError("bad_field", "command: must be text")
    if kind not in COMMANDS:
        raise InvalidJsonError("unknown_command", f"{kind} is no command{read.near(kind, list(COMMANDS))}")
    return kind, {name: item for name, item in value.items() if name != "command"}


def _values(source: Source, known: Mapping[str, _Field], given: Mapping[str, Any]) -> dict[str, Any]:
    for name in given:
        if name not in known:
            raise InvalidJsonError("unknown_field", f"{name} is no field{read.near(name, list(known))}")
    values = {}
    for name, field in known.items():
        if name in given:
            values[name] = field.reader(source, name, given[name])
        elif field.default is not None:
            values[name] = field.default(source)
        else:
            raise InvalidJsonError("missing_field", f"{name} is missing")
    return values


def _with_tokens(source: Source) -> Mapping[str, Any]:
    """The fields of a Join or a Move with its tokens: as given, or as many as asked for, from the seed that it has."""
    given = source.given
    if "tokens" in given:
        if "num_tokens" in given:
            raise InvalidJsonError("bad_field", "num_tokens: either tokens or their number")
        return given
    count = read.number(source, "num_tokens", given.get("num_tokens", NUM_TOKENS))
    if not 1 <= count <= NUM_TOKENS_MAX:
        raise InvalidJsonError("bad_field", f"num_tokens: must be between 1 and {NUM_TOKENS_MAX}")
    node = read.node(source, "node", given.get("node", ""))
    seed = read.hex_bytes(source, "seed", given["seed"]) if "seed" in given else _seed(source)
    rest = {name: value for name, value in given.items() if name != "num_tokens"}
    return {**rest, "tokens": list(allocate(source.state, node, count, seed)), "seed": seed.hex()}


def _without_options(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """CDC options may also stand as ``"options": {"cdc": ...}``."""
    if "options" not in given:
        return given
    options = read.check_fields("options", given["options"], ("cdc",), ())
    if "cdc" in options and "cdc" in given:
        raise InvalidJsonError("bad_field", "options.cdc: stands beside cdc")
    return {**{name: item for name, item in given.items() if name != "options"}, **options}


def _seed(source: Source) -> bytes:
    return source.draw.take(SEED_BYTES)


def _uuid(source: Source) -> str:
    return draw_uuid(source.draw)


def _always(value: Any) -> Callable[[Source], Any]:
    return lambda _: value


def _address(source: Source) -> str:
    """Names are unique, so an address made of the name is."""
    return f"{source.given.get('name')}:7000"


def _next_term(source: Source) -> int:
    role = source.given.get("role")
    held = source.state.terms.get(role) if isinstance(role, str) else None
    return 1 if held is None else held.term + 1


def _of_writer(attribute: str) -> Callable[[Source], Any]:
    """The present value of a registered writer, by the name that was given."""

    def default(source: Source) -> Any:
        name = source.given.get("writer")
        writer: CdcWriter | None = source.state.writers.get(name) if isinstance(name, str) else None
        if writer is None:
            raise InvalidJsonError("missing_field", f"{attribute} is missing")
        return getattr(writer, attribute)

    return default


def _state_time(source: Source) -> int:
    """The greatest clock of any author so far."""
    return source.state.time


def _digest(source: Source) -> str:
    """The digest of the data that the state holds for the generation; the rule refuses one that has none."""
    prepared = source.state.prepared
    if prepared is None or prepared.id != source.given.get("generation"):
        return ""
    return ranges_digest([item for _, ranges in sorted(prepared.received) for item in ranges])


_TEXT, _NUMBER, _NODE = _Field(read.text), _Field(read.number), _Field(read.node)
_NODES = _Field(read.list_of(read.node), _always(()))

_FIELDS: Mapping[str, Mapping[str, _Field]] = {
    "InitializeCluster": {"name": _TEXT, "settings": _Field(read.settings, _always(()))},
    "ChangeSettings": {"settings": _Field(read.settings)},
    "RegisterNode": {
        "name": _TEXT,
        "id": _Field(read.text, _uuid),
        "address": _Field(read.text, _address),
        "datacenter": _Field(read.text, _always("dc1")),
        "rack": _Field(read.text, _always("r1")),
        "shards": _Field(read.number, _always(1)),
        "ignore_msb": _Field(read.number, _always(12)),
        "release": _Field(read.text, _always(__version__)),
        "features": _Field(read.list_of(read.text), _always(())),
        "capacity": _Field(read.number, _always(1)),
    },
    "UpdateNode": {
        "node": _NODE,
        "address": _Field(read.text, _always(None)),
        "release": _Field(read.text, _always(None)),
        "features": _Field(read.list_of(read.text), _always(None)),
        "capacity": _Field(read.number, _always(None)),
        "shards": _Field(read.number, _always(None)),
    },
    "UnregisterNode": {"node": _NODE},
    "DeclareDown": {"node": _NODE, "reason": _Field(read.text, _always(""))},
    "DeclareUp": {"node": _NODE, "reason": _Field(read.text, _always(""))},
    "TakeOver": {"role": _TEXT, "instance": _Field(read.text, _uuid), "term": _Field(read.number, _next_term)},
    "Noop": {},
    "Join": {"node": _NODE, "tokens": _Field(read.list_of(read.number)), "seed": _Field(read.hex_bytes, _seed)},
    "Leave": {"node": _NODE},
    "Move": {"node": _NODE, "tokens": _Field(read.list_of(read.number)), "seed": _Field(read.hex_bytes, _seed)},
    "Replace": {"node": _NODE, "replaced": _NODE, "ignore_nodes": _NODES},
    "Remove": {"node": _NODE, "ignore_nodes": _NODES},
    "Assassinate": {"node": _NODE},
    "Rebuild": {"node": _NODE, "source_datacenter": _Field(read.text, _always(""))},
    "AdvanceOperation": {
        "operation": _TEXT,
        "to": _TEXT,
        "witnesses": _Field(read.list_of(read.witness), _always(())),
        "reports": _Field(read.list_of(read.report), _always(())),
    },
    "CancelOperation": {"operation": _TEXT, "reason": _Field(read.text, _always(""))},
    "FailOperation": {
        "operation": _TEXT,
        "reason": _Field(read.text, _always("")),
        "node": _Field(read.node, _always("")),
        "tries": _Field(read.number, _always(0)),
        "since": _Field(read.number, _always(0)),
    },
    "RetryOperation": {
        "operation": _TEXT,
        "reason": _Field(read.text, _always("")),
        "ignore_nodes": _NODES,
        "admits_loss": _Field(read.flag, _always(False)),
    },
    "CreateKeyspace": {"name": _TEXT, "replication": _Field(read.replication)},
    "AlterKeyspace": {"name": _TEXT, "replication": _Field(read.replication)},
    "DropKeyspace": {"name": _TEXT},
    "CreateTable": {
        "keyspace": _TEXT,
        "name": _TEXT,
        "id": _Field(read.text, _uuid),
        "columns": _Field(read.columns),
        "partition_key": _Field(read.names),
        "clustering_key": _Field(read.names, _always(())),
        "cdc": _Field(read.cdc, _always(CdcOptions())),
        "types": _Field(read.number, _always(2)),
    },
    "AlterTable": {
        "keyspace": _TEXT,
        "name": _TEXT,
        "add_columns": _Field(read.columns, _always(())),
        "cdc": _Field(read.cdc, _always(None)),
        "types": _Field(read.number, _always(2)),
    },
    "DropTable": {"keyspace": _TEXT, "name": _TEXT},
    "CreateType": {"keyspace": _TEXT, "name": _TEXT, "fields": _Field(read.type_fields)},
    "AlterType": {"keyspace": _TEXT, "name": _TEXT, "fields": _Field(read.type_fields)},
    "DropType": {"keyspace": _TEXT, "name": _TEXT},
    "RequestCdcGeneration": {"seed": _Field(read.hex_bytes, _seed)},
    "PutCdcGenerationData": {
        "generation": _TEXT,
        "part": _Field(read.number, _always(0)),
        "parts": _Field(read.number, _always(1)),
        "ranges": _Field(read.list_of(read.generation_range)),
    },
    "RegisterCdcWriter": {
        "writer": _TEXT,
        "incarnation": _Field(read.text, _uuid),
        "source": _Field(read.text, _always("")),
    },
    "AdvanceCdcWriter": {
        "writer": _TEXT,
        "incarnation": _Field(read.text, _of_writer("incarnation")),
        "horizon": _Field(read.number, _of_writer("horizon")),
        "low_watermark": _Field(read.number, _of_writer("low_watermark")),
        "positions": _Field(read.positions, _always(())),
        "decided": _Field(read.positions, _always(())),
    },
    "CommitCdcGeneration": {
        "generation": _TEXT,
        "timestamp": _NUMBER,
        "digest": _Field(read.text, _digest),
    },
    "PublishCdcGeneration": {"generation": _TEXT},
    "CloseCdcGeneration": {
        "generation": _TEXT,
        "unwatched": _Field(read.flag, _always(False)),
        "closed_at": _Field(read.number, _state_time),
    },
    "ExpireCdcGeneration": {"generation": _TEXT, "expired_at": _NUMBER},
    "ForgetCdcGeneration": {"generation": _TEXT},
    "FenceCdcWriter": {
        "writer": _TEXT,
        "incarnation": _Field(read.text, _of_writer("incarnation")),
        "positions": _Field(read.positions),
        "reason": _TEXT,
    },
    "LowerCdcWriter": {
        "writer": _TEXT,
        "incarnation": _Field(read.text, _of_writer("incarnation")),
        "horizon": _NUMBER,
        "reason": _TEXT,
    },
    "WithdrawCdcGeneration": {"generation": _TEXT, "seed": _Field(read.hex_bytes, _seed), "reason": _TEXT},
}


# ---------------------------------------------------------------------------------------------------- writing


def _object(state: ClusterState, value: Any) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for field in fields(value):
        item = getattr(value, field.name)
        if item is None:
            continue
        if field.name == "settings":
            out[field.name] = dict(item)
        elif field.name in ("node", "replaced"):
            out[field.name] = _name(state, item)
        elif field.name == "ignore_nodes":
            out[field.name] = [_name(state, node) for node in item]
        elif isinstance(item, Replication):
            out[field.name] = replication_json(item)
        elif field.name == "preimage":
            out[field.name] = {"false": False, "true": True}.get(item, item)
        else:
            out[field.name] = _plain(state, item)
    return out


def _name(state: ClusterState, node: str) -> str:
    return state.nodes[node].name if node in state.nodes else node


def replication_json(value: Replication) -> dict[str, Any]:
    """A replication setting as operators type it."""
    match value.strategy:
        case "network":
            local = {one.datacenter: list(one.racks) or one.factor for one in value.datacenters}
            return {"strategy": value.strategy, "datacenters": local}
        case "entire":
            return {"strategy": value.strategy}
        case _:
            return {"strategy": value.strategy, "factor": value.factor}


def _plain(state: ClusterState, value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, tuple):
        return [_plain(state, item) for item in value]
    return _object(state, value) if is_dataclass(value) else value

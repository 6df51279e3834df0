"""Commands as JSON, in both directions.

``{"command": "Join", "node": "A", "num_tokens": 8}`` has the fields of the command under their names (``json_shapes``).
A node is given by name or id. Fields with a default may be omitted (``DEFAULTS``). Random values are drawn here, so
that the command contains them. JSON that is not a command gives ``InvalidCommand``. The log decides whether a command
applies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from ringlog import __version__
from ringlog.client.tokens import allocate
from ringlog.kernel.columns.lazy_tuple import LazyTuple
from ringlog.kernel.commands.control.plans import StagePlan
from ringlog.kernel.commands.schema.batch import PLACES, SchemaBatch, SchemaStatement, statement_of
from ringlog.kernel.generations.describe import ranges_digest
from ringlog.kernel.model.outcome import Rejected
from ringlog.kernel.model.plans import PlannedCommand
from ringlog.kernel.model.state import CdcWriter, ClusterState
from ringlog.kernel.plans import commands_of_plan, planned
from ringlog.kernel.registry import COMMANDS
from ringlog.kernel.values import IDENTIFIER_MAX, CdcOptions, Command, Replication, Value, public_name
from ringlog.kernel.zones.resets import MANUAL
from ringlog.operator.intents import zone_nodes
from ringlog.operator.intents.intents import NODE_FIELDS, NUM_TOKENS, NUM_TOKENS_MAX, Intent, InvalidCommand, seed_of
from ringlog.operator.intents.json_shapes import InvalidJsonError, near, read_fields, read_number
from ringlog.operator.intents.replication import replication_json
from ringlog.protocol.effects import Draw
from ringlog.runtime.draw import draw_uuid

Values = dict[str, Any]
"""The values of a command's fields so far, by name."""


class AuthorSource(Value):
    """The state and random bits that determine defaults and choices."""

    state: ClusterState
    draw: Draw
    num_tokens: int = NUM_TOKENS


Default = Callable[[AuthorSource, Values], Any]


def intent_of_json(value: Any) -> Intent:
    """Return the intent of a JSON command."""
    return lambda state, draw: from_json(state, value, draw)


def from_json(state: ClusterState, value: Any, draw: Draw) -> Command | InvalidCommand:
    """Return the command of a JSON value, resolved on ``state``, or InvalidCommand. Never raises."""
    try:
        return _read(AuthorSource(state, draw), value)
    except InvalidJsonError as invalid:
        return InvalidCommand(invalid.code, invalid.detail)


def to_json(state: ClusterState, command: Command) -> dict[str, Any]:
    """Return a command as JSON that ``from_json`` can read. Known nodes have names, and bytes are hex digits."""
    return {"command": type(command).__name__, **_object(state, command)}


# ---------------------------------------------------------------------------------------------------- reading


def _read(source: AuthorSource, value: Any) -> Command:
    """Return the command of a JSON value. Raises InvalidJsonError."""
    kind, given = _kind_of(value)
    if kind == SchemaBatch.__name__:
        return _batch(source, given)
    if kind == StagePlan.__name__ and isinstance(typed_ones := given.get("commands"), list):
        return _plan(source, given, typed_ones)
    if "tokens" in DEFAULTS.get(kind, {}):
        source, given = _counted(source, given)
    elif kind in ("CreateTable", "AlterTable"):
        given = _without_options(given)
    defaults = {**DRAWN, **DEFAULTS.get(kind, {})}
    values = read_fields(COMMANDS[kind], given, source.state, defaults.keys())
    for name, default in defaults.items():
        if name not in values and name in COMMANDS[kind].__struct_fields__:
            values[name] = default(source, values)
    return COMMANDS[kind](**values)


def _batch(source: AuthorSource, given: Mapping[str, Any]) -> SchemaBatch:
    """Return a SchemaBatch. Its statements may be full commands, with ``if_needed`` as an additional field."""
    typed_ones = given.get("statements")
    if not isinstance(typed_ones, list) or given.keys() != {"statements"}:
        return SchemaBatch(**read_fields(SchemaBatch, given, source.state, ()))
    found = []
    for index, one in enumerate(typed_ones):
        try:
            found.append(_statement(source, one))
        except InvalidJsonError as invalid:
            detail = invalid.detail.removeprefix("statements[0].").removeprefix("statements[0]: ")
            raise InvalidJsonError(invalid.code, f"statements[{index}]: {detail}") from None
    return SchemaBatch(tuple(found))


def _statement(source: AuthorSource, given: Any) -> SchemaStatement:
    if not isinstance(given, Mapping) or "command" not in given:
        (found,) = read_fields(SchemaBatch, {"statements": [given]}, source.state, ())["statements"]
        return cast(SchemaStatement, found)
    if_needed = given.get("if_needed", False)
    if not isinstance(if_needed, bool):
        raise InvalidJsonError("bad_field", "if_needed: must be true or false")
    command = _read(source, {name: item for name, item in given.items() if name != "if_needed"})
    if type(command) not in PLACES:
        raise InvalidJsonError("bad_field", f"command: {type(command).__name__} cannot be in a batch")
    return statement_of(command, if_needed)


def _plan(source: AuthorSource, given: Mapping[str, Any], typed_ones: list[Any]) -> StagePlan:
    """Return a StagePlan, whose commands are full commands."""
    values = read_fields(StagePlan, {**given, "commands": []}, source.state, ())
    found = []
    for index, one in enumerate(typed_ones):
        try:
            found.append(planned(_read(source, one)))
        except InvalidJsonError as invalid:
            raise InvalidJsonError(invalid.code, f"commands[{index}]: {invalid.detail}") from None
    return StagePlan(**values | {"commands": tuple(found)})


def _kind_of(value: Any) -> tuple[str, Mapping[str, Any]]:
    """Return (command name, its fields). Raises InvalidJsonError."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise InvalidJsonError("bad_json", "a command is a JSON object")
    if "command" not in value:
        raise InvalidJsonError("missing_field", "command is missing")
    kind = value["command"]
    if not isinstance(kind, str):
        raise InvalidJsonError("bad_field", "command: must be text")
    if kind not in COMMANDS:
        raise InvalidJsonError("unknown_command", f"{kind} is not a command{near(kind, COMMANDS)}")
    return kind, {name: item for name, item in value.items() if name != "command"}


def _counted(source: AuthorSource, given: Mapping[str, Any]) -> tuple[AuthorSource, Mapping[str, Any]]:
    """Accept ``num_tokens`` in place of ``tokens``. The tokens follow from the command's seed."""
    if "num_tokens" not in given:
        return source, given
    if "tokens" in given:
        raise InvalidJsonError("bad_field", "num_tokens: cannot be combined with tokens")
    count = read_number("num_tokens", given["num_tokens"], 1, NUM_TOKENS_MAX)
    rest = {name: item for name, item in given.items() if name != "num_tokens"}
    return AuthorSource(source.state, source.draw, count), rest


_OPTIONS = ("cdc", "tablets")


def _without_options(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Accept table options as ``"options": {"cdc": ..., "tablets": ...}``."""
    options = given.get("options", {})
    if not isinstance(options, Mapping):
        raise InvalidJsonError("bad_field", "options: must be an object")
    for name in options:
        if name not in _OPTIONS:
            raise InvalidJsonError("unknown_field", f"options.{name} is not a field{near(str(name), _OPTIONS)}")
        if name in given:
            raise InvalidJsonError("bad_field", f"options.{name}: cannot be combined with {name}")
    return {**{name: item for name, item in given.items() if name != "options"}, **options}


# --------------------------------------------------------------------------------------------------- defaults


def _seed(source: AuthorSource, _values: Values) -> bytes:
    return seed_of(source.draw)


def _uuid(source: AuthorSource, _values: Values) -> str:
    return draw_uuid(source.draw)


def _always(value: Any) -> Default:
    return lambda _source, _values: value


def _tokens(source: AuthorSource, values: Values) -> tuple[int, ...]:
    return allocate(source.state, values["node"], source.num_tokens, values["seed"])


def _address(_source: AuthorSource, values: Values) -> str:
    """Return an address made from the name, which is unique."""
    return f"{values['name']}:7000"


def _next_term(source: AuthorSource, values: Values) -> int:
    held = source.state.terms.get(values["role"])
    return 1 if held is None else held.term + 1


def _of_writer(attribute: str) -> Default:
    """Return a default that copies the registered writer's current value."""

    def default(source: AuthorSource, values: Values) -> Any:
        writer: CdcWriter | None = source.state.writers.get(values["writer"])
        if writer is None:
            raise InvalidJsonError("missing_field", f"{attribute} is missing")
        return getattr(writer, attribute)

    return default


def _state_time(source: AuthorSource, _values: Values) -> int:
    """Return the greatest author time so far."""
    return source.state.time


def _newest(source: AuthorSource, _values: Values) -> int:
    """Return the epoch of the state."""
    return source.state.epoch


def _staged(source: AuthorSource, values: Values) -> int:
    """Return the epoch of the plan of that name; 0 if there is none, which the command's rule refuses."""
    plan = source.state.plans.get(values["plan"])
    return 0 if plan is None else plan.staged


def _digest(source: AuthorSource, values: Values) -> str:
    """Return the digest of a prepared generation's data; empty if none is prepared: the command's rule refuses that."""
    prepared = source.state.prepared
    if prepared is None or prepared.id != values["generation"]:
        return ""
    return ranges_digest([item for _, ranges in sorted(prepared.received) for item in ranges])


def _index_name(_source: AuthorSource, values: Values) -> str:
    """Return the name that Cassandra gives an unnamed index."""
    return f"{values['table']}_{values['column']}"[: IDENTIFIER_MAX - 4] + "_idx"


def _argument_names(_source: AuthorSource, values: Values) -> tuple[str, ...]:
    return tuple(f"arg{number}" for number in range(len(values["arguments"])))


def _of_zone(choose: Callable[[ClusterState, Values], Any]) -> Default:
    return lambda source, values: choose(source.state, values)


DRAWN: Mapping[str, Default] = {"seed": _seed}
"""Fields that are drawn in every command."""

_NO_REASON: Mapping[str, Default] = {"reason": _always("")}

DEFAULTS: Mapping[str, Mapping[str, Default]] = {
    "RegisterNode": {
        "id": _uuid,
        "address": _address,
        "datacenter": _always("dc1"),
        "rack": _always("r1"),
        "shards": _always(1),
        "ignore_msb": _always(12),
        "release": _always(__version__),
        "features": _always(()),
        "capacity": _always(1),
    },
    "ApprovePlan": {"staged": _staged},
    "RejectPlan": {"staged": _staged},
    "DeclareDown": _NO_REASON,
    "DeclareUp": _NO_REASON,
    "TakeOver": {"instance": _uuid, "term": _next_term},
    "Join": {"tokens": _tokens},
    "Move": {"tokens": _tokens},
    "CancelOperation": _NO_REASON,
    "FailOperation": _NO_REASON,
    "RetryOperation": _NO_REASON,
    "CreateTable": {"id": _uuid, "clustering_key": _always(()), "cdc": _always(CdcOptions())},
    "CreateView": {"columns": _always(()), "clustering_key": _always(())},
    "CreateIndex": {"name": _index_name},
    "CreateFunction": {"arguments": _always(()), "argument_names": _argument_names},
    "CreateAggregate": {"arguments": _always(())},
    "PutCdcGenerationData": {"part": _always(0), "parts": _always(1)},
    "RegisterCdcWriter": {"incarnation": _uuid},
    "AdvanceCdcWriter": {name: _of_writer(name) for name in ("incarnation", "horizon", "low_watermark")},
    "FenceCdcWriter": {"incarnation": _of_writer("incarnation")},
    "LowerCdcWriter": {"incarnation": _of_writer("incarnation")},
    "CommitCdcGeneration": {"digest": _digest},
    "CloseCdcGeneration": {"closed_at": _state_time},
    "CreateZone": {"nodes": _of_zone(zone_nodes.nodes_of_new)},
    "AlterZone": {"nodes": _of_zone(zone_nodes.nodes_of_altered)},
    "SetDataNodes": {"nodes": _of_zone(zone_nodes.nodes_of_existing), "cause": _newest},
    "TriggerRebalance": {"cause": _newest},
    "SwitchStable": {
        "applied": _of_zone(zone_nodes.next_step),
        "learners": _of_zone(zone_nodes.learners_of),
        "revisions": _of_zone(zone_nodes.revisions_of),
    },
    "CancelRebalance": {"pending_revision": _of_zone(zone_nodes.pending_revision)},
    "RestartReplicas": {"cause": _newest},
    "FinishCancel": {"pending_revision": _of_zone(zone_nodes.pending_revision)},
    "ResetPartitions": {
        "partitions": _always(()),
        "mode": _always(MANUAL),
        "cause": _newest,
        "copies": _of_zone(zone_nodes.copies_of),
    },
}
"""Defaults of omitted fields, in addition to those of the command's class. A default may use the fields before it."""


# ---------------------------------------------------------------------------------------------------- writing


def _object(state: ClusterState, value: Any) -> dict[str, Any]:
    items = ((public_name(name), getattr(value, name)) for name in value.__struct_fields__)
    return {name: _written(state, name, item) for name, item in items if item is not None}


def _written(state: ClusterState, name: str, item: Any) -> Any:
    if name == "settings":
        return dict(item)
    if name == "preimage":
        return {"false": False, "true": True}.get(item, item)
    if isinstance(item, tuple | LazyTuple):
        return [_written(state, name, one) for one in item]
    if isinstance(item, bytes):
        return item.hex()
    if isinstance(item, Replication):
        return replication_json(item)
    if isinstance(item, PlannedCommand) and not isinstance(found := commands_of_plan((item,)), Rejected):
        return to_json(state, found[0])
    if isinstance(item, SchemaStatement) and len(item.commands) == 1:
        return to_json(state, item.commands[0]) | ({"if_needed": True} if item.if_needed else {})
    if isinstance(item, Value):
        return _object(state, item)
    return state.nodes[item].name if name in NODE_FIELDS and item in state.nodes else item

"""Rules of user functions and aggregates, as metadata: this project does not run them.

Several functions can have one name and differ in the types of their arguments (``cql.types``); an aggregate cannot have
the signature of a function. An aggregate uses functions of its keyspace. One takes the state and the arguments and
returns the next state, and an optional one takes the last state. These functions cannot be dropped while the aggregate
exists, nor can a user type that a function names.

Sources: CQL, "Functions"; CEP-21, "Racing DROP X validations" (the drop of a UDF during the creation of a UDA).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Final

from ringlog.kernel.commands.rules import IDENTIFIER_RULE, broken_field
from ringlog.kernel.commands.schema.shared import broken_names, exists, no_keyspace, part_of, with_schema
from ringlog.kernel.commands.schema.user_types import known_types
from ringlog.kernel.cql.literals import LITERAL_MAX, is_literal
from ringlog.kernel.cql.types import is_type, normalised, signature, without_frozen
from ringlog.kernel.cql.user_types import expand_types
from ringlog.kernel.model.modes import SCHEMA
from ringlog.kernel.model.outcome import Decision, EntryContext, Rejected
from ringlog.kernel.model.principals import OPERATOR
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.tables import Aggregate, Function
from ringlog.kernel.schema.dependents import first_of
from ringlog.kernel.values import Command, is_identifier

CODES: Final = {
    "aggregate_exists": "An aggregate with this name and these arguments exists.",
    "ambiguous_name": "Several functions or aggregates have this name. Name the argument types.",
    "function_exists": "A function with this name and these arguments exists.",
    "function_in_use": "An aggregate uses the function.",
    "function_mismatch": "The function does not return the type of the state.",
    "unknown_aggregate": "The aggregate does not exist.",
    "unknown_function": "The function does not exist.",
}

ARGUMENTS_MAX: Final = 64
BODY_BYTES_MAX: Final = 65_536
"""The longest body, in UTF-8 bytes, because each change record and each replica stores it (``kernel.size_limits``)."""


class CreateFunction(Command):
    """Create a user function.

    A second create of the same name and arguments is refused, not merged.
    """

    PAUSED_BY = SCHEMA
    NEEDS = (OPERATOR,)

    keyspace: Annotated[str, "Name of the keyspace."]
    name: Annotated[str, "Name of the function. Functions with other argument types may have the same name."]
    arguments: Annotated[tuple[str, ...], "Types of the arguments, in order."]
    argument_names: Annotated[tuple[str, ...], "Names of the arguments, as used in the body."]
    returns: Annotated[str, "Type of the return value."]
    language: Annotated[str, "Language of the body, e.g. lua."]
    body: Annotated[str, "Source code of the function."]
    called_on_null: Annotated[bool, "Whether the function accepts null arguments. If not, it returns null."] = False


def decide_create_function(state: ClusterState, command: CreateFunction, context: EntryContext) -> Decision:
    """Create a function of known types."""
    broken = broken_names(command.keyspace, command.name) or broken_field(
        (len(command.arguments) <= ARGUMENTS_MAX, "arguments", f"must be at most {ARGUMENTS_MAX}"),
        (len(command.argument_names) == len(command.arguments), "argument_names", "must be one for each argument"),
        (len(set(command.argument_names)) == len(command.argument_names), "argument_names", "must be distinct"),
        (all(map(is_identifier, command.argument_names)), "argument_names", f"each {IDENTIFIER_RULE}"),
        (is_identifier(command.language), "language", IDENTIFIER_RULE),
        (command.body != "", "body", "must not be empty"),
    )
    if broken is not None:
        return broken
    size = len(command.body.encode("utf-8", "surrogatepass"))
    if size > BODY_BYTES_MAX:
        return Rejected("too_large", f"body: the body has {size:,} bytes, the limit is {BODY_BYTES_MAX:,}")
    wrong = _wrong_types(state, command.keyspace, (*command.arguments, command.returns))
    if (wrong := wrong or _taken(state, command.keyspace, command.name, command.arguments)) is not None:
        return wrong
    types = {"arguments": tuple(map(normalised, command.arguments)), "returns": normalised(command.returns)}
    function = part_of(Function, command, context, **types)
    assert all((*function.arguments, function.returns)), "a type has a spelling"
    assert function.signature not in state.functions, "signatures contain normalised types"
    assert function.signature not in state.aggregates, "a signature is either a function or an aggregate"
    return with_schema(state, context, functions=state.functions.set(function.signature, function))


class DropFunction(Command):
    """Drop a user function that no aggregate uses."""

    PAUSED_BY = SCHEMA
    NEEDS = (OPERATOR,)

    keyspace: Annotated[str, "Name of the keyspace."]
    name: Annotated[str, "Name of the function."]
    arguments: Annotated[tuple[str, ...] | None, "Types of the arguments. Null: the name is unique."] = None


def decide_drop_function(state: ClusterState, command: DropFunction, context: EntryContext) -> Decision:
    """Drop a function that no aggregate uses."""
    key = _find(state.functions, "function", command.keyspace, command.name, command.arguments)
    if isinstance(key, Rejected):
        return key
    dependents = [f"the aggregate {name}" for name, one in state.aggregates.items() if key in one.functions]
    if dependents:
        return Rejected("function_in_use", f"name: {key} is used by {first_of(sorted(dependents))}")
    return with_schema(state, context, functions=state.functions.delete(key))


class CreateAggregate(Command):
    """Create a user aggregate.

    A second create of the same name and arguments is refused, not merged.
    """

    PAUSED_BY = SCHEMA
    NEEDS = (OPERATOR,)

    keyspace: Annotated[str, "Name of the keyspace of the aggregate and its functions."]
    name: Annotated[str, "Name of the aggregate. Aggregates with other argument types may have the same name."]
    arguments: Annotated[tuple[str, ...], "Types of the arguments, in order."]
    state_function: Annotated[
        str, "Name of the existing function that returns the next state from the state and the arguments."
    ]
    state_type: Annotated[str, "Type of the state."]
    final_function: Annotated[str, "Name of the function of the last state. Empty: the last state is the result."] = ""
    initial: Annotated[str | None, "Initial state as a CQL literal. Null: a null state."] = None


def decide_create_aggregate(state: ClusterState, command: CreateAggregate, context: EntryContext) -> Decision:
    """Create an aggregate of existing functions."""
    literal = f"must be a CQL literal of at most {LITERAL_MAX} characters"
    broken = broken_names(command.keyspace, command.name) or broken_field(
        (len(command.arguments) <= ARGUMENTS_MAX, "arguments", f"must be at most {ARGUMENTS_MAX}"),
        (is_identifier(command.state_function), "state_function", IDENTIFIER_RULE),
        (command.final_function == "" or is_identifier(command.final_function), "final_function", IDENTIFIER_RULE),
        (command.initial is None or is_literal(command.initial), "initial", literal),
    )
    if broken is not None:
        return broken
    wrong = _wrong_types(state, command.keyspace, (*command.arguments, command.state_type))
    if (wrong := wrong or _taken(state, command.keyspace, command.name, command.arguments)) is not None:
        return wrong
    types = {"arguments": tuple(map(normalised, command.arguments)), "state_type": normalised(command.state_type)}
    aggregate = part_of(Aggregate, command, context, **types)
    if missing := [name for name in aggregate.functions if name not in state.functions]:
        return Rejected("unknown_function", f"state_function, final_function: there is no function {missing[0]}")
    returned = state.functions[aggregate.functions[0]].returns
    if without_frozen(returned) != without_frozen(aggregate.state_type):
        text = f"{aggregate.functions[0]} returns {returned}, the state is {aggregate.state_type}"
        return Rejected("function_mismatch", f"state_function: {text}")
    assert aggregate.signature not in state.aggregates, "signatures contain normalised types"
    assert aggregate.signature not in state.functions, "a signature is either a function or an aggregate"
    return with_schema(state, context, aggregates=state.aggregates.set(aggregate.signature, aggregate))


class DropAggregate(Command):
    """Drop a user aggregate."""

    PAUSED_BY = SCHEMA
    NEEDS = (OPERATOR,)

    keyspace: Annotated[str, "Name of the keyspace."]
    name: Annotated[str, "Name of the aggregate."]
    arguments: Annotated[tuple[str, ...] | None, "Types of the arguments. Null: the name is unique."] = None


def decide_drop_aggregate(state: ClusterState, command: DropAggregate, context: EntryContext) -> Decision:
    """Drop an aggregate. Its functions stay."""
    key = _find(state.aggregates, "aggregate", command.keyspace, command.name, command.arguments)
    if isinstance(key, Rejected):
        return key
    return with_schema(state, context, aggregates=state.aggregates.delete(key))


def _find(
    known: Mapping[str, Function] | Mapping[str, Aggregate],
    subject: str,
    keyspace: str,
    name: str,
    arguments: tuple[str, ...] | None,
) -> str | Rejected:
    """Return the key of a function or aggregate. Without arguments, only one may have the name."""
    if (broken := broken_names(keyspace, name)) is not None:
        return broken
    if arguments is not None:
        if len(arguments) > ARGUMENTS_MAX:
            return Rejected("bad_field", f"arguments: must be at most {ARGUMENTS_MAX}")
        if not all(map(normalised, arguments)):
            return Rejected("bad_field", "arguments: each must be a type")
        key = signature(keyspace, name, arguments)
        return key if key in known else Rejected(f"unknown_{subject}", f"name: there is no {subject} {key}")
    found = sorted(key for key, one in known.items() if one.name == name and one.keyspace == keyspace)
    if len(found) > 1:
        return Rejected(
            "ambiguous_name", f"arguments: {len(found)} functions are named {keyspace}.{name}, such as {found[0]}"
        )
    return found[0] if found else Rejected(f"unknown_{subject}", f"name: there is no {subject} {keyspace}.{name}")


def _taken(state: ClusterState, keyspace: str, name: str, arguments: Iterable[str]) -> Rejected | None:
    """Reject a signature that a function or an aggregate has."""
    key = signature(keyspace, name, arguments)
    for subject, one in (("function", state.functions.get(key)), ("aggregate", state.aggregates.get(key))):
        if one is not None:
            return exists(state, f"{subject}_exists", f"{subject} {key}", one.version)
    return None


def _wrong_types(state: ClusterState, keyspace: str, types: Iterable[str]) -> Rejected | None:
    if (wrong := no_keyspace(state, keyspace)) is not None:
        return wrong
    known = known_types(state.types, keyspace)
    for kind in types:
        if not is_type(expand_types(normalised(kind), known)):
            return Rejected("unknown_type", f"{kind[:100]!r} is not a type, or contains a type that is not frozen")
    return None

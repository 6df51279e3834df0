"""The fields of a command from JSON: schemas derived from the command's dataclass and validated by pydantic.

A field's type decides its JSON: text, number, flag, bytes in hex, list, or an object of the value's fields. Exceptions
are in ``BY_TYPE`` and ``BY_NAME``. ``SHORT`` has the short forms of values. A new command class therefore needs no code
here.

Only types and the 64-bit range of numbers are checked; the commands check the rules of their fields. A refusal has a
code, the path of the field, and the violated rule.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from functools import cache, reduce
from operator import or_
from typing import Annotated, Any, NotRequired, Optional, Required, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Strict, Tag, TypeAdapter, ValidationError
from pydantic import ValidationInfo as Info
from pydantic_core import ErrorDetails, PydanticCustomError
from typing_extensions import TypedDict

from ringlog.kernel.commands.placement.tablets import Shard
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.stream_id import STREAM_ID_BYTES
from ringlog.kernel.ownership.kinds import STRATEGIES
from ringlog.kernel.values import (
    NODEFAULT,
    CdcOptions,
    Column,
    ColumnRename,
    Position,
    Replication,
    TypeField,
    Value,
    defaults_of,
    is_value_class,
    public_name,
)
from ringlog.operator.intents.intents import NODE_FIELDS, WHOLE_NUMBER, WHOLE_TEXT, is_whole, node_id
from ringlog.operator.intents.replication import ENTIRE, in_zone, network

_NUMBERED = re.compile("[0-9]{1,19}")


class InvalidJsonError(Exception):
    """JSON that is not a valid command. ``code`` is stable."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


def near(wrong: str, options: Collection[str]) -> str:
    """Return ``; did you mean X?`` for the closest known word, else a list of all."""
    close = get_close_matches(wrong, list(options), n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; known: {', '.join(sorted(options))}" if options else "; there are none"


def read_fields(
    model: type, given: Mapping[str, Any], state: ClusterState, optional: Collection[str]
) -> dict[str, Any]:
    """Return the values of the given fields. A field without a default is required unless it is ``optional``.

    ``given``: fields by name; nodes may be given by name. Raises InvalidJsonError.
    """
    try:
        found: dict[str, Any] = _adapter(model, frozenset(optional)).validate_python(given, context=state)
    except ValidationError as error:
        raise _refusal(error.errors(include_url=False, include_input=False)) from None
    return found


def read_number(name: str, value: Any, minimum: int, maximum: int) -> int:
    """Return a number that is not a field of the command. Raises InvalidJsonError."""
    try:
        found = _NUMBERS.validate_python(value)
    except ValidationError:
        raise InvalidJsonError("bad_field", f"{name}: {_RULES['int_type']}") from None
    if not minimum <= found <= maximum:
        raise InvalidJsonError("bad_field", f"{name}: must be between {minimum} and {maximum}")
    return found


# ------------------------------------------------------------------------------------------------------ refusals

_RULES = {
    "bool_type": "must be true or false",
    "dict_type": "must be an object",
    "greater_than_equal": WHOLE_NUMBER,
    "int_type": WHOLE_NUMBER,
    "less_than": WHOLE_NUMBER,
    "string_type": "must be text",
    "tuple_type": "must be a list",
}
"""Ringlog's messages for pydantic's error types. Other errors keep pydantic's message."""
_KEY = "[key]"
"""The path element that pydantic adds for the key of an object."""


def _broken(rule: str) -> PydanticCustomError:
    return PydanticCustomError("bad_field", "{rule}", {"rule": rule})


def _refusal(errors: list[ErrorDetails]) -> InvalidJsonError:
    """Return the first error. Unknown fields precede others, because a misspelt name also causes a missing field."""
    first = min(errors, key=lambda error: (error["type"] != "unknown_field", errors.index(error)))
    path = _path(first["loc"])
    if first["type"] == "unknown_field":
        name, options = first["ctx"]["unknown"]
        return InvalidJsonError(
            "unknown_field", f"{f'{path}.' if path else ''}{name} is not a field{near(name, options)}"
        )
    if first["type"] == "missing":
        return InvalidJsonError("missing_field", f"{path} is missing")
    return InvalidJsonError("bad_field", f"{path}: {_RULES.get(first['type'], first['msg'])}")


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part != _KEY and part not in _TAGS:
            path += f".{part}" if path else part
    return path


# -------------------------------------------------------------------------------------------------- simple values


def _unpaired(text: str) -> str:
    if not is_whole(text):
        raise _broken(WHOLE_TEXT)
    return text


def _from_hex(value: Any) -> bytes:
    if isinstance(value, str):
        try:
            return bytes.fromhex(value)
        except ValueError:
            pass
    raise _broken("must be bytes in hex")


def _stream_id(value: bytes) -> bytes:
    if len(value) != STREAM_ID_BYTES:
        raise _broken(f"must be {STREAM_ID_BYTES} bytes in hex")
    return value


def _node(given: str, info: Info) -> str:
    assert isinstance(info.context, ClusterState), "names are resolved in a state"
    return node_id(info.context, given)


def _preimage(value: Any) -> Any:
    return ("true" if value else "false") if isinstance(value, bool) else value


def _literal(value: Any) -> Any:
    """Return a number or boolean as a CQL literal."""
    return json.dumps(value) if isinstance(value, bool | int) else value


def _single(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


Text = Annotated[str, Strict(), AfterValidator(_unpaired)]
Number = Annotated[int, Strict(), Field(ge=-(2**63), lt=2**63)]
Flag = Annotated[bool, Strict()]
Hex = Annotated[bytes, BeforeValidator(_from_hex)]
Node = Annotated[Text, AfterValidator(_node)]
Names = Annotated[tuple[Text, ...], BeforeValidator(_single)]
_NUMBERS: TypeAdapter[int] = TypeAdapter(Number)

BY_NAME: Mapping[str, Any] = {
    "partition_key": Names,
    "clustering_key": Names,
    "preimage": Annotated[Text, BeforeValidator(_preimage)],
    "initial": Optional[Annotated[Text, BeforeValidator(_literal)]],  # noqa: UP045
    "streams": tuple[Annotated[Hex, AfterValidator(_stream_id)], ...],
}

# ------------------------------------------------------------------------------------------- values with short forms


def _typed_names(value: Any) -> Any:
    """Expand ``{name: "type"}`` to a list of objects."""
    if not isinstance(value, Mapping):
        return value
    return [{"name": name, "type": kind} for name, kind in value.items()]


def _columns(value: Any) -> Any:
    """Expand ``{name: "type"}`` or ``{name: "type static"}`` to a list of objects."""
    if not isinstance(value, Mapping):
        return value
    return [_column(one) for one in _typed_names(value)]


def _column(value: dict[str, Any]) -> dict[str, Any]:
    kind = value["type"]
    if isinstance(kind, str) and kind.endswith(" static"):
        return value | {"type": kind.removesuffix(" static"), "static": True}
    return value


def _renames(value: Any) -> Any:
    """Expand ``{"old": "new"}`` to a list of objects."""
    return [{"from": old, "to": new} for old, new in value.items()] if isinstance(value, Mapping) else value


def _positions(value: Any) -> Any:
    """Expand ``{"partition": offset}`` to a list of objects."""
    if not isinstance(value, Mapping):
        return value
    if not all(_NUMBERED.fullmatch(str(key)) for key in value):
        raise _broken("must be an object of partition numbers and offsets")
    return [{"partition": int(key), "offset": item} for key, item in value.items()]


def _switch(value: Any) -> Any:
    return {"enabled": value} if isinstance(value, bool) else value


def _place(value: Any) -> Any:
    """Expand ``[node, shard]`` to an object."""
    if isinstance(value, list | tuple) and len(value) == 2:
        return {"node": value[0], "shard": value[1]}
    return value


def _pairs(value: dict[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(value.items()))


def _factor_or_racks(value: Any) -> str:
    return "<racks>" if isinstance(value, list | tuple) else "<factor>"


def _strategy_of(value: Any) -> str:
    """Return the tag of a strategy. An unknown one is ``<other>``: the command's rule rejects it by its name."""
    strategy = value.get("strategy", "simple") if isinstance(value, Mapping) else "simple"
    return f"<{strategy}>" if strategy in tuple(STRATEGIES) else "<other>"


def _network(value: dict[str, Any]) -> Replication:
    found = network(value["datacenters"])
    if found.factor >= 2**63:
        raise _broken(f"{WHOLE_NUMBER} in all")
    return found


def _tablets(value: dict[str, Any]) -> Replication:
    if ("factor" in value) == ("datacenters" in value):
        raise _broken("must have a factor or datacenters")
    if "factor" in value:
        return Replication("tablets", value["factor"])
    found = _network(value)
    return Replication("tablets", found.factor, found.datacenters)


_TYPED_DICT: Any = TypedDict


def _shape(name: str, members: Mapping[str, Any]) -> Any:
    """Return the schema of an object with these members. Members that are not in the input are not in the result."""

    def options(value: Any) -> Any:
        for one in value if isinstance(value, Mapping) else ():
            if one not in members:
                raise PydanticCustomError("unknown_field", "no field", {"unknown": (one, tuple(members))})
        return value

    return Annotated[_TYPED_DICT(name, members), BeforeValidator(options)]


_LOCAL = Annotated[
    Annotated[Number, Tag("<factor>")] | Annotated[tuple[Text, ...], Tag("<racks>")], Discriminator(_factor_or_racks)
]
_STRATEGIES: Mapping[str, Any] = {
    "<simple>": Annotated[
        _shape("simple", {"strategy": Required[Text], "factor": Required[Number]}),
        AfterValidator(lambda value: Replication("simple", value["factor"])),
    ],
    "<network>": Annotated[
        _shape("network", {"strategy": NotRequired[Text], "datacenters": Required[dict[Text, _LOCAL]]}),
        AfterValidator(_network),
    ],
    "<tablets>": Annotated[
        _shape(
            "tablets",
            {"strategy": Required[Text], "factor": NotRequired[Number], "datacenters": NotRequired[dict[Text, _LOCAL]]},
        ),
        AfterValidator(_tablets),
    ],
    "<zone>": Annotated[
        _shape("zone", {"strategy": Required[Text], "zone": Required[Text]}),
        AfterValidator(lambda value: in_zone(value["zone"])),
    ],
    "<entire>": Annotated[_shape("entire", {"strategy": NotRequired[Text]}), AfterValidator(lambda _: ENTIRE)],
    "<other>": Annotated[
        _TYPED_DICT("other", {"strategy": Text}), AfterValidator(lambda value: Replication(value["strategy"], 1))
    ],
}
_TAGS = {*_STRATEGIES, "<factor>", "<racks>"}
_TAGGED: Any = reduce(or_, (Annotated[shape, Tag(tag)] for tag, shape in _STRATEGIES.items()))
_REPLICATION: Any = Annotated[_TAGGED, Discriminator(_strategy_of)]

BY_TYPE: Mapping[Any, Any] = {
    int: Number,
    bool: Flag,
    bytes: Hex,
    tuple[tuple[str, int], ...]: Annotated[dict[Text, Number], AfterValidator(_pairs)],
    Replication: _REPLICATION,
}
SHORT: Mapping[Any, Callable[[Any], Any]] = {
    tuple[Column, ...]: _columns,
    tuple[TypeField, ...]: _typed_names,
    tuple[ColumnRename, ...]: _renames,
    tuple[Position, ...]: _positions,
    CdcOptions: _switch,
    Shard: _place,
}
"""Types with a short form, and the function that expands it."""

# ------------------------------------------------------------------------------------------------------ derivation


def _read_as(name: str, hint: Any) -> Any:
    """Return the schema of a field with this name and type."""
    if name in BY_NAME:
        return BY_NAME[name]
    if hint in BY_TYPE:
        return BY_TYPE[hint]
    if hint is str:
        return Node if name in NODE_FIELDS else Text
    read: Any
    if is_value_class(hint):
        read = _value(hint)
    else:
        inner = [_read_as(name, one) for one in get_args(hint) if one is not type(None) and one is not Ellipsis]
        assert len(inner) == 1, f"{name}: no JSON is known for {hint}"
        # An explicit null is equivalent to an omitted field.
        read = tuple.__class_getitem__((inner[0], ...)) if get_origin(hint) is tuple else Optional[inner[0]]  # noqa: UP045
    return Annotated[read, BeforeValidator(SHORT[hint])] if hint in SHORT else read


def _members(model: type[Value], optional: Collection[str] = ()) -> dict[str, Any]:
    type_hints = get_type_hints(model)
    return {
        public_name(name): (NotRequired if name in optional or default is not NODEFAULT else Required)[
            _read_as(name, type_hints[name])
        ]
        for name, default in defaults_of(model).items()
    }


def _in_class(model: Any, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values by the class's field names, which differ from the JSON names for Python keywords."""
    return {name: found[public_name(name)] for name in model.__struct_fields__ if public_name(name) in found}


def _value(model: Any) -> Any:
    """Return the schema of a nested value: an object of its fields."""
    return Annotated[
        _shape(model.__name__, _members(model)), AfterValidator(lambda found: model(**_in_class(model, found)))
    ]


@cache
def _adapter(model: type, optional: frozenset[str]) -> TypeAdapter[dict[str, Any]]:
    return TypeAdapter(_shape(model.__name__, _members(model, optional)))

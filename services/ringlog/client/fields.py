"""Checks of submitted commands: each value has the type of its field.

The rules of a command decide whether values are allowed. Here only Python's types count, because type hints do not stop
a program that is not type-checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from ringlog.client.errors import InvalidSubmission
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Command, is_uuid, is_value_class
from ringlog.protocol.effects import Draw
from ringlog.wire.errors import WireError

Intent = Callable[[ClusterState, Draw], Any]
"""Returns the command for a state. It may draw random values. The result is a ``Command``."""


def command_of(given: Command | Intent, state: ClusterState, draw: Draw, *, is_again: bool = False) -> Command:
    """Return the command, or the one that the function makes. Raises InvalidSubmission.

    ``is_again``: the command must be that of an earlier attempt. A function would make another one.
    """
    if callable(given) and not isinstance(given, type):
        if is_again:
            raise InvalidSubmission(
                "a function makes another command at each attempt", "pass `command` of the submission or of its error"
            )
        try:
            given = given(state, draw)
        except ValueError as error:
            raise InvalidSubmission(str(error), "pass other values") from error
    if isinstance(given, Command):
        return given
    detail = getattr(given, "detail", "")  # an intent that has no command says why
    raise InvalidSubmission(detail or f"{given!r:.100} is not a command", "pass a command of ringlog.commands")


def unfit(command: Command, request_id: str, error: WireError) -> InvalidSubmission:
    """Return the error for a request that cannot be encoded; it names the field."""
    if not is_uuid(request_id):
        return InvalidSubmission(f"request_id: {request_id!r:.100} is not a UUID", "pass the id of the earlier attempt")
    kind = type(command).__name__
    return InvalidSubmission(f"{kind}: {_wrong(command, type(command), '') or error}", "pass a value of that type")


def _wrong(value: Any, hint: Any, path: str) -> str:
    """Return the path of the first value that is not of its type, and the rule; empty if there is none."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        found = [_wrong(value, one, path) for one in inner if one is not NoneType]
        return "" if value is None and NoneType in inner else min(found, key=len, default="")
    if is_value_class(hint) and isinstance(value, hint):
        hints = get_type_hints(hint)
        dot = f"{path}." if path else ""
        return _first((getattr(value, name), hints[name], f"{dot}{name}") for name in hint.__struct_fields__)
    if origin is tuple:
        if not isinstance(value, tuple):
            return f"{path}: must be a tuple, not {type(value).__name__}"
        kinds = [inner[0]] * len(value) if inner[1:] == (...,) else inner
        return _first((value[index], kind, f"{path}[{index}]") for index, kind in enumerate(kinds[: len(value)]))
    if isinstance(hint, type) and type(value) is not hint:
        return f"{path}: must be {hint.__name__}, not {type(value).__name__}"
    return ""


def _first(parts: Iterable[tuple[Any, Any, str]]) -> str:
    return next((found for value, hint, path in parts if (found := _wrong(value, hint, path))), "")

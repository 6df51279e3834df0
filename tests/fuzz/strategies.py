"""Strategies for commands, built from their Avro schemas and from values that occur in the current state.

The module contains no command by name. A field's values come from these sources:

- The state: values of fields with the same name, and the keys of the section with that name, so references are valid.
- The command: texts already drawn for it, because a key names a column of the same command.
- The sources of the kernel: all words and numbers that a rule compares with, and the adjacent numbers.
- Shapes (``SHAPES``): a new name, a UUID, an address, a digest.
- The schema: any value of the type.

New commands and fields therefore need no change here. ``test_commands_machine.py`` fails if it never gets a command
accepted. Then add the required form of the value to ``SHAPES``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Protocol

from hypothesis import strategies as st
from immutables import Map

import ringlog.kernel
from ringlog.kernel.fold import decide
from ringlog.kernel.model.outcome import Accepted, EntryContext
from ringlog.kernel.model.state import PARTS, ClusterState
from ringlog.kernel.registry import COMMANDS
from ringlog.kernel.values import Command, Value
from ringlog.wire.avro.codec import layout
from ringlog.wire.commands import mapper
from ringlog_schemas import current
from tests.wire.strategies import named_types, values

SHAPES: Mapping[str, Sequence[Any]] = {
    "string": (
        "fresh0",
        "fresh1",
        "aaaaaaaa-0000-4000-8000-00000000000a",
        "aaaaaaaa-0000-4000-8000-00000000000b",
        "127.0.0.1:7999",
        "ab" * 32,
    ),
    "bytes": (bytes(range(16)),),
    "long": (0, 1, 2, 5, -5, 77),
    "int": (0, 1, 2),
}
"""Type to values in a form that a rule may require. Each may occur in any field."""

Plausible = Mapping[str, Sequence[Any]]
"""Field name to the values that the state suggests for it, in a fixed order."""

_PYTHON = {"string": str, "long": int, "int": int, "bytes": bytes, "boolean": bool}


# Values from the state


class Pools:
    """Plausible values of a state. Sections that did not change since the last call are reused."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Any, dict[str, set[Any]]]] = {}

    def of(self, state: ClusterState) -> Plausible:
        """Return values for all field names in the state and for the singular names of its sections."""
        merged: dict[str, set[Any]] = {"applied": {state.epoch}, "drained": {state.epoch}}
        for name in PARTS:
            part = getattr(state, name)
            if name not in self._known or self._known[name][0] is not part:
                self._known[name] = part, _suggested(name, part)
            for key, found in self._known[name][1].items():
                merged.setdefault(key, set()).update(found)
        for name in ("horizon", "low_watermark", "floor", "timestamp"):
            merged.setdefault("timestamp", set()).update(merged.get(name, ()))
        return {key: sorted(found, key=lambda value: (str(type(value)), value)) for key, found in merged.items()}


def _suggested(name: str, part: Any) -> dict[str, set[Any]]:
    found: dict[str, set[Any]] = {}
    for key, value in _walk(part):
        found.setdefault(key, set()).add(value)
        if type(value) is int:
            found[key].add(min(value + 1, 2**63 - 1))
    if isinstance(part, Map):
        found.setdefault(name.removesuffix("s"), set()).update(part)
    if name == "prepared" and part is not None:
        found.setdefault("generation", set()).add(part.id)
    if name == "generations":
        found.setdefault("generation", set()).update(one.id for one in part)
    return found


def _walk(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (field name, simple value) for all nested values. Long tuples yield only their ends."""
    if isinstance(value, Value):
        for field in value.__struct_fields__:
            yield from _walk(getattr(value, field), field)
    elif isinstance(value, Map):
        for key in sorted(value):
            yield name, key
            yield from _walk(value[key], name)
    elif isinstance(value, tuple):
        for item in (*value[:3], *value[-1:]):
            yield from _walk(item, name)
    elif name and type(value) in (str, int, bytes):
        yield name, value


@cache
def vocabulary() -> Mapping[type, Sequence[Any]]:
    """Return the words and numbers in the kernel's sources, and the adjacent numbers."""
    words, numbers = set(), {2**31 - 1, 2**31, 2**62, 2**63 - 1, -(2**63)}
    for path in sorted(Path(ringlog.kernel.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and type(node.value) is str and len(node.value) <= 32:
                words |= {node.value} if node.value.isidentifier() else set()
            elif isinstance(node, ast.Constant) and type(node.value) is int:
                numbers |= {node.value - 1, node.value, node.value + 1, -node.value}
    return {str: sorted(words), int: sorted(number for number in numbers if -(2**63) <= number < 2**63), bytes: [b""]}


# Drawing commands


class Chooser(Protocol):
    """Source of choices: Hypothesis, which can shrink them, or a seed, which is faster."""

    def pick(self, options: Sequence[Any]) -> Any:
        """Return one of the options."""

    def any_of(self, schema: Any, types: Mapping[str, Any]) -> Any:
        """Return any value of a schema without parts."""


class ByHypothesis:
    """Hypothesis makes each choice."""

    def __init__(self, draw: Any) -> None:
        self._draw = draw

    def pick(self, options: Sequence[Any]) -> Any:
        return self._draw(st.sampled_from(options))

    def any_of(self, schema: Any, types: Mapping[str, Any]) -> Any:
        return self._draw(values(schema, types))


class BySeed:
    """A seed determines each choice."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def pick(self, options: Sequence[Any]) -> Any:
        return self._random.choice(options)

    def any_of(self, schema: Any, types: Mapping[str, Any]) -> Any:
        kind = schema["type"] if isinstance(schema, Mapping) else schema
        if kind == "enum":
            return self._random.choice(schema["symbols"])
        made: Mapping[str, Callable[[], Any]] = {
            "null": lambda: None,
            "boolean": lambda: self._random.random() < 0.5,
            "int": lambda: self._random.randrange(-(2**31), 2**31),
            "long": lambda: self._random.randrange(-(2**63), 2**63),
            "string": lambda: "".join(self._random.choices("aZ0_.- é\0", k=self._random.randrange(6))),
            "bytes": lambda: self._random.randbytes(self._random.randrange(40)),
            "fixed": lambda: self._random.randbytes(schema["size"]),
        }
        return made[kind]()


class _Drawer:
    """Draws one command. ``texts`` are the texts already drawn for it."""

    def __init__(self, chooser: Chooser, plausible: Plausible, types: Mapping[str, Any]) -> None:
        self._chooser = chooser
        self._plausible = plausible
        self._types = types
        self._texts: list[str] = []

    def value(self, name: str, schema: Any) -> Any:
        schema = self._types.get(schema, schema) if isinstance(schema, str) else schema
        if isinstance(schema, list):
            return self.value(name, self._chooser.pick(schema))
        kind = schema["type"] if isinstance(schema, Mapping) else schema
        if kind == "record":
            given = {field["name"]: self.value(field["name"], field["type"]) for field in self._given(schema["fields"])}
            return {field["name"]: given.get(field["name"]) for field in schema["fields"]}
        if kind == "array":
            return self._array(name, schema["items"])
        if kind in _PYTHON and kind != "boolean":
            return self._simple(name, kind)
        return self._chooser.any_of(schema, self._types)

    def _given(self, fields: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Return all fields. If more than three are a record or null, as in a statement, return only one of those."""
        either = [
            field for field in fields if isinstance(field["type"], list) and isinstance(field["type"][1], Mapping)
        ]
        if len(either) <= 3:
            return fields
        one = self._chooser.pick(either)
        return [*(field for field in fields if field not in either), one | {"type": one["type"][1]}]

    def _simple(self, name: str, kind: str) -> Any:
        suggested = [value for value in self._plausible.get(name, ()) if type(value) is _PYTHON[kind]]
        near = suggested + [text for text in self._texts if kind == "string"]
        match self._chooser.pick(_SOURCES if near else _SOURCES[_NEAR:]):
            case "near":
                found = self._chooser.pick(near)
            case "shape":
                found = self._chooser.pick(SHAPES[kind])
            case "vocabulary":
                found = self._chooser.pick(vocabulary()[_PYTHON[kind]])
            case _:
                found = self._chooser.any_of(kind, {})
        if kind == "int":
            found = max(-(2**31), min(found, 2**31 - 1))
        if kind == "string":
            self._texts.append(found)
        return found

    def _array(self, name: str, items: Any) -> list[Any]:
        schema = self._types.get(items, items) if isinstance(items, str) else items
        if isinstance(schema, Mapping) and schema["type"] == "record" and self._chooser.pick((True, False)):
            return self._one_for_each(name, schema)
        return [self.value(name.removesuffix("s"), items) for _ in range(self._chooser.pick(range(4)))]

    def _one_for_each(self, name: str, schema: Mapping[str, Any]) -> list[Any]:
        """Return an item for each entity that the items refer to: a witness for each node, a setting for each name."""
        first = schema["fields"][0]["name"]
        about = next((each for each in (first, name.removesuffix("s")) if each in _references(self._plausible)), None)
        subjects = self._plausible[about][:8] if about is not None else ()
        return [self.value(name, schema) | {first: subject} for subject in subjects]


_NEAR = 11
_SOURCES = ("near",) * _NEAR + ("shape",) * 6 + ("vocabulary",) * 2 + ("any",)
"""Weighted sources of a simple value. Without a close value, the other sources are used."""


def _references(plausible: Plausible) -> set[str]:
    """Return the field names that refer to an entity of the state."""
    return {name.removesuffix("s") for name in PARTS} & plausible.keys()


def made(chooser: Chooser, kind: str, plausible: Plausible) -> Command:
    """Return a command of this kind with a choice for each field."""
    schema = current()[f"ringlog.commands.{kind}"].json
    command: Command = mapper(kind).from_record(_Drawer(chooser, plausible, named_types(schema)).value("", schema))
    return command


def altered(chooser: Chooser, command: Command, plausible: Plausible) -> Command:
    """Return the command with new choices for up to two fields."""
    names = [*command.__struct_fields__]
    chosen = [chooser.pick(names) for _ in range(chooser.pick(range(3)) if names else 0)]
    return _with_fields(chooser, command, plausible, chosen)


def _with_fields(chooser: Chooser, command: Command, plausible: Plausible, names: Sequence[str]) -> Command:
    """Return the command with new choices for these fields."""
    kind = type(command).__name__
    schema = current()[f"ringlog.commands.{kind}"].json
    record = layout(f"ringlog.commands.{kind}").decode(mapper(kind).write(command), canonical=True)
    drawer = _Drawer(chooser, plausible, named_types(schema))
    for field in schema["fields"]:
        if field["name"] in names:
            record[field["name"]] = drawer.value(field["name"], field["type"])
    found: Command = mapper(kind).from_record(record)
    return found


def accepted(state: ClusterState, seed: int, command: Command, plausible: Plausible, attempts: int) -> Command:
    """Return a similar command that the rules accept, if ``attempts`` tries find one.

    Each rejection names the field that gets the next new choice.
    """
    chooser = BySeed(seed)
    names = [*command.__struct_fields__]
    context = EntryContext(state.epoch + 1, "ffffffff-ffff-7fff-bfff-ffffffffffff", state.time)
    for _ in range(attempts if names else 0):
        decision = decide(state, command, context)
        if isinstance(decision, Accepted):
            break
        said = set(re.findall(r"\w+", decision.detail.partition(":")[0]))
        wrong = [name for name in names if name in said]
        if not wrong or chooser.pick(range(6)) == 0:
            wrong = [chooser.pick(names)]
        command = _with_fields(chooser, command, plausible, wrong)
    return command


@st.composite
def commands(draw: Any, kind: str, plausible: Plausible) -> Command:
    """Draw a command of this kind."""
    return made(ByHypothesis(draw), kind, plausible)


@st.composite
def changed(draw: Any, command: Command, plausible: Plausible) -> Command:
    """Draw a command similar to this one."""
    return altered(ByHypothesis(draw), command, plausible)


KINDS = sorted(COMMANDS)

"""No request, however long the text in any of its fields, may lead to an answer that does not fit into a record.

Otherwise every validator would end at this request, and get it again.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator
from contextlib import suppress

import pytest

from ringlog.kernel.registry import COMMANDS
from ringlog.kernel.values import Command
from ringlog.protocol.validator_core import arrive, begin
from ringlog.protocol.validator_values import Publish, Validator
from ringlog.wire.errors import WireError
from ringlog.wire.records import CommandRequest, encode_result

from .world import NOW, World

RESULT_BYTES_MAX = 4_096
LONG = ("\x00" * 60_000, "a" * 60_000, "\U0001f600" * 60_000, "'\"\\\n" * 15_000)


def filled(hint: typing.Any, text: str) -> typing.Any:
    """A value of the annotated type, with ``text`` in each of its strings."""
    arguments = typing.get_args(hint)
    if hint is str:
        return text
    if hint in (int, bool):
        return hint(1)
    if hint is bytes:
        return bytes(16)
    if typing.get_origin(hint) is tuple:
        inner = arguments[:1] if arguments[1:] == (Ellipsis,) else arguments
        return tuple(filled(each, text) for each in inner)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return filled(next(each for each in arguments if each is not type(None)), text)
    hints = typing.get_type_hints(hint)
    return hint(**{field.name: filled(hints[field.name], text) for field in dataclasses.fields(hint)})


def commands(text: str) -> Iterator[Command]:
    """Every command, with ``text`` in one of its fields at a time."""
    for cls in COMMANDS.values():
        hints = typing.get_type_hints(cls)
        short = {field.name: filled(hints[field.name], "x") for field in dataclasses.fields(cls)}
        for name in short:
            if (value := filled(hints[name], text)) != short[name]:
                yield cls(**(short | {name: value}))


def answer_bytes(world: World, request: CommandRequest) -> list[int]:
    step = begin(arrive(Validator(world.uuid(), 1), [(0, (request,))]).validator, world.state, NOW, world.draw)
    return [len(encode_result(r)) for effect in step.effects if isinstance(effect, Publish) for r in effect.results]


@pytest.mark.parametrize("text", LONG, ids=("nul", "ascii", "astral", "quotes"))
def test_every_answer_is_short(text: str) -> None:
    world = World()
    world.take_over(1)
    asked: list[CommandRequest] = []
    for command in commands(text):
        with suppress(WireError):  # a field of fixed length, which no request can fill with this
            asked.append(world.request(command))
    asked.append(CommandRequest(world.uuid(), world.state.epoch, "tester", text, 1, b""))
    sizes = [size for request in asked for size in answer_bytes(world, request)]
    assert len(sizes) > 30
    assert max(sizes) < RESULT_BYTES_MAX

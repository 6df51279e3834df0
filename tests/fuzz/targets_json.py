"""Fuzz targets for text: operator JSON, rehearsal lines, schemas, plans of the pipeline, files, script lines."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from ringlog.cli.scripts import BadScriptLine, shard_line, stream_id_line, token_line
from ringlog.client.cdc.errors import BadProgress
from ringlog.client.cdc.progress import ConsumerProgress, Mark, PartitionProgress
from ringlog.client.cdc.reader import CdcReader
from ringlog.kernel.fold import DEFECT, decide
from ringlog.kernel.model.outcome import EntryContext, Rejected
from ringlog.kernel.registry import CODES
from ringlog.operator.intents.intents import InvalidCommand
from ringlog.operator.intents.json_commands import from_json, to_json
from ringlog.operator.rehearsal.rehearsal import Rehearsal
from ringlog.runtime.draw import SeededDraw
from ringlog.wire.avro.codec import learn
from ringlog.wire.commands import decode_command, encode_command
from ringlog.wire.errors import WireError
from ringlog_cdc.errors import CdcError, ChainBroken
from ringlog_cdc.plan.plan import GENESIS, OffsetRange, check_link, close_entry, decode, encode, route_entry
from ringlog_schemas import current
from tests.fuzz.mutate import of_json
from tests.fuzz.targets import Target
from tests.fuzz.world import START, story


class NotJson(Exception):
    """The bytes are not JSON, which the caller of the decoder rejects first."""


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise NotJson from error


def author(data: bytes) -> None:
    """Read a command from JSON or get the reason of its rejection. Validate it, encode it, and convert it back to
    JSON.
    """
    state = story().state
    found = from_json(state, _parsed(data), SeededDraw(b"author"))
    if isinstance(found, InvalidCommand):
        assert found.code in {*CODES, "missing_field"}, found
        found.detail.encode("utf-8", "backslashreplace")
        return
    decision = decide(state, found, EntryContext(state.epoch + 1, "ffffffff-ffff-7fff-bfff-fffffffffff0", state.time))
    assert not (isinstance(decision, Rejected) and decision.code == DEFECT), decision
    try:
        kind, version, payload = encode_command(found)
    except WireError:
        return
    assert decode_command(kind, version, payload) == found
    shown = json.loads(json.dumps(to_json(state, found)))
    assert from_json(state, shown, SeededDraw(b"again")) == found, shown


def consumed(data: bytes) -> None:
    """Read the stored progress of a consumer. A reader continues from it and stores the same value."""
    found = ConsumerProgress.from_json(data)
    assert ConsumerProgress.from_json(found.to_json()) == found


def resumed(data: bytes) -> None:
    """Read the stored progress together with its reader."""
    reader = CdcReader.__new__(CdcReader)
    reader._cluster, reader._topic_id, reader._share, reader._wanted = "c", "t", (0, 1), {"ks.t"}  # type: ignore[assignment]
    reader._resumed(data.decode("utf-8", "surrogateescape"), {0: (0, 9)})


def _progress() -> tuple[bytes, ...]:
    part = PartitionProgress(3, 5, 4, None, ((("m", 0), Mark(7, (1, 2))),), (b"12345678",))
    return (ConsumerProgress(100, ((0, part), (1, PartitionProgress(0, 0))), 5, ((0, 2),)).to_json().encode(),)


def _kept() -> tuple[bytes, ...]:
    place = {"cluster": "c", "topic": "t", "share": [0, 1], "tables": ["ks.t"], "progress": _progress()[0].decode()}
    return (json.dumps(place).encode(),)


def _commands() -> tuple[bytes, ...]:
    """Return each command of the story as typed by an operator."""
    found = []
    for step in story().steps:
        shown = to_json(step.before, step.encoded.entry.command)  # type: ignore[arg-type]
        found.append(json.dumps(shown).encode())
    return (*found, b'{"command": "Join", "node": "n5", "num_tokens": 3}')


def lines(data: bytes) -> None:
    """Rehearse lines after the end of the story. Each answer is JSON in ASCII."""
    rehearsal = Rehearsal(story().state)
    for number, line in enumerate(data.split(b"\n")[:6], start=1):
        answer = rehearsal.line(line, number)
        assert answer.get("code") != DEFECT, answer
        json.dumps(answer, allow_nan=False).encode("ascii")


def _lines() -> tuple[bytes, ...]:
    more = (
        {"show": "stream", "token": 5, "at": START + 10**9},
        {"show": "placements", "keyspace": "ks"},
        *({"show": name} for name in ("nodes", "operations", "schema", "cdc", "settings", "locks")),
        {"do": "advance_clock", "seconds": 1.5},
        {"do": "finish"},
        {"do": "step", "operation": "join-67"},
        {"command": "Noop"},
    )
    shown = tuple(json.dumps(line).encode() for line in more)
    return (*shown, b'{"do": "finish"}\n{"show": "cdc"}', *_commands()[::5])


def plan(data: bytes) -> None:
    """Read a plan entry, encode it to the same bytes, and check whether it follows another entry."""
    found = decode(data)
    assert encode(found) == data
    for before in (GENESIS, *map(decode, _plans())):
        try:
            check_link(before, found)
        except ChainBroken:
            continue


@cache
def _plans() -> tuple[bytes, ...]:
    first = route_entry(
        GENESIS,
        batch=0,
        part=0,
        last=True,
        ranges=[OffsetRange(0, 0, 5), OffsetRange(1, 3, 4)],
        epoch=7,
        context="c" * 64,
        horizon=START,
        used=START - 1,
        incarnation="i1",
        starts={0: 0, 1: 3},
    )
    second = close_entry(first, generations=["g1"], low_watermark=START - 5, epoch=8, incarnation="i1")
    return encode(first), encode(second)


def schema(data: bytes) -> None:
    """Read the schema of a later release from the topic of schemas."""
    learn(data.decode("utf-8", "replace"))


def _schemas() -> tuple[bytes, ...]:
    return tuple(json.dumps(dict(found.json)).encode() for found in current().values())


def script_line(data: bytes) -> None:
    """Run a line of ``token``, ``stream-id`` and ``shard``."""
    line = data.decode("utf-8", "replace")
    refused = 0
    for answer in (token_line, stream_id_line, shard_line):
        try:
            answer(line).encode()
        except BadScriptLine:
            refused += 1
    if refused == 3:
        raise BadScriptLine


TARGETS = (
    Target(
        "consumer_progress",
        ("client.cdc.progress.ConsumerProgress.from_json",),
        consumed,
        (BadProgress,),
        _progress,
        of_json,
    ),
    Target("consumer_places", ("client.cdc.reader.CdcReader._resumed",), resumed, (BadProgress,), _kept, of_json),
    Target("author_json", ("operator.intents.json_commands.from_json",), author, (NotJson,), _commands, of_json),
    Target("rehearsed_lines", ("operator.rehearsal.rehearsal._parsed",), lines, (), _lines, of_json),
    Target("plans", ("ringlog_cdc.plan.plan.decode",), plan, (CdcError,), _plans, of_json),
    Target("schemas", ("wire.avro.codec.learn",), schema, (WireError,), _schemas, of_json),
    Target("script_lines", (), script_line, (BadScriptLine,), lambda: (b"00ff", b"5 2 12", bytes(16).hex().encode())),
)

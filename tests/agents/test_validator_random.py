"""Random runs of the validator: direct authors, lost and late entries, crashes between any two effects, take-overs.

In all of them a request has at most one effect, a request answered as rejected has none, and no request is acknowledged
without an answer. At the end, without disturbance, every request has an answer.
"""

from __future__ import annotations

import random
import types
import typing
from collections.abc import Iterator, Sequence
from contextlib import suppress

import pytest

from ringlog.kernel.commands.cdc.writers import AdvanceCdcWriter, RegisterCdcWriter
from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.registry import COMMANDS
from ringlog.kernel.values import Command
from ringlog.protocol.submission.results import CommitOutcome, EntryChain, all_final, commit_outcomes
from ringlog.protocol.validator.core import (
    add_rejections,
    add_requests,
    begin_batch,
    extend_batch,
    join_batch,
    settle_batch,
)
from ringlog.protocol.validator.values import (
    Ack,
    Arrived,
    CommitChain,
    NoteApplied,
    Publish,
    SendEntries,
    StopInstance,
    Validator,
)
from ringlog.wire.entries import EncodedEntry
from ringlog.wire.errors import WireError
from ringlog.wire.records import REJECTED, CommandRequest, Result, encode_result

from .world import BAD, GOOD, NOW, World

ROUNDS = 60


class Run:
    """One random run: the topics, the log, and the current validator."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = World(history_entries=self.random.choice((100, 10_000)))
        self.requests: list[CommandRequest | None] = []
        self.results: list[Result] = []
        self.floating: list[EncodedEntry] = []
        self.acked = -1
        self.term = 0
        self.start_validator()

    def start_validator(self) -> None:
        """Start an instance: take-over, Noop, results read; unacknowledged requests are delivered again."""
        self.term += 1
        self.world.take_over(self.term)
        self.core = add_rejections(Validator(f"instance-{self.term}", self.term), self.results)

    def ask(self) -> None:
        """Send a new request, an old one again, an old id with another command, or invalid bytes."""
        draw = self.random.random()
        asked = [request for request in self.requests if request is not None]
        if draw < 0.05:
            self.requests.append(None)
        elif draw < 0.3 and asked:
            self.requests.append(self.random.choice(asked))
        elif draw < 0.35 and asked:
            old = self.random.choice(asked)
            self.requests.append(self.world.request(Noop(), old.request_id, old.since_epoch))
        else:
            commands = (Noop(), GOOD, BAD, self._register(), AdvanceCdcWriter(self._writer(), "1", NOW, 0))
            self.requests.append(self.world.request(self.random.choice(commands)))

    def _writer(self) -> str:
        return f"writer-{self.random.randrange(3)}"

    def _register(self) -> RegisterCdcWriter:
        return RegisterCdcWriter(self._writer(), str(self.random.randrange(3)))

    def _record(self, offset: int) -> Arrived:
        request = self.requests[offset]
        return offset, () if request is None else (request,)

    def round(self, disturbed: bool = True) -> None:
        """Deliver, decide, commit, answer; the process may die before one of the effects."""
        first = max(self.acked, self.core.arrived) + 1
        last = self.random.randint(first, len(self.requests)) if disturbed else len(self.requests)
        step = add_requests(self.core, [self._record(offset) for offset in range(first, last)])
        effects = list(step.effects)
        if step.validator.waiting:
            begun = begin_batch(
                step.validator, self.world.state, NOW, self.world.draw, part=self.random.choice((1, 2, 16))
            )
            effects += begun.effects
            step = begun
        self.core = step.validator
        while effects:
            if disturbed and self.random.random() < 0.05:
                self.start_validator()
                return
            effect = effects.pop(0)
            match effect:
                case SendEntries(entries):
                    self._hand_over(entries, disturbed)
                    step = extend_batch(self.core, NOW, self.world.draw)
                    self.core = step.validator
                    effects = [*step.effects, *effects]
                case CommitChain(accepts_more=True) if self.random.random() < 0.5:
                    first = max(self.acked, self.core.arrived) + 1
                    self.ask()
                    last = len(self.requests)
                    records = [self._record(offset) for offset in range(first, last)]
                    step = join_batch(self.core, records, NOW, self.world.draw, part=self.random.choice((1, 2, 16)))
                    self.core = step.validator
                    effects = [*step.effects, *effects]
                case CommitChain(chain):
                    step = settle_batch(self.core, self._commit(chain, disturbed))
                    self.core = step.validator
                    effects = [*step.effects, *effects]
                case Publish(results) | NoteApplied(results):
                    self.results += results
                case Ack(offset):
                    self._check_answered(offset)
                    self.acked = max(self.acked, offset)
                case StopInstance():
                    raise AssertionError("there is no later instance")

    def _hand_over(self, entries: Sequence[EncodedEntry], disturbed: bool) -> None:
        """Send the first copies of some entries before their outcome is known."""
        for encoded in entries:
            if not disturbed or self.random.random() < 0.8:
                self.world.land(encoded)
            elif self.random.random() < 0.5:
                self.floating.append(encoded)

    def _commit(self, chain: EntryChain, disturbed: bool) -> tuple[CommitOutcome, ...]:
        """Append the chain completely, in part, late or between other entries, until every outcome is final."""
        judged = commit_outcomes(self.world.state, chain)
        while not all_final(judged):
            for encoded, fate in zip(chain.entries, judged, strict=True):
                if fate is not CommitOutcome.OPEN:
                    continue
                if disturbed and self.random.random() < 0.1:
                    self.floating.append(encoded)
                    continue
                if disturbed and self.random.random() < 0.05:
                    self.world.land(self.world.entry(self.random.choice((Noop(), self._register()))))
                self.world.land(encoded)
            self._let_land()
            judged = commit_outcomes(self.world.state, chain)
        return judged

    def _let_land(self) -> None:
        """Append copies in transit in any order, even after the end of their author."""
        self.random.shuffle(self.floating)
        while self.floating and self.random.random() < 0.5:
            self.world.land(self.floating.pop())

    def _check_answered(self, offset: int) -> None:
        answered = {(result.request_id, result.digest) for result in self.results}
        for request in self.requests[self.acked + 1 : offset + 1]:
            if request is not None:
                assert any(request.request_id == request_id for request_id, _ in answered)


@pytest.mark.parametrize("seed", range(100))
def test_a_request_has_at_most_one_effect_and_a_rejected_one_has_none(seed: int) -> None:
    run = Run(seed)
    for _ in range(ROUNDS):
        for _ in range(run.random.randrange(6)):
            run.ask()
        if run.random.random() < 0.2:
            run.world.direct()
        run.round()
    run._let_land()
    while run.acked < len(run.requests) - 1:
        run.round(disturbed=False)
    for encoded in run.floating:
        run.world.land(encoded)
    rejected = {(r.request_id, r.digest) for r in run.results if r.outcome == REJECTED}
    for entry in run.world.applied:
        assert len(run.world.epochs_of(entry.request_id)) == 1
        assert (entry.request_id, entry.digest) not in rejected
    terms = [result.term for result in run.results if result.outcome == REJECTED]
    assert terms == sorted(terms)


# The answer to any request fits into a record, for any length of its text fields.


RESULT_BYTES_MAX = 4_096
LONG = ("\x00" * 60_000, "a" * 60_000, "\U0001f600" * 60_000, "'\"\\\n" * 15_000)


def filled(hint: typing.Any, text: str) -> typing.Any:
    """Return a value of the annotated type with ``text`` in each of its strings."""
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
    return hint(**{name: filled(hints[name], text) for name in hint.__struct_fields__})


def commands(text: str) -> Iterator[Command]:
    """Return every command with ``text`` in one of its fields at a time."""
    for cls in COMMANDS.values():
        hints = typing.get_type_hints(cls)
        short = {name: filled(hints[name], "x") for name in cls.__struct_fields__}
        for name in short:
            if (value := filled(hints[name], text)) != short[name]:
                yield cls(**(short | {name: value}))


def answer_bytes(world: World, request: CommandRequest) -> list[int]:
    step = begin_batch(
        add_requests(Validator(world.uuid(), 1), [(0, (request,))]).validator, world.state, NOW, world.draw
    )
    return [len(encode_result(r)) for effect in step.effects if isinstance(effect, Publish) for r in effect.results]


@pytest.mark.parametrize("text", LONG, ids=("nul", "ascii", "astral", "quotes"))
def test_every_answer_is_short(text: str) -> None:
    world = World()
    world.take_over(1)
    asked: list[CommandRequest] = []
    for command in commands(text):
        with suppress(WireError):  # A field of fixed length, which no request can fill with this text.
            asked.append(world.request(command))
    asked.append(CommandRequest(world.uuid(), world.state.epoch, "tester", text, 1, b""))
    sizes = [size for request in asked for size in answer_bytes(world, request)]
    assert len(sizes) > 30
    assert max(sizes) < RESULT_BYTES_MAX

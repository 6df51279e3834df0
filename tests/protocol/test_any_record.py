"""No record of a topic stops an agent: each agent processes values that are zero, negative, huge or foreign.

Records pass through the wire codec, so a topic can contain each of them. An agent ignores an unusable record or refuses
it with a code. If it raised, each later instance would raise too, since topics keep the record.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import count
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest

from ringlog.cache.projection import Stamp
from ringlog.kernel.balance.reports import AMOUNT_MAX, CAPACITY_MAX
from ringlog.kernel.changes import EpochChange
from ringlog.kernel.fold import fold
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState
from ringlog.kernel.registry import COMMANDS
from ringlog.kernel.tablets.stages import session
from ringlog.kernel.values import is_value_class, replace
from ringlog.protocol.balancer.balancer import NewLoads, ReadLoads, balance
from ringlog.protocol.balancer.load_book import ReceivedLoad
from ringlog.protocol.controller import Submit
from ringlog.protocol.coordinator.ack_book import NewAcks, ReadAcks
from ringlog.protocol.coordinator.coordinator import PublishedEpoch, UnstoredBytes, coordinate
from ringlog.protocol.effects import Newest, Steps, Until, WallClock, run_steps
from ringlog.protocol.followers.cache_writer import CacheWriter, next_write
from ringlog.protocol.followers.publisher import divergence, restoration_of, starts_from
from ringlog.protocol.rebalancer.rebalancer import rebalance
from ringlog.protocol.submission.results import RejectedResult
from ringlog.protocol.validator.core import add_rejections, add_requests, begin_batch
from ringlog.protocol.validator.values import Validator
from ringlog.runtime.draw import SeededDraw
from ringlog.wire.changes import decode_change, encode_change
from ringlog.wire.commands import encode_command
from ringlog.wire.errors import WireError
from ringlog.wire.records import (
    CommandRequest,
    NodeAck,
    NodeLoad,
    Result,
    TableLoad,
    decode_node_ack,
    decode_node_load,
    decode_result,
    encode_node_ack,
    encode_node_load,
    encode_request,
    encode_result,
)
from ringlog.wire.requests import decode_requests
from tests.kernel.entries import entry
from tests.kernel.test_invariants import lives
from tests.protocol.test_declared_reads import draining, zoned

NUMBERS = (0, 0, 1, 1, 2, 7, -1, 255, 1 << 20, 1 << 31, 1 << 48, (1 << 62), (1 << 63) - 1, -(1 << 63))
TEXTS = (
    "",
    "x",
    "none",
    "\x00",
    "Ä" * 300,
    "ks.t@1",
    "not/a/session",
    "0" * 64,
    "00000000-0000-7000-8000-000000000000",
)
NOW = 1_000_000
ROUNDS = 3


class Enough(Exception):
    pass


@cache
def states() -> tuple[ClusterState, ...]:
    """Return stable and changing states: operations, tablets, zones, generations."""
    return (EMPTY_STATE, *lives().values(), *zoned(), draining())


@cache
def words(state: ClusterState) -> tuple[str, ...]:
    """Return names and ids of the state, and unknown texts."""
    found = [*TEXTS, state.cluster_id, state.state_id, *state.nodes, *state.node_names, *state.operations]
    found += [*state.tables, *state.table_ids, *state.zones, *state.keyspaces]
    found += [f"{name}@{tablets.sequence}" for name, tablets in state.tablets.items()]
    for name, tablets in state.tablets.items():
        found += [session(name, number, one) for number, one in tablets.transitions.items()]
    return tuple(found)


class Draws:
    """Random values of declared types; ``known``: texts of a state."""

    def __init__(self, rng: random.Random, state: ClusterState) -> None:
        self._rng = rng
        self._known = words(state)
        self._numbers = (*NUMBERS, state.epoch, state.epoch + 1, NOW)

    def record(self, of: type) -> Any:
        hints = get_type_hints(of)
        return of(**{name: self.value(hints[name]) for name in of.__struct_fields__})

    def value(self, of: Any) -> Any:
        origin, inner = get_origin(of), get_args(of)
        if origin in (Union, UnionType):
            return self.value(self._rng.choice(inner))
        if origin is tuple:
            each = [inner[0]] * self._rng.choice((0, 1, 1, 2, 3)) if inner[1:] == (...,) else inner
            return tuple(map(self.value, each))
        if hasattr(of, "__metadata__") or (origin is not None and inner and not isinstance(of, type)):
            return self.value(inner[0])
        if is_value_class(of):
            return self.record(of)  # type: ignore[arg-type]
        return self._plain(of)

    def _plain(self, of: Any) -> Any:
        if of is bool:
            return self._rng.random() < 0.5
        if of is int:
            return self._rng.choice(self._numbers)
        if of is bytes:
            return self._rng.randbytes(self._rng.choice((0, 1, 16)))
        return None if of is type(None) else self._rng.choice(self._known)

    def through(
        self, of: type, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any], number: int
    ) -> list[Any]:
        """Return records as a reader decodes them."""
        found = []
        for _ in range(number):
            try:
                found.append(decode(encode(self.record(of))))
            except WireError:
                continue
        return found


def acks_of(state: ClusterState, rng: random.Random, draws: Draws) -> Iterator[NodeAck]:
    """Return acknowledgements. Most of them have a present node and this log, so agents check more than the sender."""
    good = {"cluster_id": state.cluster_id, "state_id": "", "incarnation": "1"}
    for one in draws.through(NodeAck, encode_node_ack, decode_node_ack, 12):
        foreign = not state.nodes or rng.random() < 0.2
        yield (
            one
            if foreign
            else replace(one, node=rng.choice(sorted(state.nodes)), applied=rng.choice((0, state.epoch)), **good)
        )


def loads_of(state: ClusterState, rng: random.Random, draws: Draws) -> Iterator[ReceivedLoad]:
    """Return load reports. Most of them have a present node, existing tables and permitted amounts."""
    for one in draws.through(NodeLoad, encode_node_load, decode_node_load, 8):
        found = one
        if state.nodes and rng.random() < 0.8:
            tables = tuple(_table_load(state, rng, name) for name in sorted(state.tablets) if rng.random() < 0.7)
            capacity = rng.choice((None, 0, 1, 1 << 40, CAPACITY_MAX, one.capacity))
            found = replace(one, node=rng.choice(sorted(state.nodes)), at=0, capacity=capacity, tables=tables)
        yield ReceivedLoad(found if rng.random() < 0.9 else None, rng.choice((0, NOW, 1 << 62)))


def _table_load(state: ClusterState, rng: random.Random, name: str) -> TableLoad:
    tablets = rng.choice((1, 2, 1, 1)) * state.tablets[name].count
    amounts = [tuple(rng.choice((0, 1, AMOUNT_MAX)) for _ in range(tablets)) for _ in range(3)]
    return TableLoad(name, tuple(range(tablets)), *amounts, id=state.tables[name].id, count=tablets)


def driven(steps: Steps[None], state: ClusterState, heard: Callable[[], Iterator[Any]]) -> None:
    """Run an agent's whole step several times; each request is refused, so only the records change."""
    rounds = 0

    def perform(effect: Any) -> Any:
        nonlocal rounds
        match effect:
            case ReadAcks() | ReadLoads():
                return tuple(heard())
            case NewAcks() | NewLoads():
                rounds += 1
                if rounds > ROUNDS:
                    raise Enough
                return tuple(heard())
            case Newest():
                return state
            case WallClock():
                return NOW
            case PublishedEpoch() | UnstoredBytes():
                return 0
            case Submit():
                return RejectedResult(effect.proposal.request_id, "bad_field", "", state.epoch)
            case Until():
                return effect.found(state)
        return None

    with pytest.raises(Enough):
        run_steps(steps, perform)


def seeded(seed: int) -> Iterator[tuple[random.Random, ClusterState, Draws]]:
    rng = random.Random(seed)
    for state in states():
        yield rng, state, Draws(rng, state)


@pytest.mark.parametrize("seed", range(4))
def test_no_load_stops_the_balancer(seed: int) -> None:
    for rng, state, draws in seeded(seed):
        mixed = replace(state, settings=state.settings.set("balance_load_reads_percent", rng.choice((0, 33))))
        driven(balance(), mixed, partial(loads_of, mixed, rng, draws))


@pytest.mark.parametrize("agent", [coordinate, rebalance])
@pytest.mark.parametrize("seed", range(4))
def test_no_acknowledgement_stops_an_agent(seed: int, agent: Callable[[], Steps[None]]) -> None:
    """The coordinator and the rebalancer."""
    for rng, state, draws in seeded(seed):
        driven(agent(), state, partial(_numbered, count(), state, rng, draws))


def _numbered(offsets: Iterator[int], state: ClusterState, rng: random.Random, draws: Draws) -> Iterator[Any]:
    return ((next(offsets), ack) for ack in acks_of(state, rng, draws))


def _written(request: CommandRequest) -> bytes:
    try:
        return encode_request(request)
    except WireError:
        return b""


@pytest.mark.parametrize("seed", range(4))
def test_no_request_and_no_result_stops_the_validator(seed: int) -> None:
    for rng, state, draws in seeded(seed):
        requests = []
        for kind in rng.sample(sorted(COMMANDS), 12):
            try:
                written = encode_command(draws.record(COMMANDS[kind]))
            except (WireError, TypeError):
                continue
            found = draws.record(CommandRequest)
            found = replace(found, kind=written[0], version=written[1], payload=written[2])
            requests += [found, draws.record(CommandRequest)]
        records = [
            (offset, tuple(one for one in decode_requests(written) if one is not None))
            for offset, written in enumerate(filter(None, map(_written, requests)))
        ]
        results = draws.through(Result, encode_result, decode_result, 8)
        validator = add_rejections(Validator("i", 1), results)
        step = add_requests(validator, records)
        begin_batch(step.validator, state, NOW, SeededDraw(b"x"))


@pytest.mark.parametrize("seed", range(4))
def test_no_change_record_or_cache_stops_its_writer(seed: int) -> None:
    for rng, state, draws in seeded(seed):
        for last in draws.through(EpochChange, encode_change, decode_change, 8):
            if divergence(last, state) is None:
                try:
                    starts_from(last, state)
                except ValueError:
                    continue  # The publisher stops with this reason: see ``HaltDiverged``.
        keys = [rng.choice(words(state)) for _ in range(6)]
        restoration_of(state, lambda topic, keys=keys, draws=draws: {key: draws.value(bytes) for key in keys})
        next_write(CacheWriter(later=draws.record(Stamp)), state)


@pytest.mark.parametrize("seed", range(4))
def test_no_command_makes_the_fold_halt(seed: int) -> None:
    for _, state, draws in seeded(seed):
        for kind in sorted(COMMANDS):
            command = draws.record(COMMANDS[kind])
            assert fold(state, entry(state, command)).outcome.kind.name != "HALT", command

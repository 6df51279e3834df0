"""Simulated reads of rows. ``ringlog.node.rows.row_reads`` answers; this module moves messages and time.

A read at a position asks for the producer's last acknowledged write. Consecutive reads at QUORUM ask for a write in
progress.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from ringlog.client.data import row_reads
from ringlog.client.data.plans import Level
from ringlog.client.data.row_reads import FoundPartition
from ringlog.kernel.values import Micros, Value
from ringlog.node.protocol import requests
from ringlog.protocol.effects import Steps
from ringlog.wire.data import ReadRowsReply, ReadRowsRequest
from ringlog_sim.actors.nodes.registers import hold
from ringlog_sim.devices.world import MS, SimHost
from ringlog_sim.replica import Step

if TYPE_CHECKING:
    from ringlog_sim.actors.nodes.node import SimNode
    from ringlog_sim.simulation import Simulation

WRITTEN = "acknowledged writes"
POSITION: Final = "position"
"""A read at the position of a write, in place of a consistency level."""
AGAIN: Final = "again"
"""Repeated reads at QUORUM while nodes validate the same write one after the other."""
POLLS, POLL_US = 40, 20 * MS
OFTEN, GAP_US = 8, 8 * MS


class AcknowledgedWrite(Value):
    """A write that the broker has: its table, its partition key, and the position after it."""

    table: str
    key: bytes
    partition: int
    end: int


class RowsMessage(Value):
    """A request to ``node`` in transit. ``answer`` is called with the reply on the requesting host ``source``."""

    node: SimNode
    request: ReadRowsRequest
    source: SimHost
    answer: Callable[[Any], None]


class RowReader(Protocol):
    """An application. ``asks``: its datacenter and its deadline. ``perform`` runs its reads."""

    sim: Simulation
    host: SimHost
    asks: tuple[str, Micros]

    def perform(self, steps: Steps[FoundPartition]) -> Step: ...


def take(message: RowsMessage) -> None:
    """Receive a request at its node."""
    if message.node.starts:
        message.node.sim.world.begin(message.node.host, "rows", _answer(message))


def _answer(message: RowsMessage) -> Step:
    node, request = message.node, message.request
    sim, came = node.sim, node.sim.world.now
    reply: ReadRowsReply = yield from hold(
        sim.world, node.turned, requests.answer_row_request(node.row_replica, request)
    )
    sim.did["rows", "waits"] += sim.world.now > came
    if reply.epoch < request.epoch:
        node.named(request.epoch)
    sim.did["rows", reply.refused or "answered"] += 1
    sim.world.send(node.host, message.source, message.answer, reply)


def operate(application: RowReader, number: int, way: str) -> None:
    """Begin to read a partition with writes. ``number`` selects the partition."""
    sim = application.sim
    written: list[AcknowledgedWrite] = sim.shared[WRITTEN]
    if application.host.up and written:
        chosen = written[-1 - number % min(len(written), 4)]
        if way == POSITION:
            work = _at_position(application, written[-1])
        elif way == AGAIN:
            work = _again(application, chosen, Level.QUORUM, OFTEN, GAP_US)
        else:
            work = _again(application, chosen, Level(way), 3, 1)
        sim.world.spawn(application.host, f"{application.host.name}.rows", work)


def _at_position(application: RowReader, chosen: AcknowledgedWrite) -> Step:
    yield from _read(application, chosen, {chosen.partition: chosen.end}, Level.ONE)


def _again(application: RowReader, chosen: AcknowledgedWrite, level: Level, times: int, gap: Micros) -> Step:
    """Read ``times`` times, beginning when another write has arrived. Each read must see what earlier reads saw."""
    written: list[AcknowledgedWrite] = application.sim.shared[WRITTEN]
    count = len(written)
    for _ in range(POLLS):
        if len(written) > count:
            chosen = written[-1]
            break
        yield POLL_US
    for _ in range(times):
        yield from _read(application, chosen, {}, level)
        yield gap


def _read(application: RowReader, chosen: AcknowledgedWrite, at: dict[int, int], level: Level) -> Step:
    sim, begun = application.sim, application.sim.world.now
    steps: Steps[FoundPartition] = row_reads.read(chosen.table, chosen.key, at, level, *application.asks)
    found: FoundPartition | None = yield from application.perform(steps)
    way = "at a position" if at else level.value
    sim.did["application", "rows", way, "ok" if found is not None else "gave up"] += 1
    if found is not None:
        sim.world.tell(application.host.name, f"read {len(found.writes)} rows of {chosen.key!r} {way}")
        for check in sim.on_found_rows:
            check.found_rows(begun, at, found)

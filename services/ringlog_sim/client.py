"""A simulated client that performs ``ringlog.protocol.submission.submission``, and direct authors.

The checks get every request and every answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ringlog.kernel.encoding.encoder import command_digest
from ringlog.kernel.model.outcome import Entry, Outcome, OutcomeKind, UnreadableEntry
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Command, Micros
from ringlog.log.errors import WaitTimedOut
from ringlog.protocol.submission.results import Submitted
from ringlog.protocol.submission.submission import (
    AwaitAnswer,
    RequestKey,
    Send,
    TryBarrier,
    encoded_request,
    may_answer,
    request_records,
    submit_request,
)
from ringlog.wire.commands import encode_command
from ringlog.wire.errors import WireError
from ringlog.wire.ids import ENTROPY_BYTES, new_request_id
from ringlog.wire.records import Result
from ringlog_sim.devices.broker import REQUESTS, RESULTS, RETRY_US, SimRecord, SimTail
from ringlog_sim.devices.keys import KeyRing
from ringlog_sim.devices.memo import cached_result
from ringlog_sim.devices.world import MS, Chance, Signal, SimHost, Unanswered
from ringlog_sim.replica import Performers, SimAuthor, SimReplica, Step, draw_of, perform

if TYPE_CHECKING:
    from ringlog_sim.simulation import Simulation


ANSWER_APPLIED = "asks for applied"
"""In some runs, every request asks for a result also if it is applied."""
BUSY_US: Micros = 4 * MS
"""Maximum time until the producer takes the waiting requests. It batches them."""


class SimClient:
    """One client process: a replica, a reader of the results, and its open requests.

    ``principal``: the name that signs its requests if the cluster has principals.
    """

    def __init__(
        self, sim: Simulation, host: SimHost, name: str, replica: SimReplica | None = None, principal: str = ""
    ) -> None:
        self.sim = sim
        self.principal = principal
        self.host = host
        self.name = name
        self.replica = replica or SimReplica(sim, host, name)
        self.draw = draw_of(sim, name)
        self.direct = SimAuthor(self.replica, name, self.draw)
        self._signals: dict[str, Signal] = {}
        self._received: dict[str, list[Result]] = {}
        self._noted: set[str] = set()
        self._waiting: dict[str, Send] = {}
        self._busy = False
        self._chance = Chance(sim.world.seed, f"producer/{name}")
        self._tail: SimTail | None = None
        self.replica.followers.append(self._follow)

    def close(self) -> None:
        """Close the readers."""
        self.replica.close()
        if self._tail is not None:
            self._tail.close()

    def start(self) -> Step:
        """Place the reader at the end of the results, before the first request."""
        yield from self.replica.until_founded()
        while self._tail is None:
            try:
                end = yield from self.sim.broker.end(self.host, RESULTS)
                self._tail = self.sim.broker.tail(self.host, RESULTS, 0, end, self._take)
            except Unanswered:
                yield RETRY_US

    def new_request_id(self) -> str:
        """Return a new request id."""
        return new_request_id(self.direct.now(), self.draw.take(ENTROPY_BYTES))

    def submit(
        self,
        command: Command,
        timeout: Micros,
        request_id: str | None = None,
        since: int | None = None,
        sign: Callable[[bytes], bytes] | None = None,
    ) -> Step:
        """Return the answer to a command. ``sign``: makes the record of the request, instead of the own principal.

        Raise NoAnswer, or WireError if the command cannot be encoded.
        """
        since = self.replica.state.epoch if since is None else since
        request = encoded_request(
            command,
            request_id or self.new_request_id(),
            since,
            self.name,
            self.sim.shared[ANSWER_APPLIED],
            sign or self._signed,
        )
        key = request.key
        for check in self.sim.on_asked:
            check.asked(self.name, key, request.kind)
        self._signals.setdefault(key.request_id, Signal())
        self._received.setdefault(key.request_id, [])
        in_time: Performers = {
            **self.replica.in_time,
            Send: self._send,
            AwaitAnswer: self._await_answer,
            TryBarrier: self._try_barrier,
        }
        try:
            answer = yield from perform(submit_request(request, timeout), self.replica.at_once, in_time)
        finally:
            self._signals.pop(key.request_id, None)
            self._received.pop(key.request_id, None)
            self._noted.discard(key.request_id)
        self._announce(key, answer)
        return answer

    def _signed(self, request: bytes) -> bytes:
        ring: KeyRing | None = self.sim.shared["keys"]
        return request if ring is None else ring.sign(request, self.replica.state, self.principal)

    def withdraw(self, command: Command, request_id: str, since: int) -> Step:
        """Withdraw a request to the validator, and report its outcome to the checks."""
        key = RequestKey(request_id, since, command_digest(*encode_command(command)))
        ended = yield from self.direct.withdraw(request_id, since)
        for check in self.sim.on_withdrawn:
            check.withdrawn(self.name, key, ended)

    def _send(self, effect: Send) -> Step:
        """Add a request to the waiting ones. The first caller with a free producer sends all of them."""
        self._waiting[effect.request.key.request_id] = effect
        if self._busy:
            return
        self._busy = True
        try:
            yield self._chance.below(BUSY_US)
            while self._waiting:
                made, self._waiting = request_records(tuple(self._waiting.values())), {}
                self.sim.did["requests", "together"] += sum(len(record.sent) > 1 for record in made)
                yield from self.sim.broker.try_append(self.host, REQUESTS, [("", record.data) for record in made])
        finally:
            self._busy = False

    def _await_answer(self, effect: AwaitAnswer) -> Step:
        request_id = effect.key.request_id
        if not self._received[request_id] and request_id not in self._noted:
            yield self._signals[request_id], max(1, effect.until - self.sim.world.now)
        self._noted.discard(request_id)
        received, self._received[request_id] = self._received[request_id], []
        return received

    def _try_barrier(self, effect: TryBarrier) -> Step:
        try:
            return (yield from self.replica.barrier(effect.timeout))
        except WaitTimedOut:
            return None

    def _announce(self, key: RequestKey, answer: Submitted) -> None:
        if self.sim.world.tracing:
            self.sim.world.tell(self.name, f"is answered {answer}")
        for check in self.sim.on_answered:
            check.answered(self.name, key, answer)

    def _follow(
        self, _: ClusterState, __: ClusterState, item: Entry | UnreadableEntry, outcome: Outcome, ___: int
    ) -> None:
        if outcome.kind is OutcomeKind.APPLIED and isinstance(item, Entry):
            signal = self._signals.get(item.request_id)
            if signal is not None:
                self._noted.add(item.request_id)
                signal.fire()

    def _take(self, records: list[SimRecord]) -> None:
        for record in records:
            try:
                result = cached_result(record.value)
            except WireError:
                continue
            if result.request_id in self._received and may_answer(result):
                self._received[result.request_id].append(result)
                self._signals[result.request_id].fire()

"""A simulated client: submission through the validator, as ``ringlog.client`` does it, and direct authors.

What a client believes is decided by ``ringlog.client.submission``. Every question and every answer goes to the checks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringlog.client.results import Submitted
from ringlog.client.submission import Asked, answer_of_log, answer_of_result
from ringlog.kernel.encoding import command_digest
from ringlog.kernel.outcome import Entry, Outcome, OutcomeKind, Unreadable
from ringlog.kernel.state import ClusterState
from ringlog.kernel.values import Command, Micros
from ringlog.sim.broker import REQUESTS, RESULTS, RETRY_US, Record, Tail
from ringlog.sim.memo import cached_result
from ringlog.sim.replica import SimAuthor, SimReplica, Step, draw_of
from ringlog.sim.world import SECOND, Host, Signal, Unanswered
from ringlog.wire.commands import encode_command
from ringlog.wire.errors import WireError
from ringlog.wire.ids import ENTROPY_BYTES, new_request_id
from ringlog.wire.records import Request, Result, encode_request

if TYPE_CHECKING:
    from ringlog.sim.simulation import Simulation

RESEND_US: Micros = SECOND


class TimedOut(Exception):
    """The deadline came without an answer: the request may still be applied."""


class SimClient:
    """One client process: a replica, a reader of the results, and its questions under way."""

    def __init__(self, sim: Simulation, host: Host, name: str, replica: SimReplica | None = None) -> None:
        self.sim = sim
        self.host = host
        self.name = name
        self.replica = replica or SimReplica(sim, host, name)
        self.draw = draw_of(sim, name)
        self.direct = SimAuthor(self.replica, name, self.draw)
        self._signals: dict[str, Signal] = {}
        self._results: dict[str, list[Result]] = {}
        self._tail: Tail | None = None
        self.replica.followers.append(self._follow)

    def close(self) -> None:
        """Listen no more."""
        self.replica.close()
        if self._tail is not None:
            self._tail.close()

    def start(self) -> Step:
        """Place the reader at the results' end; before the first question."""
        yield from self.replica.until_founded()
        while self._tail is None:
            try:
                end = yield from self.sim.broker.end(self.host, RESULTS)
                self._tail = self.sim.broker.tail(self.host, RESULTS, 0, end, self._take)
            except Unanswered:
                yield RETRY_US

    def new_request_id(self) -> str:
        """A fresh request id."""
        return new_request_id(self.direct.now(), self.draw.take(ENTROPY_BYTES))

    def submit(
        self, command: Command, timeout: Micros, request_id: str | None = None, since: int | None = None
    ) -> Step:
        """The answer to a command. Raises TimedOut, WireError (the command cannot be encoded)."""
        kind, version, payload = encode_command(command)
        since = self.replica.state.epoch if since is None else since
        asked = Asked(request_id or self.new_request_id(), since, command_digest(kind, version, payload))
        request = Request(asked.request_id, since, self.name, kind, version, payload)
        return (yield from self._ask(asked, kind, encode_request(request), timeout))

    def withdraw(self, command: Command, request_id: str, since: int) -> Step:
        """Give a request up that went to the validator; the checks hear how it ended."""
        asked = Asked(request_id, since, command_digest(*encode_command(command)))
        ended = yield from self.direct.withdraw(request_id, since)
        for check in self.sim.on_withdrawn:
            check.withdrawn(self.name, asked, ended)

    def _ask(self, asked: Asked, kind: str, data: bytes, timeout: Micros) -> Step:
        sim, world = self.sim, self.sim.world
        for check in sim.on_asked:
            check.asked(self.name, asked, kind)
        signal = self._signals.setdefault(asked.request_id, Signal())
        self._results.setdefault(asked.request_id, [])
        deadline, again = world.now + timeout, world.now
        try:
            while True:
                answer = answer_of_log(self.replica.state, asked)
                if answer is None and self._results[asked.request_id]:
                    answer = yield from self._judge(asked)
                if answer is not None:
                    self._tell(asked, answer)
                    return answer
                if world.now >= deadline:
                    raise TimedOut
                if world.now >= again:
                    again = world.now + RESEND_US
                    yield from sim.broker.try_append(self.host, REQUESTS, [("", data)])
                    if answer_of_log(self.replica.state, asked) is not None or self._results[asked.request_id]:
                        continue
                yield signal, max(1, min(again, deadline) - world.now)
        finally:
            self._signals.pop(asked.request_id, None)
            self._results.pop(asked.request_id, None)

    def _judge(self, asked: Asked) -> Step:
        """Answer what the results justify, behind a read barrier that begins after they were read."""
        results, self._results[asked.request_id] = self._results[asked.request_id], []
        state = yield from self.replica.barrier()
        for result in results:
            answer = answer_of_result(state, asked, result)
            if answer is not None:
                return answer
        return None

    def _tell(self, asked: Asked, answer: Submitted) -> None:
        if self.sim.world.tracing:
            self.sim.world.tell(self.name, f"is answered {answer}")
        for check in self.sim.on_answered:
            check.answered(self.name, asked, answer)

    def _follow(self, _: ClusterState, __: ClusterState, item: Entry | Unreadable, outcome: Outcome, ___: int) -> None:
        if outcome.kind is OutcomeKind.APPLIED and isinstance(item, Entry):
            signal = self._signals.get(item.request_id)
            if signal is not None:
                signal.fire()

    def _take(self, records: list[Record]) -> None:
        for record in records:
            try:
                result = cached_result(record.value)
            except WireError:
                continue
            if result.request_id in self._results:
                self._results[result.request_id].append(result)
                self._signals[result.request_id].fire()

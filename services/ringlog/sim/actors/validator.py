"""The validator on the simulated world: performs the effects of ``ringlog.protocol.validator``."""

from __future__ import annotations

from ringlog.kernel.outcome import Folded
from ringlog.kernel.state import ClusterState
from ringlog.protocol.role import Accept
from ringlog.protocol.validator import ReadResults, Requests, Trim, answer_requests
from ringlog.protocol.validator_core import Ack, Hint, Publish, Stop, folded
from ringlog.sim.actors.role import NEWS_US, Worker
from ringlog.sim.broker import REQUESTS, RESULTS, Record, Tail
from ringlog.sim.memo import cached_request, cached_result
from ringlog.sim.replica import Step
from ringlog.sim.world import Ended
from ringlog.wire.entries import EncodedEntry
from ringlog.wire.errors import WireError
from ringlog.wire.records import Request, encode_result

ANSWERS_MAX = 12
"""Few, so that short runs forget, too."""


class ValidatorWorker(Worker):
    """One instance of the validator."""

    role = "validator"
    _tail: Tail | None = None

    def work(self) -> Step:
        """Answer requests for ever."""
        self._inbox: list[Record] = []
        self.replica.at_once |= {
            Accept: self._accept,
            Trim: lambda _: None,
            Ack: lambda effect: self.acknowledge(effect.offset),
            Stop: self._stop,
        }
        self.replica.in_time |= {
            ReadResults: self._results,
            Requests: self._requests,
            Publish: lambda effect: self.transact(RESULTS, _values(effect)),
            Hint: lambda effect: self.sim.broker.try_append(self.host, RESULTS, _values(effect)),
        }
        steps = answer_requests(self.instance, self.term, self.direct.steps, self.draw, self._folding, ANSWERS_MAX)
        return self.replica.perform(steps)

    def close(self) -> None:
        """Let go of readers."""
        super().close()
        if self._tail is not None:
            self._tail.close()

    def _folding(self, state: ClusterState, encoded: EncodedEntry) -> Folded:
        return folded(state, encoded) if self.replica.alone else self.sim.folding(state, encoded.data)

    def _accept(self, _: Accept) -> None:
        self._tail = self.sim.broker.tail(self.host, REQUESTS, 0, self.committed, self._take)

    def _take(self, records: list[Record]) -> None:
        self._inbox.extend(records)
        self.replica.changed.fire()

    def _requests(self, effect: Requests) -> Step:
        if effect.wait and not self._inbox:
            yield self.replica.changed, NEWS_US
        self.look()
        taken, self._inbox = self._inbox, []
        return [_request(record) for record in taken]

    def _results(self, _: ReadResults) -> Step:
        records = yield from self.read(RESULTS)
        return [cached_result(record.value) for record in records]

    def _stop(self, effect: Stop) -> None:
        raise Ended(effect.detail)


def _values(effect: Publish | Hint) -> list[tuple[str, bytes]]:
    return [("", encode_result(result)) for result in effect.results]


def _request(record: Record) -> tuple[int, Request | None]:
    try:
        return record.offset, cached_request(record.value)
    except WireError:
        return record.offset, None

"""The validator on the simulated world: performs the effects of ``ringlog.protocol.validator``."""

from __future__ import annotations

from ringlog.kernel.outcome import Entry, Folded
from ringlog.kernel.state import ClusterState
from ringlog.protocol.effects import Append
from ringlog.protocol.role import Accept
from ringlog.protocol.validator import ReadResults, Requests, Trim, answer_requests
from ringlog.protocol.validator_core import Ack, Hint, Publish, Stop, folded
from ringlog.sim.actors.role import NEWS_US, Worker
from ringlog.sim.broker import REQUESTS, RESULTS, Record, Tail
from ringlog.sim.memo import cached_requests, cached_result
from ringlog.sim.replica import Step
from ringlog.sim.world import Ended
from ringlog.wire.entries import EncodedEntry
from ringlog.wire.records import encode_result

ANSWERS_MAX = 12
"""Few, so that short runs forget, too."""


class ValidatorWorker(Worker):
    """One instance of the validator."""

    role = "validator"
    _tail: Tail | None = None

    def work(self) -> Step:
        """Answer requests for ever."""
        self._inbox: list[Record] = []
        self._owed: dict[int, tuple[str, ...]] = {}
        self._places: dict[str, tuple[int, int]] = {}
        self._answered: set[str] = set()
        append = self.replica.in_time[Append]
        self.replica.at_once |= {
            Accept: self._accept,
            Trim: lambda _: None,
            Ack: lambda effect: self._ack(effect),
            Stop: self._stop,
        }
        self.replica.in_time |= {
            ReadResults: self._results,
            Requests: self._requests,
            Append: lambda effect: append(self._in_order(effect)),
            Publish: lambda effect: self.transact(RESULTS, self._values(effect)),
            Hint: lambda effect: self.sim.broker.try_append(self.host, RESULTS, self._values(effect)),
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
        found = [(record.offset, cached_requests(record.value)) for record in taken]
        for offset, requests in found:
            self._owed[offset] = tuple(request.request_id for request in requests)
            for place, request in enumerate(requests):
                self._places.setdefault(request.request_id, (offset, place))
        return found

    def _results(self, _: ReadResults) -> Step:
        records = yield from self.read(RESULTS)
        return [cached_result(record.value) for record in records]

    def _stop(self, effect: Stop) -> None:
        raise Ended(effect.detail)

    # What a record with several requests asks of a validator is checked here: nobody else sees which record it was.

    def _in_order(self, effect: Append) -> Append:
        """Entries of requests that came together follow one another as the requests do."""
        last: dict[int, int] = {}
        for data in effect.records:
            entry = self.sim.folded(self.replica.state, data)[0]
            assert isinstance(entry, Entry)
            offset, place = self._places.get(entry.request_id, (-1, 0))
            if place < last.get(offset, 0):
                self.sim.broken("answers", f"{entry.request_id} overtook others of its record at offset {offset}")
            last[offset] = place
        return effect

    def _ack(self, effect: Ack) -> None:
        """A record is acknowledged when each of its requests has an answer."""
        for offset in [offset for offset in self._owed if offset <= effect.offset]:
            for request in self._owed.pop(offset):
                if request not in self._answered:
                    self.sim.broken("answers", f"offset {offset} is acknowledged, {request} in it has no answer")
        self.acknowledge(effect.offset)

    def _values(self, effect: Publish | Hint) -> list[tuple[str, bytes]]:
        self._answered.update(result.request_id for result in effect.results)
        return [("", encode_result(result)) for result in effect.results]

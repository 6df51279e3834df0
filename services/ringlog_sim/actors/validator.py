"""The simulated validator. It performs the effects of ``ringlog.protocol.validator.validator``."""

from __future__ import annotations

from ringlog.kernel.history import find_request
from ringlog.kernel.model.outcome import Entry, Folded
from ringlog.kernel.model.state import ClusterState
from ringlog.protocol.effects import Append
from ringlog.protocol.role import StartServing
from ringlog.protocol.validator.validator import ReadResults, Requests, RequestsDuringCommit, Trim, answer_requests
from ringlog.protocol.validator.values import Ack, NoteApplied, Publish, StopInstance, folded
from ringlog.wire.entries import EncodedEntry
from ringlog.wire.records import CommandRequest, encode_result
from ringlog_sim.actors.role import NEWS_US, Worker
from ringlog_sim.client import ANSWER_APPLIED
from ringlog_sim.devices.broker import REQUESTS, RESULTS, SimRecord
from ringlog_sim.devices.keys import KeyRing
from ringlog_sim.devices.memo import cached_requests, cached_result
from ringlog_sim.devices.world import Ended
from ringlog_sim.replica import Step

ANSWERS_MAX, PART_ENTRIES = 12, 2
"""Small limits, so that short runs also forget answers and append in parts."""


class ValidatorWorker(Worker):
    """One instance of the validator."""

    role = "validator"
    written = RESULTS

    def work(self) -> Step:
        """Answer requests. It does not end."""
        self._inbox: list[SimRecord] = []
        self._owed: dict[int, tuple[str, ...]] = {}
        self._places: dict[str, tuple[int, int]] = {}
        self._answered: set[str] = set()
        append = self.replica.in_time[Append]
        self.replica.at_once |= {
            StartServing: self._start_serving,
            Trim: lambda _: None,
            NoteApplied: self._note_applied,
            Ack: lambda effect: self._ack(effect),
            StopInstance: self._stop,
        }
        self.replica.in_time |= {
            ReadResults: self._results,
            Requests: self._requests,
            RequestsDuringCommit: self._requests_during_commit,
            Append: lambda effect: append(self._in_order(effect)),
            Publish: lambda effect: self.transact(self._values(effect)),
        }
        most = ANSWERS_MAX, PART_ENTRIES
        steps = answer_requests(self.instance, self.term, self.direct.steps, self.draw, self._folding, *most)
        return self.replica.perform(steps)

    def _folding(self, state: ClusterState, encoded: EncodedEntry) -> Folded:
        return folded(state, encoded) if self.replica.is_independent else self.sim.folding(state, encoded.data)

    def _start_serving(self, _: StartServing) -> None:
        self.tails.append(self.sim.broker.tail(self.host, REQUESTS, 0, self.committed, self._take))

    def _take(self, records: list[SimRecord]) -> None:
        self._inbox.extend(records)
        self.replica.changed.fire()

    def _requests(self, effect: Requests) -> Step:
        if effect.wait and not self._inbox:
            yield self.replica.changed, NEWS_US
        return self._taken()

    def _requests_during_commit(self, effect: RequestsDuringCommit) -> Step:
        until = self.sim.world.now + effect.timeout
        while not (self._inbox or effect.is_over(self.replica.state)) and self.sim.world.now < until:
            yield self.replica.changed, until - self.sim.world.now
        return [] if effect.is_over(self.replica.state) else self._taken()

    def _taken(self) -> list[tuple[int, tuple[CommandRequest, ...]]]:
        """Return the requests since the last call."""
        self.check_superseded()
        taken, self._inbox = self._inbox, []
        ring: KeyRing | None = self.sim.shared["keys"]
        found = [(record.offset, cached_requests(record.value)) for record in taken]
        if ring is not None:
            found = [(offset, ring.verified(requests)) for offset, requests in found]
        for offset, requests in found:
            self._owed[offset] = tuple(request.request_id for request in requests)
            for place, request in enumerate(requests):
                self._places.setdefault(request.request_id, (offset, place))
        return found

    def _results(self, _: ReadResults) -> Step:
        records = yield from self.read(RESULTS)
        return [cached_result(record.value) for record in records]

    def _stop(self, effect: StopInstance) -> None:
        raise Ended(effect.detail)

    # A check of records with several requests. It is here because only the validator knows the record of a request.

    def _in_order(self, effect: Append) -> Append:
        """Check that entries of one record's requests have the order of the requests."""
        last: dict[int, int] = {}
        for data in effect.records:
            entry = self.sim.judge(self.replica.state, data)[0]
            assert isinstance(entry, Entry)
            offset, place = self._places.get(entry.request_id, (-1, 0))
            if place < last.get(offset, 0):
                self.sim.broken("answers", f"{entry.request_id} was not applied in the order of its record at {offset}")
            last[offset] = place
        return effect

    def _ack(self, effect: Ack) -> None:
        """Check that each request of an acknowledged record has an answer."""
        for offset in [offset for offset in self._owed if offset <= effect.offset]:
            for request in self._owed.pop(offset):
                if request not in self._answered:
                    self.sim.broken("answers", f"offset {offset} is acknowledged, but {request} has no answer")
        self.acknowledge(effect.offset)

    def _note_applied(self, effect: NoteApplied) -> None:
        """Check against the log the requests that the validator considers applied. It publishes no result for them."""
        if self.sim.shared[ANSWER_APPLIED]:
            self.sim.broken("answers", f"{effect.results[0].request_id} requested a result, but gets none")
        self._answered.update(result.request_id for result in effect.results)
        for result in effect.results:
            found = find_request(self.replica.state, result.request_id)
            if found is not None and (found.epoch, found.digest) != (result.epoch, result.digest):
                self.sim.broken("answers", f"{result.request_id} did not make epoch {result.epoch}")
            if found is None and result.epoch >= self.replica.state.history.oldest:
                self.sim.broken("answers", f"{result.request_id} is reported as applied, but is not applied")

    def _values(self, effect: Publish) -> list[tuple[str, bytes]]:
        self._answered.update(result.request_id for result in effect.results)
        return [("", encode_result(result)) for result in effect.results]

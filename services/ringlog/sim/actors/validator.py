"""The validator on the simulated world: performs the effects of ``ringlog.agents.validator_core`` in their order.

After its take-over: confirm, initialise the transactional id, get a Noop applied, read the results, accept.
"""

from __future__ import annotations

from ringlog.agents.validator_core import (
    Ack,
    Commit,
    Hint,
    Publish,
    Stop,
    Validator,
    arrive,
    begin,
    folded,
    remember,
    settle,
)
from ringlog.agents.validator_core import (
    Step as Stepped,
)
from ringlog.client.results import AppliedResult
from ringlog.kernel.commands.model import Noop
from ringlog.kernel.outcome import Folded
from ringlog.kernel.state import ClusterState
from ringlog.sim.actors.role import NEWS_US, Worker
from ringlog.sim.broker import REQUESTS, RESULTS, Fenced, Record, Tail
from ringlog.sim.memo import cached_request, cached_result
from ringlog.sim.replica import Step
from ringlog.sim.world import Ended, Unanswered
from ringlog.wire.entries import EncodedEntry
from ringlog.wire.errors import WireError
from ringlog.wire.records import REJECTED, Request, Result, encode_result

ANSWERS_MAX = 12
"""Few, so that short runs forget, too."""


class ValidatorWorker(Worker):
    """One instance of the validator."""

    role = "validator"
    _tail: Tail | None = None

    def work(self) -> Step:
        """Answer requests for ever."""
        yield from self.confirm()
        self._epoch = yield from self.initialise()
        while True:
            answer = yield from self.direct.submit(Noop())
            self.look()
            if isinstance(answer, AppliedResult):
                break
        oldest = self.replica.state.history.oldest
        results = yield from self._results()
        validator = remember(
            Validator(self.instance, self.term, pruned=oldest, answers_max=ANSWERS_MAX),
            [result for result in results if result.outcome == REJECTED and result.since_epoch >= oldest],
        )
        self._inbox: list[Record] = []
        self._tail = self.sim.broker.tail(self.host, REQUESTS, 0, self.committed, self._take)
        while True:
            if not self._inbox and not validator.waiting:
                yield self.replica.changed, NEWS_US
            self.look()
            taken, self._inbox = self._inbox, []
            validator = yield from self._perform(arrive(validator, [_request(record) for record in taken]))
            if validator.waiting:
                while self.replica.busy:
                    yield self.replica.free
                self.replica.busy = True
                try:
                    state = yield from self.replica.barrier()
                    step = begin(validator, state, self.direct.now(), self.draw, self._folding)
                    validator = yield from self._perform(step)
                finally:
                    self.replica.busy = False
                    self.replica.free.fire()

    def close(self) -> None:
        """Let go of readers."""
        super().close()
        if self._tail is not None:
            self._tail.close()

    def _folding(self, state: ClusterState, encoded: EncodedEntry) -> Folded:
        return folded(state, encoded) if self.replica.alone else self.sim.folding(state, encoded.data)

    def _take(self, records: list[Record]) -> None:
        self._inbox.extend(records)
        self.replica.changed.fire()

    def _results(self) -> Step:
        """Every result that was published so far."""
        while True:
            try:
                records = yield from self.sim.broker.read(self.host, RESULTS)
            except Unanswered:
                self.look()
                continue
            found: list[Result] = [cached_result(record.value) for record in records]
            return found

    def _perform(self, step: Stepped) -> Step:
        effects, validator = list(step.effects), step.validator
        while effects:
            match effects.pop(0):
                case Commit(chain):
                    yield from self.sim.moments.at("decided", self.host)
                    judged = yield from self.replica.commit(chain)
                    step = settle(validator, judged)
                    validator = step.validator
                    effects = [*step.effects, *effects]
                case Publish(results):
                    yield from self.sim.moments.at("publishing", self.host)
                    yield from self._publish(results)
                case Hint(results):
                    values = [("", encode_result(result)) for result in results]
                    yield from self.sim.broker.try_append(self.host, RESULTS, values)
                case Ack(offset):
                    self.acknowledge(offset)
                case Stop(detail):
                    raise Ended(detail)
        return validator

    def _publish(self, results: tuple[Result, ...]) -> Step:
        values = [("", encode_result(result)) for result in results]
        try:
            yield from self.sim.broker.transact(self.host, self.role, self._epoch, RESULTS, values)
        except Fenced:
            raise Ended("fenced") from None
        except Unanswered:
            # The outcome of the transaction is unknown: this producer is of no use any more.
            raise Ended("a transaction has no answer") from None


def _request(record: Record) -> tuple[int, Request | None]:
    try:
        return record.offset, cached_request(record.value)
    except WireError:
        return record.offset, None

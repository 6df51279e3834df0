"""The validator at work: takes requests from faust, performs the core's effects in their order.

After the take-over it initialises the role's transactional id (whoever held it can publish no rejection any more), gets
a Noop applied (whatever the one before had under way is then final), and reads the results to their end (what was
answered is never decided again). Only then it accepts. Results that nobody needs any more are deleted then, and as the
history moves on.
"""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from ringlog.agents.exits import Superseded
from ringlog.agents.fenced import FencedProducer, Written
from ringlog.agents.shells.results import ResultsLog
from ringlog.agents.shells.role import Offered, RoleThread
from ringlog.agents.validator_core import (
    ROLE,
    Ack,
    Commit,
    Effect,
    Hint,
    Publish,
    Step,
    Stop,
    Validator,
    arrive,
    begin,
    remember,
    settle,
)
from ringlog.client.results import AppliedResult
from ringlog.kernel.commands.model import Noop
from ringlog.log.commit import commit
from ringlog.log.errors import LogError
from ringlog.log.topics import RESULTS, topic_name
from ringlog.wire.errors import WireError
from ringlog.wire.records import Request, Result, decode_request, encode_result

log = structlog.get_logger(__name__)


class ValidatorThread(RoleThread):
    """One instance of the validator. ``unreadable`` counts requests that were no requests."""

    role = ROLE
    unreadable = 0

    def work(self) -> None:
        """Answer requests for ever."""
        fenced = FencedProducer(self.settings.bootstrap_servers, f"{self.settings.cluster}.{self.role}")
        self.confirm()
        fenced.initialise()
        while not isinstance(self.author.submit(Noop()), AppliedResult):
            self.look()
        results = ResultsLog(self.settings, self.look)
        try:
            self._answer(fenced, results)
        finally:
            results.close()

    def _answer(self, fenced: FencedProducer, results: ResultsLog) -> None:
        oldest = self.replica.state.history.oldest
        validator = remember(Validator(self.instance, self.term, pruned=oldest), results.rejections(oldest))
        results.trim(oldest)
        trimmed = (validator.pruned, validator.floor)
        self.accepting()
        while True:
            offered = self.news() if not validator.waiting else self.news(0)
            validator = self._perform(fenced, arrive(validator, [self._request(record) for record in offered]))
            if validator.waiting:
                with self.replica.decisions:
                    state = self.replica.read_barrier()
                    step = begin(validator, state, self.clock.now_us(), self.draw)
                    validator = self._perform(fenced, step)
            if (validator.pruned, validator.floor) != trimmed:
                trimmed = (validator.pruned, validator.floor)
                results.trim(validator.pruned)

    def handled_epoch(self) -> int:
        """The validator decides on the newest epoch that it has folded."""
        return self.replica.state.epoch

    def _perform(self, fenced: FencedProducer, step: Step) -> Validator:
        effects = list(step.effects)
        validator = step.validator
        while effects:
            effect: Effect = effects.pop(0)
            match effect:
                case Commit(chain):
                    committed = commit(self.log, self.replica, chain)
                    step = settle(validator, committed.fates)
                    validator = step.validator
                    effects = [*step.effects, *effects]
                case Publish(results):
                    topic = topic_name(self.settings.cluster, RESULTS.suffix)
                    fenced.commit([Written(topic, None, encode_result(result)) for result in results])
                case Hint(results):
                    self._hint(results)
                case Ack(offset):
                    self.acknowledge(offset)
                case Stop(detail):
                    raise Superseded(detail)
        return validator

    def _hint(self, results: Iterable[Result]) -> None:
        topic = topic_name(self.settings.cluster, RESULTS.suffix)
        try:
            for result in results:
                self.producer.send(topic, encode_result(result), partition=0)
        except LogError as error:
            log.warning("hints_not_sent", why=error.message)

    def _request(self, record: Offered) -> tuple[int, Request | None]:
        offset, value = record
        try:
            return offset, decode_request(value or b"")
        except WireError as error:
            self.unreadable += 1
            log.warning("unreadable_request", offset=offset, why=str(error), so_far=self.unreadable)
            return offset, None

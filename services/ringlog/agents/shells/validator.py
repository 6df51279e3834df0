"""The validator's thread: performs the effects of ``ringlog.protocol.validator`` on the topics."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from ringlog.agents.exits import Superseded
from ringlog.agents.fenced import FencedProducer, Written
from ringlog.agents.shells.results import ResultsLog
from ringlog.agents.shells.role import Offered, RoleThread
from ringlog.log.errors import LogError
from ringlog.log.topics import RESULTS, topic_name
from ringlog.protocol.role import Initialise
from ringlog.protocol.validator import ReadResults, Requests, Trim, answer_requests
from ringlog.protocol.validator_core import ROLE, Ack, Arrived, Hint, Publish, Stop
from ringlog.wire.errors import WireError
from ringlog.wire.records import decode_requests, encode_result

log = structlog.get_logger(__name__)


class ValidatorThread(RoleThread):
    """One instance of the validator. ``unreadable`` counts requests that were no requests."""

    role = ROLE
    unreadable = 0

    def work(self) -> None:
        """Answer requests for ever."""
        fenced = FencedProducer(self.settings.bootstrap_servers, f"{self.settings.cluster}.{self.role}")
        results = ResultsLog(self.settings, self.look)
        self._results_topic = topic_name(self.settings.cluster, RESULTS.suffix)
        self.driver.handlers |= {
            Initialise: lambda _: fenced.initialise(),
            ReadResults: lambda _: results.published(),
            Trim: lambda effect: results.trim(effect.oldest),
            Requests: self._requests,
            Publish: lambda effect: fenced.commit(self._written(effect)),
            Hint: self._hint,
            Ack: lambda effect: self.acknowledge(effect.offset),
            Stop: self._stop,
        }
        try:
            self.driver.carry_out(answer_requests(self.instance, self.term, self.author.protocol, self.draw))
        finally:
            results.close()

    def handled_epoch(self) -> int:
        """The validator decides on the newest epoch that it has folded."""
        return self.replica.state.epoch

    def _requests(self, effect: Requests) -> Sequence[Arrived]:
        offered = self.news() if effect.wait else self.news(0)
        return [self._request(record) for record in offered]

    def _written(self, effect: Publish) -> list[Written]:
        return [Written(self._results_topic, None, encode_result(result)) for result in effect.results]

    def _stop(self, effect: Stop) -> None:
        raise Superseded(effect.detail)

    def _hint(self, effect: Hint) -> None:
        try:
            for result in effect.results:
                self.producer.send(self._results_topic, encode_result(result), partition=0)
        except LogError as error:
            log.warning("hints_not_sent", why=error.message)

    def _request(self, record: Offered) -> Arrived:
        offset, value = record
        why = "a part of the record is none"
        try:
            found = decode_requests(value or b"")
        except WireError as error:
            found, why = (None,), str(error)
        requests = tuple(request for request in found if request is not None)
        if len(requests) < len(found):
            self.unreadable += len(found) - len(requests)
            log.warning("unreadable_request", offset=offset, why=why, so_far=self.unreadable)
        return offset, requests

"""The validator's thread: performs the effects of ``ringlog.protocol.validator`` on the topics."""

from __future__ import annotations

from collections.abc import Sequence

from ringlog.agents.exits import Superseded
from ringlog.agents.fenced import FencedProducer, TransactionRecord
from ringlog.agents.shells.results import ResultsLog
from ringlog.agents.shells.role import LOOK_S, Offered, RoleThread
from ringlog.log.errors import LogDamaged, LogUnavailable
from ringlog.log.kafka import KafkaLog, KafkaTail
from ringlog.log.port import LogRecord
from ringlog.log.topics import REQUESTS, RESULTS, topic_name
from ringlog.protocol.role import Initialise
from ringlog.protocol.validator import ReadResults, Requests, Trim, answer_requests
from ringlog.protocol.validator_values import ROLE, Ack, Arrived, Publish, Shown, StopInstance
from ringlog.runtime.logs import get_logger
from ringlog.wire.errors import WireError
from ringlog.wire.records import decode_requests, encode_result

log = get_logger(__name__)


class ValidatorThread(RoleThread):
    """One instance of the validator."""

    role = ROLE
    _reader: KafkaTail | None = None
    _reads_from = 0

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
            Shown: lambda _: None,
            Ack: lambda effect: self.acknowledge(effect.offset),
            StopInstance: self._stop,
        }
        try:
            folding = self.replica.foreseen.fold
            self.driver.carry_out(answer_requests(self.instance, self.term, self.author.protocol, self.draw, folding))
        finally:
            results.close()
            if self._reader is not None:
                self._reader.close()

    def handled_epoch(self) -> int:
        """The validator decides on the newest epoch that it has folded."""
        return self.replica.state.epoch

    def offer(self, offset: int, value: bytes | None) -> bool:
        """False for a record that this instance reads by itself."""
        return not self._reads(offset) and super().offer(offset, value)

    def _reads(self, offset: int) -> bool:
        return self._reader is not None and offset >= self._reads_from

    def _requests(self, effect: Requests) -> Sequence[Arrived]:
        """What faust delivers, up to its first record; what follows that is read here.

        On the way through two event loops and their threads each request would wait as long as for its commit.
        """
        if self._reader is None:
            offered = self.news() if effect.wait else self.news(0)
            if offered:
                self._begin_to_read(offered[-1][0] + 1)
        else:
            read = self._read_on(self._reader, LOOK_S if effect.wait else 0.0)
            offered = [one for one in self.news(0) if not self._reads(one[0])]
            offered += [(record.offset, record.data) for record in read]
        return [self._request(record) for record in offered]

    def _read_on(self, reader: KafkaTail, wait_s: float) -> Sequence[LogRecord]:
        """What came in. Requests that the topic has lost their clients send again: the next validator begins where the
        topic does, so this instance ends as if the broker had failed it, and nobody has to look.
        """
        try:
            return reader.poll(wait_s)
        except LogDamaged as error:
            raise LogUnavailable(error.message, "the next instance reads what there is") from error

    def _begin_to_read(self, position: int) -> None:
        requests = KafkaLog(self.settings.bootstrap_servers, self.settings.cluster, REQUESTS)
        self._reads_from = position
        self._reader = requests.tail(position)

    def _written(self, effect: Publish) -> list[TransactionRecord]:
        return [TransactionRecord(self._results_topic, None, encode_result(result)) for result in effect.results]

    def _stop(self, effect: StopInstance) -> None:
        raise Superseded(effect.detail)

    def _request(self, record: Offered) -> Arrived:
        offset, value = record
        why = "a part of the record is none"
        try:
            found = decode_requests(value or b"")
        except WireError as error:
            found, why = (None,), str(error)
        requests = tuple(request for request in found if request is not None)
        if len(requests) < len(found):
            self.seldom.warn("unreadable_request", offset=offset, why=why)
        return offset, requests

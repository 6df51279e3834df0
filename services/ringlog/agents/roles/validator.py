"""The validator's thread: performs the effects of ``ringlog.protocol.validator.validator`` on the topics."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from ringlog.agents.exits import Superseded
from ringlog.agents.fenced_producer import FencedProducer, TransactionRecord
from ringlog.agents.monitoring.metrics import LatencyMetrics
from ringlog.agents.ports import Acknowledge, Ended
from ringlog.agents.roles.results import ResultsLog
from ringlog.agents.roles.role import LOOK_S, InboxRecord, RoleThread
from ringlog.kernel.model.principals import SENDER_CODES
from ringlog.log.errors import LogDamaged, LogUnavailable
from ringlog.log.kafka.adapter import KafkaLog, KafkaTail
from ringlog.log.kafka.topics import REQUESTS, RESULTS, topic_name
from ringlog.log.port import LogRecord
from ringlog.protocol.effects import Append
from ringlog.protocol.role import Initialise
from ringlog.protocol.validator.core import is_floor_mark
from ringlog.protocol.validator.validator import ReadResults, Requests, RequestsDuringCommit, Trim, answer_requests
from ringlog.protocol.validator.values import ROLE, Ack, Arrived, NoteApplied, Publish, StopInstance
from ringlog.runtime import trust
from ringlog.runtime.monitoring.metrics import Sample
from ringlog.runtime.settings import ProcessSettings
from ringlog.wire.errors import WireError
from ringlog.wire.records import encode_result
from ringlog.wire.requests import SignedRequest, decode_requests, verified

GLANCE_S = 0.005
"""The interval between two checks for the end of a batch, while the validator waits for requests."""


class ValidatorThread(RoleThread):
    """One instance of the validator. After faust's first delivery it reads the requests itself."""

    role = ROLE
    answers_commits = True
    _reader: KafkaTail | None = None
    _reads_from = 0

    def __init__(self, settings: ProcessSettings, acknowledge: Acknowledge, ended: Ended) -> None:
        super().__init__(settings, acknowledge, ended)
        self._latencies = LatencyMetrics()

    def work(self) -> None:
        """Answer requests, forever."""
        fenced = FencedProducer(self.settings.bootstrap_servers, f"{self.settings.cluster}.{self.role}")
        results = ResultsLog(self.settings, self.check_active)
        self._results_topic = topic_name(self.settings.cluster, RESULTS.suffix)
        self.driver.handlers |= {
            Initialise: lambda _: fenced.initialise(),
            ReadResults: lambda _: results.published(),
            Trim: lambda effect: results.trim(effect.oldest),
            Requests: self._requests,
            RequestsDuringCommit: self._requests_during_commit,
            Publish: lambda effect: self._publish(effect, fenced),
            NoteApplied: self._note_applied,
            Ack: self._acknowledge,
            StopInstance: self._stop,
        }
        try:
            folding = self.replica.read_ahead.fold
            self.driver.run_steps(answer_requests(self.instance, self.term, self.author.protocol, self.draw, folding))
        finally:
            results.close()
            if self._reader is not None:
                self._reader.close()

    def figures(self) -> Iterator[Sample]:
        """Return the metrics of waiting requests and latencies."""
        return self._latencies.samples()

    def mark_active(self) -> None:
        """Mark the role as active, and measure commits from now on: earlier entries were not for requests."""
        append = self.driver.handlers[Append]

        def noted(effect: Append) -> None:
            self._latencies.sent(time.monotonic())
            append(effect)

        self.driver.handlers[Append] = noted
        super().mark_active()

    def handled_epoch(self) -> int:
        """The validator decides on the newest epoch that it has folded."""
        return self.replica.state.epoch

    def add_record(self, offset: int, value: bytes | None) -> bool:
        """Return False for a record that this instance reads itself."""
        return not self._reads(offset) and super().add_record(offset, value)

    def _reads(self, offset: int) -> bool:
        return self._reader is not None and offset >= self._reads_from

    def _requests(self, effect: Requests) -> Sequence[Arrived]:
        """Return new records: from faust up to its first delivery, then from a reader of this instance.

        Through two event loops and their threads, each request would wait as long as for its commit.
        """
        if self._reader is None:
            offered = self.wait_for_records() if effect.wait else self.wait_for_records(0)
            if offered:
                self._start_reading(offered[-1][0] + 1)
        else:
            read = self._read_on(self._reader, LOOK_S if effect.wait else 0.0)
            offered = [one for one in self.wait_for_records(0) if not self._reads(one[0])]
            offered += [(record.offset, record.data) for record in read]
        return self._arrived(offered)

    def _requests_during_commit(self, effect: RequestsDuringCommit) -> Sequence[Arrived]:
        """Return requests at once. The end of the batch is seen up to ``GLANCE_S`` later."""
        until = time.monotonic() + effect.timeout / 1e6
        while self._reader is not None and not effect.is_over(self.replica.state) and time.monotonic() < until:
            if read := self._read_on(self._reader, GLANCE_S):
                return self._arrived([(record.offset, record.data) for record in read])
            self.check_active()
        return ()

    def _arrived(self, offered: Sequence[InboxRecord]) -> Sequence[Arrived]:
        arrived = [self._request(record) for record in offered]
        now = time.monotonic()
        for offset, requests in arrived:
            self._latencies.arrived(offset, len(requests), now)
        return arrived

    def _read_on(self, reader: KafkaTail, wait_s: float) -> Sequence[LogRecord]:
        """Return new records of requests.

        If the topic has lost requests, their clients send them again. So this instance ends as after a failure of the
        broker, and the next one starts at the beginning of the topic. No operator must act.
        """
        try:
            return reader.poll(wait_s)
        except LogDamaged as error:
            raise LogUnavailable(error.message, "the next active instance reads the stored records") from error

    def _start_reading(self, position: int) -> None:
        """Open this instance's reader at ``position``. Later records from faust are not used."""
        requests = KafkaLog(self.settings.bootstrap_servers, self.settings.cluster, REQUESTS)
        self._reads_from = position
        self._reader = requests.tail(position)

    def _publish(self, effect: Publish, fenced: FencedProducer) -> None:
        self._latencies.committed(time.monotonic())
        fenced.commit(self._written(effect))
        for result in effect.results:
            if not is_floor_mark(result):
                self._latencies.settled(result.outcome)
            if result.code in SENDER_CODES:
                self._latencies.refused(result.code)
                self.warnings.warn("request_refused", code=result.code, why=result.detail, request=result.request_id)

    def _note_applied(self, effect: NoteApplied) -> None:
        self._latencies.committed(time.monotonic())
        for result in effect.results:
            self._latencies.settled(result.outcome)

    def _acknowledge(self, effect: Ack) -> None:
        self._latencies.acknowledged(effect.offset, time.monotonic())
        self.acknowledge(effect.offset)

    def _written(self, effect: Publish) -> list[TransactionRecord]:
        return [TransactionRecord(self._results_topic, None, encode_result(result)) for result in effect.results]

    def _stop(self, effect: StopInstance) -> None:
        raise Superseded(effect.detail)

    def _request(self, record: InboxRecord) -> Arrived:
        """Return a record's offset and its readable requests."""
        offset, value = record
        why = "a part of the record is null"
        try:
            found = decode_requests(value or b"")
        except WireError as error:
            found, why = (None,), str(error)
        cluster_id, masters = self.replica.state.cluster_id, trust.current().request_masters
        requests = tuple(verified(request, cluster_id, masters) for request in found if request is not None)
        if len(requests) < len(found):
            self.warnings.warn("unreadable_request", offset=offset, why=why)
        for request in requests:
            if isinstance(request, SignedRequest) and request.unverified:
                sender = ascii(request.coded.principal[:100])
                self.warnings.warn("request_unverified", offset=offset, principal=sender, why=request.unverified)
        return offset, requests

"""The validator of a fake cluster: it decides each request in the thread that sends it.

It performs the effects of ``ringlog.protocol.validator.core`` on logs in memory. A held commit leaves its batch open.
The next call sends the open entries again. Not thread-safe: its cluster holds a lock.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from ringlog.kernel.model.state import ClusterState
from ringlog.log.errors import LogUnavailable
from ringlog.log.memory import MemoryLog
from ringlog.log.port import MetadataLog
from ringlog.protocol.effects import Draw
from ringlog.protocol.submission.results import all_final, commit_outcomes, open_entries
from ringlog.protocol.validator.core import add_requests, begin_batch, extend_batch, settle_batch
from ringlog.protocol.validator.values import CommitChain, NextStep, NoteApplied, Publish, SendEntries, Validator
from ringlog.runtime.clock import Clock
from ringlog.wire.records import Result, encode_result
from ringlog.wire.requests import decode_requests


class Decisions:
    """One instance of the validator.

    Args:
        log: The validator's view of the metadata log.
        newest: Returns the state at the end of the log.
    """

    def __init__(
        self,
        log: MetadataLog,
        requests: MemoryLog,
        results: MemoryLog,
        newest: Callable[[], ClusterState],
        clock: Clock,
        draw: Draw,
        term: int,
    ) -> None:
        self._log, self._results, self._newest, self._clock, self._draw = log, results, newest, clock, draw
        self._tail = requests.tail(0)
        self._validator = Validator("fake", term)
        self.answers: dict[str, Result] = {}
        """Request id to its answer."""

    def decide(self) -> None:
        """Decide all waiting requests and publish the answers. Requests behind a held commit wait."""
        arrived = []
        while records := self._tail.poll(0.0):
            for record in records:
                arrived.append((record.offset, tuple(one for one in decode_requests(record.data) if one is not None)))
        self._perform(add_requests(self._validator, arrived))
        while self._validator.batch is not None or self._validator.waiting:
            if self._validator.batch is None:
                self._perform(begin_batch(self._validator, self._newest(), self._clock.now_us(), self._draw))
            elif not self._settle():
                return

    def _settle(self) -> bool:
        """Commit the open batch. Return whether it has ended."""
        batch = self._validator.batch
        assert batch is not None
        judged = commit_outcomes(self._newest(), batch.chain)
        if not all_final(judged):
            with suppress(LogUnavailable):
                self._log.append([one.data for one in open_entries(batch.chain, judged)])
            judged = commit_outcomes(self._newest(), batch.chain)
        if all_final(judged):
            self._perform(settle_batch(self._validator, judged))
            return True
        return False

    def _perform(self, step: NextStep) -> None:
        self._validator = step.validator
        for effect in step.effects:
            match effect:
                case SendEntries():
                    self._perform(extend_batch(self._validator, self._clock.now_us(), self._draw))
                case Publish(results):
                    self._results.append([encode_result(result) for result in results])
                    self.answers |= {result.request_id: result for result in results}
                case NoteApplied(results):
                    self.answers |= {result.request_id: result for result in results}
                case CommitChain() | _:
                    pass

"""A minimal validator for tests of clients: it decides one batch at a time.

It follows the protocol (take over, barrier, decide in order, commit as a chain, then answer). It keeps its answers in
memory only and stops cleanly.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from ringlog.client.client import Logs
from ringlog.client.direct import DirectAuthor
from ringlog.kernel.encoding.encoder import command_digest
from ringlog.kernel.fold import fold
from ringlog.kernel.model.outcome import Undecodable, UnknownCommand
from ringlog.kernel.model.state import ClusterState
from ringlog.log.author import Author
from ringlog.log.errors import LogUnavailable, WaitTimedOut
from ringlog.log.replicas.replica import LogReplica
from ringlog.protocol.submission.direct import decided
from ringlog.protocol.submission.results import (
    AppliedResult,
    CommitOutcome,
    EntryChain,
    ExpiredResult,
    RejectedResult,
    Submitted,
)
from ringlog.runtime.clock import SystemClock
from ringlog.runtime.draw import SystemDraw
from ringlog.wire.commands import decode_command
from ringlog.wire.entries import EncodedEntry
from ringlog.wire.records import APPLIED, EXPIRED, REJECTED, CommandRequest, Result, encode_result
from ringlog.wire.requests import decode_requests
from tests.log.commit_driver import FateOpen, commit


class MiniValidator:
    """Answers the requests from ``from_offset`` on until it is stopped. ``silent``: it publishes nothing."""

    def __init__(self, logs: Logs, instance: str, *, from_offset: int = 0, silent: bool = False) -> None:
        self._logs = logs
        self._silent = silent
        self._replica = LogReplica(logs.metadata)
        self._author = Author(instance, SystemClock(), SystemDraw())
        self._instance = instance
        self._tail = logs.requests.tail(from_offset)
        self._answered: dict[str, RejectedResult] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=instance)
        self.term = 0

    def __enter__(self) -> MiniValidator:
        self._replica.start()
        role = DirectAuthor(self._logs.metadata, self._replica, self._instance).take_over("validator", self._instance)
        self.term = role.term
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(60)
        self._replica.stop()
        self._tail.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            waiting = {}
            for record in self._tail.poll(0.02):
                for request in decode_requests(record.data):
                    assert request is not None
                    waiting.setdefault(request.request_id, request)
            while waiting and not self._stopping.is_set():
                try:
                    waiting = self._batch(list(waiting.values()))
                except (LogUnavailable, WaitTimedOut, FateOpen):
                    # No request has an answer yet, so the same requests are decided again; entries that arrived are
                    # duplicates.
                    continue

    def _batch(self, requests: Sequence[CommandRequest]) -> dict[str, CommandRequest]:
        """Decide and commit a batch; return the requests to decide again because entries before them were lost."""
        state = base = self._replica.read_barrier()
        entries: list[EncodedEntry] = []
        answers: list[tuple[CommandRequest, Submitted, int]] = []
        for request in requests:
            command = decode_command(request.kind, request.version, request.payload)
            assert not isinstance(command, Undecodable | UnknownCommand)
            encoded = self._author.entry(
                state,
                command,
                request_id=request.request_id,
                since_epoch=request.since_epoch,
                submitter=request.submitter,
            )
            known = self._answered.get(request.request_id)
            answer = known if known is not None else decided(state, encoded)
            if answer is None:
                state = fold(state, encoded.entry).state
                entries.append(encoded)
                answer = AppliedResult(request.request_id, state.epoch)
            answers.append((request, answer, len(entries)))
        commit_outcomes = commit(
            self._logs.metadata, self._replica, EntryChain(base.epoch, tuple(entries))
        ).commit_outcomes
        lost = {}
        results = []
        for request, answer, needs in answers:
            if CommitOutcome.LOST in commit_outcomes[:needs]:
                lost[request.request_id] = request
                continue
            if isinstance(answer, RejectedResult):
                self._answered[request.request_id] = answer
            results.append(encode_result(self._result(request, answer, state)))
        if not self._silent:
            self._logs.results.append(results)
        return lost

    def _result(self, request: CommandRequest, answer: Submitted, state: ClusterState) -> Result:
        digest = command_digest(request.kind, request.version, request.payload)
        outcome, epoch, code, detail = EXPIRED, state.epoch, "", ""
        match answer:
            case AppliedResult(_, epoch):
                outcome = APPLIED
            case RejectedResult(_, code, detail, epoch):
                outcome = REJECTED
            case ExpiredResult():
                pass
        return Result(
            request.request_id, digest, outcome, epoch, code, detail, self.term, self._instance, request.since_epoch
        )

"""A comparison of the clients' answers with the log, until the end of the run.

The log's rules raise no exceptions. The fold converts a defect into a rejection with a reserved code, which no client
may receive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.encoding.encoder import command_digest
from ringlog.kernel.fold import DEFECT, decide
from ringlog.kernel.model.outcome import (
    Entry,
    EntryContext,
    Rejected,
    Undecodable,
    UnknownCommand,
)
from ringlog.kernel.model.state import ClusterState
from ringlog.protocol.submission.results import AppliedResult, ExpiredResult, RejectedResult, Submitted, WithdrawnResult
from ringlog.protocol.submission.submission import RequestKey
from ringlog.protocol.validator.core import is_floor_mark
from ringlog.wire.commands import decode_command, encode_command
from ringlog.wire.records import APPLIED, REJECTED, CommandRequest, Result
from ringlog_sim.checks.base import Check
from ringlog_sim.client import ANSWER_APPLIED
from ringlog_sim.devices.broker import REQUESTS
from ringlog_sim.devices.memo import cached_requests, cached_result

if TYPE_CHECKING:
    from ringlog_sim.devices.broker import Partition
    from ringlog_sim.simulation import Simulation


NOOP_DIGEST = command_digest(*encode_command(Noop()))
OF_THE_VALIDATOR = (
    "answer_forgotten",
    "request_expired",
    "request_id_reused",
    "unknown_command",
    "undecodable",
    "horizon_too_far_ahead",
    "timestamp_too_far_ahead",
    "generation_operates",
    "settled_too_near",
    "state_id_not_above",
    "not_authenticated",
    "not_authorized",
)
"""Rejections that are not decided by the rules of a command."""

LATE = "ffffffff-ffff-7fff-bfff-ffffffffffff"


def requests_by_key(sim: Simulation, found: dict[tuple[str, str], CommandRequest], read: int) -> int:
    """Add the requests after position ``read`` of the topic, by request id and digest. Return the next position."""
    partition = sim.broker.partition(REQUESTS)
    for record in partition.records[read : partition.visible]:
        for request in cached_requests(record.value):
            key = (request.request_id, command_digest(request.kind, request.version, request.payload))
            found[key] = request
    return partition.visible


class Answers(Check):
    """*Applied* names the epoch that the command made. *Rejected* means that it was not applied and never will be.

    *Expired* means that nothing more will happen.
    """

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._applied: dict[str, tuple[int, str]] = {}
        self._ended: dict[tuple[str, str], str] = {}
        self._history_min = 10_000
        self._read = 0
        self._requests: dict[tuple[str, str], CommandRequest] = {}
        self._requests_read = 0

    def begin(self, state: ClusterState) -> None:
        """Record the entries applied before the run."""
        for epoch, entry in enumerate(self.sim.log.entries[1:], start=1):
            assert entry is not None, "an applied record is an entry"
            self._applied[entry.request_id] = (epoch, entry.digest)
        self._history_min = state.settings.get("history_entries", self._history_min)

    def applied(self, before: ClusterState, after: ClusterState, item: Entry, offset: int) -> None:
        """Check that no entry is applied after its request was answered as ended.

        A client that withdraws a request has a Noop applied under its id. If the request was a Noop, both look the
        same.
        """
        self._applied[item.request_id] = (after.epoch, item.digest)
        self._history_min = min(self._history_min, after.settings.get("history_entries", self._history_min))
        ended = self._ended.get((item.request_id, item.digest))
        if ended is not None and item.digest != NOOP_DIGEST:
            self.sim.broken(
                "answers", f"request {item.request_id} made epoch {after.epoch} after it was answered {ended}"
            )

    def results(self, partition: Partition) -> None:
        """Check that a published rejection is true in the state that it names, and that its command is
        never applied. An applied request has a result only if it asks for one, and the log has its epoch.
        """
        for record in partition.records[self._read : partition.visible]:
            result = cached_result(record.value)
            if result.outcome == APPLIED:
                asked = self.sim.shared[ANSWER_APPLIED]
                if not asked or self._applied.get(result.request_id) != (result.epoch, result.digest):
                    self.sim.broken("answers", f"{result.request_id} is published as applied (asked: {asked})")
            if result.outcome != REJECTED or is_floor_mark(result):
                continue
            self._ended.setdefault((result.request_id, result.digest), result.code)
            if self._applied.get(result.request_id, (0, ""))[1] == result.digest:
                self.sim.broken("answers", f"{result.request_id} was applied, and then rejected as {result.code}")
            request = self._request(result.request_id, result.digest)
            if request is not None and result.code not in OF_THE_VALIDATOR:
                self._compare(result, request)
        self._read = partition.visible

    def _compare(self, result: Result, request: CommandRequest) -> None:
        command = decode_command(request.kind, request.version, request.payload)
        states = self.sim.log.states
        if isinstance(command, Undecodable | UnknownCommand) or result.epoch >= len(states):
            self.sim.broken("answers", f"{result.request_id} was rejected as {result.code} at epoch {result.epoch}")
            return
        state = states[result.epoch]
        decision = decide(state, command, EntryContext(state.epoch + 1, LATE, state.time))
        if not isinstance(decision, Rejected) or decision.code != result.code:
            self.sim.broken(
                "answers", f"{request.kind} was rejected as {result.code}, epoch {result.epoch} says {decision!r:.80}"
            )

    def _request(self, request_id: str, digest: str) -> CommandRequest | None:
        self._requests_read = requests_by_key(self.sim, self._requests, self._requests_read)
        return self._requests.get((request_id, digest))

    def withdrawn(self, client: str, key: RequestKey, ended: WithdrawnResult | AppliedResult | ExpiredResult) -> None:
        """Check that a withdrawn request is never applied, or that the client learned of its earlier application."""
        epoch, digest = self._applied.get(key.request_id, (0, ""))
        if not isinstance(ended, ExpiredResult) and (ended.epoch, isinstance(ended, WithdrawnResult)) != (
            epoch,
            digest == NOOP_DIGEST,
        ):
            self.sim.broken("answers", f"{client} withdrew {key.request_id} and got {ended}: it is {epoch}")
        if isinstance(ended, ExpiredResult) or digest != key.digest:
            self._ended[key.request_id, key.digest] = "withdrawn"

    def answered(self, client: str, key: RequestKey, answer: Submitted) -> None:
        """Check an answer that a client received."""
        applied = self._applied.get(key.request_id)
        if isinstance(answer, AppliedResult):
            if applied != (answer.epoch, key.digest):
                self.sim.broken(
                    "answers", f"{client} got epoch {answer.epoch} for {key.request_id}, which made {applied}"
                )
        elif isinstance(answer, RejectedResult):
            if applied is not None and applied[1] == key.digest:
                self.sim.broken(
                    "answers", f"{client} got the answer {answer.code}, but its command made epoch {applied[0]}"
                )
            self._ended[key.request_id, key.digest] = answer.code
        elif isinstance(answer, ExpiredResult):
            if key.since_epoch > self.sim.log.state.epoch - self._history_min + 1:
                self.sim.broken(
                    "answers", f"{client} got the answer that a request of epoch {key.since_epoch} has expired"
                )
            self._ended[key.request_id, key.digest] = "expired"


class Defects(Check):
    """No answer reports a broken rule."""

    def answered(self, client: str, key: RequestKey, answer: Submitted) -> None:
        """Check that an answer to a client reports no defect."""
        if isinstance(answer, RejectedResult) and answer.code == DEFECT:
            self.sim.broken("defect", f"{client} got this answer to {key.request_id}: {answer.detail}")

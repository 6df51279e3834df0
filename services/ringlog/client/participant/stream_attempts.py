"""The number of failed attempts of each stream: bounded, and reported with every acknowledgement.

A gaining node retries a stream with growing pauses. It gives up after ``stream_tries_max`` failures, a setting of the
cluster. An operation then waits for an operator: the coordinator writes the number of attempts to the log. A tablet
migration is reverted. A partition recovery cannot be reverted, so its streams are retried without a limit.

The count of an operation begins with its present stage and again with each retry by an operator. The count of a tablet
begins with its session. A restarted node starts counting at zero.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from heapq import nlargest

from ringlog.kernel.model.settings import setting
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.operations.gates import counts_from
from ringlog.kernel.tablets.mutual_exclusion import transitions
from ringlog.kernel.tablets.stages import STAGES, session
from ringlog.kernel.values import Epoch, Micros, NodeId, OperationId, replace
from ringlog.wire.records import FailedTries

AGAIN_S = 0.2
AGAIN_MOST_S = 3.0
REASON_LENGTH_MAX = 300
TRIES_REPORTED_MAX = 300
"""The limit of streams reported in one acknowledgement."""


class StreamAttempts:
    """Counts failed attempts by stream. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failed: dict[Hashable, FailedTries] = {}

    def may_try(self, stream: Hashable, operation: OperationId, state: ClusterState) -> bool:
        """Return False if the limit is reached and the operation can wait or be reverted."""
        found = self._failed.get(stream)
        if found is None or found.since != _counts_from(operation, state):
            return True
        return found.count < setting(state, "stream_tries_max") or _has_no_way_back(operation, state)

    def record_failure(
        self, stream: Hashable, operation: OperationId, source: NodeId, state: ClusterState, why: str, now: Micros
    ) -> float:
        """Count one more failure. Return the pause before the next check, in seconds."""
        since = _counts_from(operation, state)
        with self._lock:
            found = self._failed.get(stream)
            if found is None or found.since != since:
                found = FailedTries(operation, source, 0, since, now, "")
            # A message of the operating system may contain a file name that is not UTF-8.
            reason = why[:REASON_LENGTH_MAX].encode(errors="backslashreplace").decode()
            found = replace(found, count=found.count + 1, reason=reason)
            self._failed[stream] = found
        return float(min(AGAIN_MOST_S, AGAIN_S * 2 ** min(found.count - 1, 10)))

    def forget(self, stream: Hashable) -> None:
        """Forget a stream that is complete or no longer wanted."""
        with self._lock:
            self._failed.pop(stream, None)

    def failed_tries(self) -> tuple[FailedTries, ...]:
        """Return the streams that failed most often, sorted."""
        with self._lock:
            found: Sequence[FailedTries] = tuple(self._failed.values())
        if len(found) > TRIES_REPORTED_MAX:
            found = nlargest(TRIES_REPORTED_MAX, found, key=lambda one: one.count)
        return tuple(sorted(found, key=lambda one: (one.operation, one.source, one.count, one.reason)))


def _counts_from(operation: OperationId, state: ClusterState) -> Epoch:
    """Return the epoch at the beginning of the count. It is 0 for a session, which has one stage only."""
    present = state.operations.get(operation)
    return 0 if present is None else counts_from(present)


def _has_no_way_back(operation: OperationId, state: ClusterState) -> bool:
    """Return True if ``operation`` is the session of a tablet that cannot be reverted, as in a partition recovery."""
    for tablets, transition in transitions(state):
        if session(tablets.table, transition.tablet, transition) == operation:
            return not STAGES[transition.stage].back
    return False


def reportable_counts(tries: tuple[FailedTries, ...], most: int) -> tuple[tuple[str, str, int, int], ...]:
    """Return counts that change only when an acknowledgement is worthwhile: at each doubling, and at the limit."""
    return tuple((one.operation, one.source, one.since, min(one.count, most).bit_length()) for one in tries) + tuple(
        (one.operation, one.source, one.since, -1) for one in tries if one.count >= most
    )

"""The number of failed attempts of each stream: bounded, and reported with every acknowledgement.

A gaining node asks a source again and again, less and less often. The cluster's setting ``stream_tries_max`` bounds how
often; then the node stops. An operation waits for an operator then: the coordinator puts the count into the log; a
tablet is turned back. A salvage has no way back, so its streams are tried without an end.

The count of an operation begins with its present stage and with each retry by an operator. The count of a tablet begins
with its session. A restarted node counts anew.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from dataclasses import replace
from heapq import nlargest

from ringlog.kernel.model.settings import setting
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.operations.gates import counts_from
from ringlog.kernel.tablets.mutual_exclusion import transitions
from ringlog.kernel.tablets.stages import STAGES, session
from ringlog.kernel.values import Epoch, Micros, NodeId, OperationId
from ringlog.wire.records import FailedTries

AGAIN_S = 0.2
AGAIN_MOST_S = 3.0
REASON_LENGTH_MAX = 300
TRIES_REPORTED_MAX = 300
"""Streams of which one acknowledgement tells."""


class StreamAttempts:
    """Counts failed attempts, by stream. Safe from threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failed: dict[Hashable, FailedTries] = {}

    def may_try(self, stream: Hashable, operation: OperationId, state: ClusterState) -> bool:
        """Return False if the stream failed as often as it may and its operation can wait or turn back."""
        found = self._failed.get(stream)
        if found is None or found.since != _counts_from(operation, state):
            return True
        return found.count < setting(state, "stream_tries_max") or _has_no_way_back(operation, state)

    def failed(
        self, stream: Hashable, operation: OperationId, source: NodeId, state: ClusterState, why: str, now: Micros
    ) -> float:
        """Count one more; seconds after which to look again."""
        since = _counts_from(operation, state)
        with self._lock:
            found = self._failed.get(stream)
            if found is None or found.since != since:
                found = FailedTries(operation, source, 0, since, now, "")
            found = replace(found, count=found.count + 1, reason=why[:REASON_LENGTH_MAX])
            self._failed[stream] = found
        return float(min(AGAIN_MOST_S, AGAIN_S * 2 ** min(found.count - 1, 10)))

    def over(self, stream: Hashable) -> None:
        """The stream is here, or nobody wants it any more."""
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
    """The epoch from which tries count; 0 of a session, which is of one stage."""
    present = state.operations.get(operation)
    return 0 if present is None else counts_from(present)


def _has_no_way_back(operation: OperationId, state: ClusterState) -> bool:
    """Return whether ``operation`` is the session of a tablet without a way back, as in a salvage."""
    for tablets, transition in transitions(state):
        if session(tablets.table, transition.tablet, transition) == operation:
            return not STAGES[transition.stage].back
    return False


def newsworthy_counts(tries: tuple[FailedTries, ...], most: int) -> tuple[tuple[str, str, int, int], ...]:
    """Return the counts that deserve an acknowledgement of their own: each doubling, and the last one."""
    return tuple((one.operation, one.source, one.since, min(one.count, most).bit_length()) for one in tries) + tuple(
        (one.operation, one.source, one.since, -1) for one in tries if one.count >= most
    )

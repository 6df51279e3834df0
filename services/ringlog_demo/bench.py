"""Latency of commits along the whole path: client, requests topic, validator, log, fold."""

from __future__ import annotations

import time

from ringlog.client.client import Client
from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.model.outcome import Entry, Outcome, OutcomeKind, UnreadableEntry
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Value
from ringlog.protocol.submission.results import AppliedResult
from ringlog.wire.senders import parsed_sender

COMMITS = 500


class Latency(Value):
    """Percentiles of ``count`` commits, in milliseconds."""

    count: int
    p50_ms: float
    p99_ms: float


def percentiles(seconds: list[float]) -> Latency:
    """Return the nearest-rank percentiles of at least one value."""
    ordered = sorted(seconds)
    rank = [min(len(ordered) - 1, len(ordered) * share // 100) for share in (50, 99)]
    return Latency(len(ordered), *(round(ordered[r] * 1000, 2) for r in rank))


def noop_commits(client: Client) -> Latency:
    """Commit ``COMMITS`` Noops, one after the other, and wait for each until this client has folded it."""
    taken = []
    for _ in range(COMMITS):
        begun = time.perf_counter()
        answer = client.submit(Noop())
        assert isinstance(answer, AppliedResult), "a Noop is not rejected"
        taken.append(time.perf_counter() - begun)
    return percentiles(taken)


class OtherCommits:
    """The latency of other authors' entries, from the author's timestamp until this client has folded the entry.

    All entries count except those of ``except_of``. Call ``latency`` after the run.
    """

    def __init__(self, except_of: str) -> None:
        self._except_of = except_of
        self._taken: list[float] = []

    def __call__(
        self, _before: ClusterState, _after: ClusterState, item: Entry | UnreadableEntry, outcome: Outcome, _offset: int
    ) -> None:
        """Record the latency of one folded record. The replica's thread calls it."""
        if (
            outcome.kind is OutcomeKind.APPLIED
            and isinstance(item, Entry)
            and parsed_sender(item.submitter).name != self._except_of
        ):
            self._taken.append(max(0.0, time.time() - item.at / 1e6))

    def latency(self) -> Latency:
        """Return the percentiles of the entries seen so far."""
        return percentiles(self._taken or [0.0])

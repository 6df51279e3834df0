"""Latency of commits through the whole path: client, requests topic, validator, log, fold."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ringlog.client.client import Client
from ringlog.kernel.commands.model import Noop

COMMITS = 500


@dataclass(frozen=True, slots=True)
class Latency:
    """Percentiles over ``count`` commits, in milliseconds."""

    count: int
    p50_ms: float
    p99_ms: float


def percentiles(seconds: list[float]) -> Latency:
    """Nearest-rank percentiles; at least one value."""
    ordered = sorted(seconds)
    rank = [min(len(ordered) - 1, len(ordered) * share // 100) for share in (50, 99)]
    return Latency(len(ordered), *(round(ordered[r] * 1000, 2) for r in rank))


def noop_commits(client: Client, count: int = COMMITS) -> Latency:
    """Commit ``count`` Noops, one after the other, each until it is folded here."""
    taken = []
    for _ in range(count):
        begun = time.perf_counter()
        client.submit_applied(Noop())
        taken.append(time.perf_counter() - begun)
    return percentiles(taken)

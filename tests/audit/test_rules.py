"""The audit's window of acceptance against the kernel's, which is written another way."""

from __future__ import annotations

from random import Random

from ringlog.audit.leeway import DEFAULT_US, SKEW_US, Leeways, LeewayStep, always
from ringlog.audit.rules import AuditRules
from ringlog.audit.streams import PublishedGeneration
from ringlog.kernel.generations.acceptance import RefusedWrite, accept

STEP = 1_000_000


def test_every_epoch_accepts_what_the_kernel_accepts_there() -> None:
    met = set()
    for seed in range(300):
        chance = Random(seed)
        steps = [LeewayStep(0, 0, DEFAULT_US)]
        steps += [
            LeewayStep(epoch, epoch, chance.randint(0, 6) * STEP) for epoch in sorted(chance.sample(range(1, 9), 3))
        ]
        leeways = Leeways(tuple(steps))
        starts = sorted(chance.sample(range(20), chance.randint(1, 4)))
        committed = sorted(chance.choices(range(1, 9), k=len(starts)))
        generations = [
            PublishedGeneration(start * STEP, (), epoch) for start, epoch in zip(starts, committed, strict=True)
        ]
        rules = AuditRules(b"", {}, generations, leeways)
        timestamps = tuple(start * STEP for start in starts)
        reaches = tuple(map(leeways.at_epoch, committed))
        for _ in range(40):
            now, epoch = chance.randint(0, 24) * STEP, chance.randint(1, 9)
            timestamp = now + chance.randint(-8, 8) * STEP + chance.randint(-1, 1)
            verdict = accept(timestamp, now, timestamps, leeways.at_epoch(epoch), reaches)
            wanted = verdict.code if isinstance(verdict, RefusedWrite) else ""
            assert rules._outside(timestamp, now, epoch) == wanted, (seed, timestamp, now)
            met.add(wanted)
    assert len(met) == 4


def test_without_an_epoch_the_widest_leeway_since_then_counts() -> None:
    found = Leeways((LeewayStep(0, 0, 5), LeewayStep(3, 10 * SKEW_US, 9), LeewayStep(6, 20 * SKEW_US, 2)))
    assert [found.at_epoch(epoch) for epoch in (0, 2, 3, 5, 6, 7)] == [5, 5, 9, 9, 2, 2]
    assert [found.widest(minutes * SKEW_US) for minutes in (0, 12, 20, 22)] == [9, 9, 9, 2]
    assert always(7).widest(0) == always(7).at_epoch(99) == 7

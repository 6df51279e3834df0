"""A power cut hits one broker or all of them, at every position of a short log.

A broker acknowledges a record before the record is on its disk, so a power cut cuts its copy back to the flushed part.
The model has three copies with the required settings: two in-sync copies acknowledge, and only an in-sync copy becomes
the leader. All combinations of replicated and flushed positions are explored. Every outcome that loses an acknowledged
record is then read by real replicas with every stored epoch.

Source: Kafka's replication protocol (high watermark, in-sync replicas); docs/limits.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.log.test_identity import World

ENTRIES = 3
BROKERS = range(3)
IN_SYNC_MIN = 2
"""``min.insync.replicas`` that Ringlog requires of three brokers."""


class Cut(NamedTuple):
    """The records that were acknowledged before the power cut, and the length of the log after it."""

    acknowledged: int
    left: int


def cuts(hit_count: int, in_sync_min: int) -> Iterator[Cut]:
    """Yield the outcomes of a power cut at ``hit_count`` brokers, for every position of copies and disks."""
    for cached in product(range(ENTRIES + 1), repeat=len(BROKERS)):
        in_sync_sets = (one for size in range(in_sync_min, 4) for one in combinations(BROKERS, size))
        for in_sync in in_sync_sets:
            acknowledged = min(cached[one] for one in in_sync)
            for flushed in product(*(range(length + 1) for length in cached)):
                for hit in combinations(BROKERS, hit_count):
                    after = [flushed[one] if one in hit else cached[one] for one in BROKERS]
                    survivors = [one for one in in_sync if one not in hit]
                    yield from (Cut(acknowledged, after[leader]) for leader in survivors or in_sync)


def test_a_power_cut_of_one_broker_loses_nothing_that_was_acknowledged() -> None:
    found = set(cuts(1, IN_SYNC_MIN))
    assert {(one.acknowledged, one.left) for one in found if one.left < one.acknowledged} == set()
    assert {one.acknowledged for one in found} == set(range(ENTRIES + 1))


def test_the_required_settings_are_the_reason() -> None:
    assert any(one.left < one.acknowledged for one in cuts(1, in_sync_min=1))


LOST = [Cut(count, left) for count in range(1, ENTRIES + 1) for left in range(count)]


def test_a_power_cut_of_all_brokers_can_leave_every_prefix() -> None:
    assert sorted({one for one in cuts(3, IN_SYNC_MIN) if one.left < one.acknowledged}) == LOST


@pytest.mark.parametrize("cut", LOST, ids=lambda cut: f"{cut.left} of {cut.acknowledged}")
def test_each_reader_of_a_lost_record_halts_and_no_other_one(cut: Cut, tmp_path: Path) -> None:
    """Readers had read any part of the acknowledged log; before they start again, the log grows by any length."""
    world = World()
    memories = []
    for seen in range(cut.acknowledged + 1):
        memories.append(tmp_path / f"{seen}.json")
        assert world.read(memories[seen]) == ""
        if seen < cut.acknowledged:
            world.grow(1, seed=b"entry %d" % seen)
    world.log.truncate(1 + cut.left)
    for grown in range(ENTRIES + 1):
        for seen, memory in enumerate(memories):
            before = memory.read_bytes()
            if seen > cut.left:
                code = "log_truncated" if cut.left + grown < seen else "log_forked"
                assert world.read(memory) == code, (seen, grown)
            else:
                assert world.read(memory) == "", (seen, grown)
            memory.write_bytes(before)
        world.grow(1, seed=b"after the power cut %d" % grown)

"""The stream of a write, as the audit works it out: against the definition of the kernel."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from ringlog.audit.streams import PublishedGeneration, PublishedRange, stream_for
from ringlog.kernel.generations.lookup import stream_of
from ringlog.kernel.generations.tablet_streams import DescribedTable, ranges_of
from ringlog.kernel.state import Generation
from ringlog.kernel.values import TOKEN_MAX, TOKEN_MIN, GenerationRange


def published(ranges: tuple[GenerationRange, ...]) -> tuple[PublishedRange, ...]:
    return tuple(PublishedRange(one.end, one.ignore_msb, one.streams) for one in ranges)


@pytest.mark.parametrize("seed", range(5))
def test_a_table_in_tablets_has_the_streams_that_are_published_for_it(seed: int) -> None:
    draw = random.Random(seed)
    ring = tuple(GenerationRange(end, 12, (bytes([slot]) * 16,)) for slot, end in enumerate((-9, 9)))
    ends = (*sorted(draw.sample(range(-100, 100), 5)), TOKEN_MAX)
    table = DescribedTable("t", ends)
    generation = Generation("g", 7, ring, "committed", 1, None, None, (), tables=(table,))
    found = PublishedGeneration(7, published(ring), 1, {"t": published(ranges_of(7, table))})
    for token in (TOKEN_MIN + 1, -9, 9, 10, TOKEN_MAX, *ends, *(end + 1 for end in ends[:-1])):
        for name in ("t", "other"):
            assert stream_for(found, token, name) == stream_of(generation, token, name)
    assert stream_for(found, 0, "t") != stream_for(found, 0)
    later = replace(generation, timestamp=8)
    assert stream_of(later, 0, "t") != stream_of(generation, 0, "t")

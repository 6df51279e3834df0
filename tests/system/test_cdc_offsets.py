"""A real broker's answers to append times, also before the job has a write lease."""

from __future__ import annotations

import pytest
from tests.system.cdc_world import founded, now_us, write

from ringlog.stack import StackInfo
from ringlog_cdc.plan.plan import append_limits
from ringlog_cdc.topics.source import Offsets

pytestmark = [pytest.mark.system]


def test_times_before_all_records_are_valid_for_the_broker(stack: StackInfo, cluster_name: str) -> None:
    """A driver with a lease of 0 once ended after a minute: the client considered the broker unavailable."""
    with founded(stack.bootstrap_servers, cluster_name) as world:
        topic, offsets = f"{cluster_name}.mutations", Offsets(stack.bootstrap_servers)
        world.send([write(f"c{number}", number) for number in range(20)])
        begins, ends = offsets.begins(topic), offsets.ends(topic)
        firsts = {partition: 0 if ends[partition] else None for partition in ends}
        (limit,) = append_limits(now_us(), 0, 5_000_000)
        assert limit < -2
        for one in (limit, -2, -1, 0):
            assert offsets.later(topic, one) == firsts
        assert offsets.begins_at(topic, -1) == begins
        offsets.close()

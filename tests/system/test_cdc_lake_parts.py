"""A plan part and its two sinks: a sink without the part gets it, also a lake that is added later."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.system.cdc_world import TOKENS, World, founded, now_us, write
from tests.system.test_cdc_job import forget_last_batch, run_to_idle
from tests.system.test_cdc_lake import rows_in, rows_of_topic

from ringlog.stack import StackInfo
from ringlog_cdc.errors import CdcError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.slow]

MINUTE_US = 60_000_000
LEEWAY = {"cdc_leeway_us": 120 * MINUTE_US}


@pytest.fixture
def shop(stack: StackInfo, cluster_name: str) -> Iterator[World]:
    """Return two generations, both open to writes."""
    with founded(stack.bootstrap_servers, cluster_name, LEEWAY) as world:
        world.join("n1", TOKENS, now_us() - 60 * MINUTE_US)
        world.join("n2", (100,), now_us() - 30 * MINUTE_US)
        world.schema()
        yield world


class BrokenError(Exception):
    """The injected failure of a test."""


@pytest.mark.soak("the lake's other tests, and the simulator's kills between a part and its note")
def test_a_part_is_written_to_the_sink_that_lacks_it(
    stack: StackInfo, shop: World, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ringlog_cdc.lake import sink

    lake, checkpoint = tmp_path / "lake", tmp_path / "checkpoint"
    options: Mapping[str, Any] = {"lake": str(lake)}
    # The checkpoint begins without a lake, and has an unfinished part when it gets one.
    for begin in (0, 50):
        shop.send(write(f"customer-{n}", n) for n in range(begin, begin + 50))
        run_to_idle(shop, checkpoint, spark)
    forget_last_batch(checkpoint)
    shop.send(write(f"customer-{n}", n, now_us() - n % 2 * 45 * MINUTE_US) for n in range(100, 400))
    with monkeypatch.context() as broken:

        def fail(*_: object) -> None:
            raise BrokenError

        broken.setattr(sink.Lake, "append", fail)
        with pytest.raises(BrokenError):
            run_to_idle(shop, checkpoint, spark, **options)
    # The topic gets the unfinished part again; the lake gets it without the earlier parts.
    assert rows_of_topic(shop).total() == 150
    filled = rows_in(spark, lake, "orders")
    assert filled == {row: 1 for row, count in rows_of_topic(shop).items() if count == 1}
    assert filled.total() == 50
    run_to_idle(shop, checkpoint, spark, **options)
    assert rows_in(spark, lake, "orders") == Counter(rows_of_topic(shop).keys())
    # Both have it, but the checkpoint does not record that: the topic gets an identical copy, the lake nothing.
    before = rows_of_topic(shop)
    forget_last_batch(checkpoint)
    run_to_idle(shop, checkpoint, spark, **options)
    after = rows_of_topic(shop)
    assert after.keys() == before.keys()
    assert after != before
    found = rows_in(spark, lake, "orders")
    assert found == Counter(after.keys())
    with pytest.raises(CdcError, match="lake_left_out"):
        run_to_idle(shop, checkpoint, spark)

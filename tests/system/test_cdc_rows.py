"""The rule of held writes as Spark computes it, against its plain definition."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import pytest
from tests.cdc.held import is_held, used_time

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.system, pytest.mark.spark]

HORIZON, LEEWAY = 100, 5
SCHEMA = (
    "partition int, offset bigint, appended bigint, "
    "m struct<timestamp: bigint, more: array<struct<timestamp: bigint>>>, compound boolean"
)
EDGES = (0, 89, 93, 94, 95, 96, 99, 100, 101, 104, 105, 106, 200)
WRITES = [(timestamp, appended) for timestamp, appended in product(EDGES, (89, 94, 95, 99, 100, 101))]


def frame(spark: SparkSession, writes: list[tuple[int, int]]) -> DataFrame:
    """Each write as the one row, at offset 7, of a partition of its own."""
    rows = [(number, 7, appended, (timestamp, []), False) for number, (timestamp, appended) in enumerate(writes)]
    return spark.createDataFrame(rows, SCHEMA)


def test_spark_holds_the_writes_that_the_rule_holds(spark: SparkSession) -> None:
    from ringlog_cdc.rows import facts, survey

    decoded = frame(spark, WRITES)
    found = {item.partition: item for item in facts(decoded, {}, HORIZON, LEEWAY)}
    assert len(found) == len(WRITES)
    for number, (timestamp, appended) in enumerate(WRITES):
        held = is_held(timestamp, appended, HORIZON, LEEWAY)
        assert (found[number].held == 7) is held, (timestamp, appended)
        assert found[number].used == (0 if held else used_time(timestamp, appended, LEEWAY)), (timestamp, appended)
    assert survey(decoded, LEEWAY) == (max(used_time(*write, LEEWAY) for write in WRITES), False)
    below = [write for write in WRITES if not is_held(*write, HORIZON, LEEWAY)]
    assert survey(frame(spark, below), LEEWAY) == (HORIZON - 1, False)


def test_an_unreadable_write_waits_by_its_append_time_and_what_is_planned_counts_no_more(spark: SparkSession) -> None:
    from ringlog_cdc.rows import facts

    rows = [(0, 3, 100, None, False), (0, 4, 99, None, False), (0, 5, 100, (0, []), False), (1, 9, 98, None, False)]
    decoded = spark.createDataFrame(rows, SCHEMA)
    assert {(item.partition, item.held, item.used) for item in facts(decoded, {0: 4, 1: 0}, HORIZON, LEEWAY)} == {
        (0, 5, 99),
        (1, None, 98),
    }


def test_of_several_statements_the_latest_timestamp_counts(spark: SparkSession) -> None:
    from ringlog_cdc.rows import survey

    own, more = 90, [(None,), (95,), (93,)]
    decoded = spark.createDataFrame([(0, 1, 92, (own, more), True)], SCHEMA)
    assert survey(decoded, LEEWAY) == (95, True)
    assert survey(decoded, 2) == (92, True)

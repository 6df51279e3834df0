"""The CDC job on a real broker and a real Spark session: rows, dead letters, held writes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.system.cdc_world import founded, now_us, write

from ringlog.stack import StackInfo
from ringlog_cdc.settings import JobSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.system, pytest.mark.spark]

HOUR_US = 3_600_000_000


def run_to_idle(settings: JobSettings, spark: SparkSession) -> None:
    """Run the job until all mutations are durable."""
    from ringlog_cdc.job import CdcJob

    job = CdcJob(settings, spark).start()
    try:
        job.wait()
    finally:
        job.stop()


def settings_of(stack: StackInfo, cluster: str, checkpoint: Path, **changes: object) -> JobSettings:
    """Settings for a run that ends by itself."""
    values = {"stop_when_idle": True, "direct": True, "trigger_seconds": 0.0, "write_tasks": 2} | changes
    return JobSettings(stack.bootstrap_servers, cluster, checkpoint, **values)  # type: ignore[arg-type]


def test_rows_lie_under_the_stream_of_their_key(
    stack: StackInfo, cluster_name: str, spark: SparkSession, tmp_path: Path
) -> None:
    with founded(stack.bootstrap_servers, cluster_name) as world:
        world.join("n1", (-5_000_000_000, 0, 7_000_000_000), now_us() - HOUR_US)
        world.schema()
        world.send(write(f"customer-{number % 37}", number) for number in range(1_000))
        run_to_idle(settings_of(stack, cluster_name, tmp_path / "checkpoint"), spark)
        rows = world.rows()
        assert len(rows) == 1_000
        assert world.letters() == []

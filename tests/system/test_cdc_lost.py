"""A checkpoint that is lost, whole or in part, and a second job: decisions stay, and nothing is logged twice."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.system.cdc_world import founded, now_us, write
from tests.system.test_cdc_job import HOUR_US, TOKENS, identity, run_to_idle

from ringlog.kernel.commands.schema.tables import AlterTable
from ringlog.kernel.values import CdcOptions
from ringlog.operator.fencing import fence
from ringlog.runtime.context import ClusterContext
from ringlog.stack import StackInfo
from ringlog_cdc.errors import CdcError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.slow]


def test_skipped_rows_stay_skipped(stack: StackInfo, cluster_name: str, spark: SparkSession, tmp_path: Path) -> None:
    first, second, other = (tmp_path / name for name in ("first", "second", "other"))
    with founded(stack.bootstrap_servers, cluster_name) as world:
        world.join("n1", TOKENS, now_us() - HOUR_US)
        world.schema()
        # The table keeps no log yet; writes of another one lie between.
        world.send(write(f"k{number % 7}", number, table=("quiet", "orders")[number % 2]) for number in range(80))
        run_to_idle(stack, cluster_name, first, spark)
        world.alter(AlterTable("shop", "quiet", (), CdcOptions(enabled=True)))
        world.send(write(f"k{number % 7}", number, table=("quiet", "orders")[number % 2]) for number in range(80, 120))
        run_to_idle(stack, cluster_name, first, spark)
        before = Counter(identity(row) for row in world.rows())
        assert len(before) == 80
        assert sum(place.offset for place in world.state.writers["spark"].decided) >= 80

        with pytest.raises(CdcError, match="spark logs") as refused:
            run_to_idle(stack, cluster_name, other, spark, writer="other")
        assert refused.value.code == "source_in_use"
        assert not (other / "claim.json").exists()
        assert "other" not in world.state.writers

        shutil.move(first / "plans", tmp_path / "plans")
        incarnation = world.state.writers["spark"].incarnation
        with pytest.raises(CdcError) as broken:
            run_to_idle(stack, cluster_name, first, spark)
        assert broken.value.code == "plan_chain_broken"
        assert world.state.writers["spark"].incarnation == incarnation

        context = ClusterContext(world.bootstrap, world.cluster, "")
        world.apply(fence(context, world.state.writers["spark"], "lost", None, "", "the test has lost it"))
        world.send(write(f"k{number % 7}", number, table=("quiet", "orders")[number % 2]) for number in range(120, 140))
        run_to_idle(stack, cluster_name, second, spark)
        after = Counter(identity(row) for row in world.rows())
        assert {place: after[place] for place in before} == before
        assert len(after) == 100
        assert world.letters() == []

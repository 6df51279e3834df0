"""A checkpoint that is lost, whole or in part, and a second job: decisions stay, and nothing is logged twice."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.refusals import raises_code
from tests.system.cdc_world import World, write
from tests.system.test_cdc_job import identity, run_to_idle

from ringlog.kernel.commands.schema.tables import AlterTable
from ringlog.kernel.values import CdcOptions
from ringlog.operator.fencing import fence
from ringlog.runtime.context import ClusterContext
from ringlog_cdc.errors import CdcError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.slow]


def test_skipped_rows_stay_skipped(shop: World, spark: SparkSession, tmp_path: Path) -> None:
    first, second, other = (tmp_path / name for name in ("first", "second", "other"))
    # The table keeps no log yet; writes of another one lie between.
    shop.send(write(f"k{number % 7}", number, table=("quiet", "orders")[number % 2]) for number in range(80))
    run_to_idle(shop, first, spark)
    shop.alter(AlterTable("shop", "quiet", (), CdcOptions(enabled=True)))
    shop.send(write(f"k{number % 7}", number, table=("quiet", "orders")[number % 2]) for number in range(80, 120))
    run_to_idle(shop, first, spark)
    before = Counter(identity(row) for row in shop.rows())
    assert len(before) == 80
    assert sum(place.offset for place in shop.state.writers["spark"].decided) >= 80

    with raises_code(CdcError, "source_in_use", match="spark logs"):
        run_to_idle(shop, other, spark, writer="other")
    assert not (other / "claim.json").exists()
    assert "other" not in shop.state.writers

    shutil.move(first / "plans", tmp_path / "plans")
    incarnation = shop.state.writers["spark"].incarnation
    with raises_code(CdcError, "plan_chain_broken"):
        run_to_idle(shop, first, spark)
    assert shop.state.writers["spark"].incarnation == incarnation

    context = ClusterContext(shop.bootstrap, shop.cluster, "")
    shop.apply(fence(context, shop.state.writers["spark"], "lost", None, "", "the test has lost it"))
    shop.send(write(f"k{number % 7}", number, table=("quiet", "orders")[number % 2]) for number in range(120, 140))
    run_to_idle(shop, second, spark)
    after = Counter(identity(row) for row in shop.rows())
    assert {place: after[place] for place in before} == before
    assert len(after) == 100
    assert shop.letters() == []

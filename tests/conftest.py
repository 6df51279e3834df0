"""The order of all tests, and their distribution over test processes."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Generator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from ringlog.runtime.logs import setup_logs

# The time of an example, or of its generation, measures the load of the machine, not the code.
settings.register_profile("ringlog", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ringlog")

os.environ.pop("COLUMNS", None)
"""The caller may have set it, and tables would be as narrow as its terminal."""

setup_logs()
"""Set up logs before a test captures them and restores the handlers."""


@pytest.hookimpl(tryfirst=True)  # the groups are read by a plugin at the same place
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort tests by their requirements and keep the order within a file: cheap tests run first.

    If several processes share the tests, they take files from both ends of this order (``ByNeed``). Tests that share a
    Spark session are the first: one process runs all of them and needs most of the time. The quick tests follow, then
    tests with their own Spark, then the other real processes. The last are the files with slow tests, because a long
    file cannot be divided at the end of the run.
    """
    for item in items:
        left_out = item.get_closest_marker("soak")
        if left_out is not None and not (left_out.args and str(left_out.args[0])):
            raise pytest.UsageError(f"{item.nodeid}: name the test that covers it in `make test`")
    shared = hasattr(config, "workerinput")
    spark, slow, system = (1, 3, 2) if shared else (2, 1, 1)
    at_once = {path for path in {item.path for item in items} if shared and _shares_a_session(path)}
    long = {item.path for item in items if item.get_closest_marker("slow")}
    tests = Counter(item.path for item in items)

    def costs(item: pytest.Item) -> tuple[int, int]:
        if item.path in at_once:
            return -1, 0
        if item.get_closest_marker("spark"):
            return spark, 0
        if not item.get_closest_marker("system"):
            return 0, 0
        return (slow, 0) if item.path in long else (system, tests[item.path] * shared)

    items.sort(key=costs)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Freeze the collected objects: they live until the end, so the garbage collector need not scan them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


class ByNeed(LoadScopeScheduling):
    """Gives each process whole files, and gives one process all tests that share a Spark session or a faults cluster.

    Every second process takes files from the end of the order. So tests that compute and tests that wait for other
    processes run at the same time, and the last files are short. Tests with their own driver may run in any
    process, so that the session's process does not finish last.
    """

    def _assign_work_unit(self, node: WorkerController) -> None:
        if int(node.gateway.id.removeprefix("gw")) % 2:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        if path.startswith("tests/faults/"):
            return "tests/faults/"
        return "a Spark session" if _shares_a_session(self.config.rootpath / path) else path


@cache
def _shares_a_session(path: Path) -> bool:
    return "spark: SparkSession" in path.read_text(encoding="utf-8")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByNeed:
    """Return this scheduler for each value of ``--dist``."""
    return ByNeed(config, log)

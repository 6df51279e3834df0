"""For every test: in which order they run, and which process has which of them."""

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

from ringlog.runtime.logs import setup_logs

# How long an example takes, or its making, says how busy the machine is, nothing about the code.
settings.register_profile("ringlog", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ringlog")

os.environ.pop("COLUMNS", None)
"""The caller may have set it, and tables would be as narrow as its terminal."""

setup_logs()
"""Before a test looks at logs, and puts back what was there."""


@pytest.hookimpl(tryfirst=True)  # the groups are read by a plugin at the same place
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sorts by what a test needs (the order within a file stays): what is cheap to find out is found out first.

    Where several processes share the tests, those that share a Spark session begin at once: one process has them all,
    and needs most of the time that there is. Then the quick ones, what has a Spark of its own, and the other real
    processes, of these the files with slow tests first, then those with many: what is long and cannot be divided must
    not be left for the end.
    """
    for item in items:
        left_out = item.get_closest_marker("soak")
        if left_out is not None and not (left_out.args and str(left_out.args[0])):
            raise pytest.UsageError(f"{item.nodeid}: what holds its promise in `make test`?")
    shared = hasattr(config, "workerinput")
    spark, slow, system = (1, 2, 3) if shared else (2, 1, 1)
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
        return (slow, 0) if item.path in long else (system, -tests[item.path] * shared)

    items.sort(key=costs)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nothing of what is collected goes away before the end: the garbage collector need not look, now or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


class ByNeed(LoadScopeScheduling):
    """Gives each process whole files, and all tests to one process that share a Spark session or a cluster under
    faults.

    Who starts a driver of its own may do so anywhere: the session's process is not to be the one that all wait for.
    """

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        if path.startswith("tests/faults/"):
            return "tests/faults/"
        return "a Spark session" if _shares_a_session(self.config.rootpath / path) else path


@cache
def _shares_a_session(path: Path) -> bool:
    return "spark: SparkSession" in path.read_text(encoding="utf-8")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByNeed:
    """Whatever ``--dist`` says."""
    return ByNeed(config, log)

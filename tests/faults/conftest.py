"""Faults on the real stack. ``make faults`` (or ``pytest tests/faults``) runs all of them.

Any other run includes only tests marked ``system``: those of the proxy. To update the tables of the page after a run
without failures: ``make faults TEST_FLAGS="--figures-into docs/internals/faults.md"``.

All faults that leave a cluster intact share one stack and one cluster. A destructive test creates its own cluster. The
shared cluster ends with the last test of this folder, because its agents, nodes and driver use half a core.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.system.conftest import spark as spark  # the fixture, for all files of this folder

from .broker import Broker
from .cost_tables import Figures
from .world import World

HERE = Path(__file__).parent
FIGURES = pytest.StashKey[Figures]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--figures-into", metavar="PAGE", help="write the figures of this run into a page")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[FIGURES] = Figures()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    named = [Path(str(argument).split("::")[0]).resolve() for argument in config.args]
    if any(path == HERE or HERE in path.parents for path in named):
        return
    slow = [item for item in items if HERE in item.path.parents and item.get_closest_marker("system") is None]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if item not in slow]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config) -> None:
    figures = config.stash[FIGURES]
    page = config.getoption("--figures-into", None)
    if page and exitstatus == 0:
        load, cores = os.getloadavg()[2], os.cpu_count()
        figures.write_into(Path(page), f"one run on {cores} cores, load average {load:.0f} meanwhile")
    for name, table in figures.tables().items():
        terminalreporter.section(name)
        for line in table:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def figures(request: pytest.FixtureRequest) -> Figures:
    """Return the collector of the measurements of each fault."""
    return request.config.stash[FIGURES]


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Return a broker and a Redis behind links, for all faults that they survive."""
    with closing(Broker(tmp_path_factory.mktemp("faults") / "stack")) as own:
        yield own


@pytest.fixture(scope="package")
def world(broker: Broker, tmp_path_factory: pytest.TempPathFactory, figures: Figures) -> Iterator[World]:
    """Return the cluster with all parts."""
    with closing(World(tmp_path_factory.mktemp("world"), broker, figures)) as own:
        yield own.start(spark=True)

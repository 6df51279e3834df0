"""For every test: the quick ones first, those that start real processes after them, those with Spark last."""

from __future__ import annotations

import pytest
from hypothesis import settings

# How long an example takes says how busy the machine is, nothing about the code.
settings.register_profile("ringlog", deadline=None)
settings.load_profile("ringlog")


@pytest.hookimpl(tryfirst=True)  # the groups are read by a plugin at the same place
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sorts by what a test needs (the order within a file stays): what is cheap to find out is found out first.

    Where several processes share the tests, those of one file stay together, and so do those of one Spark session and
    of one cluster under faults. Those with Spark come before the other real processes: they are the longest piece that
    cannot be divided.
    """
    several = hasattr(config, "workerinput")

    def costs(item: pytest.Item) -> int:
        spark, system = (1, 2) if several else (2, 1)
        return spark if item.get_closest_marker("spark") else system if item.get_closest_marker("system") else 0

    items.sort(key=costs)
    for item in items:
        item.add_marker(pytest.mark.xdist_group(group_of(item)))


def group_of(item: pytest.Item) -> str:
    """The tests that one process has to run, as a name."""
    if "faults" in item.path.parts:
        return "faults"
    return "spark" if item.get_closest_marker("spark") else str(item.path.relative_to(item.config.rootpath))

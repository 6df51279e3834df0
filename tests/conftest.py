"""For every test: the quick ones first, those that start real processes after them, those with Spark last."""

from __future__ import annotations

import pytest
from hypothesis import settings

# How long an example takes says how busy the machine is, nothing about the code.
settings.register_profile("ringlog", deadline=None)
settings.load_profile("ringlog")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorts by what a test needs (the order within a file stays): what is cheap to find out is found out first."""

    def costs(item: pytest.Item) -> int:
        return 2 if item.get_closest_marker("spark") else 1 if item.get_closest_marker("system") else 0

    items.sort(key=costs)

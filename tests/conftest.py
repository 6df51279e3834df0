"""For every test: the quick ones first, those that start real processes after them, those with Spark last."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorts by what a test needs (the order within a file stays): what is cheap to find out is found out first."""

    def costs(item: pytest.Item) -> int:
        return 2 if item.get_closest_marker("spark") else 1 if item.get_closest_marker("system") else 0

    items.sort(key=costs)

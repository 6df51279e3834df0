"""No circle of imports anywhere: each module can be read after those that it stands on."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import grimp
import pytest

PACKAGES = ("ringlog", "ringlog_cdc", "ringlog_schemas")


def order(imports: dict[str, set[str]]) -> tuple[str, ...]:
    """The modules, each behind those that it imports. Raises CycleError."""
    return tuple(TopologicalSorter(imports).static_order())


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Imports for types alone count, too."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(order(imports)) == len(imports) > 700


def test_a_circle_would_be_seen() -> None:
    with pytest.raises(CycleError):
        order({"a": {"b"}, "b": {"c"}, "c": {"a"}})

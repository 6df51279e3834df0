"""No circle of imports anywhere: each module can be read after those that it stands on."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import grimp
import pytest

PACKAGES = ("ringlog", "ringlog_cdc", "ringlog_schemas")
KERNEL = "ringlog.kernel"
BOTH_WAYS = {
    ("commands", "invariants"): "a forced state is held against the invariants, which know bounds of commands",
    ("generations", "operations"): "a generation is of the ring that an operation makes, which waits for it",
    ("operations", "tablets"): "operations and tablets wait for each other (tablets.track)",
    ("tablets", "zones"): "tablets of a zone go where their partition is, which waits for them",
}
"""The folders of the kernel that import each other, in the order of the alphabet, and why. No others shall."""


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


def _folder(module: str) -> str:
    parts = module.removeprefix(f"{KERNEL}.").split(".")
    return parts[0] if len(parts) > 1 else ""


def test_folders_of_the_kernel_import_each_other_only_where_that_is_known() -> None:
    graph = grimp.build_graph("ringlog", cache_dir=None)
    arrows = {
        (_folder(module), _folder(target))
        for module in graph.modules
        for target in graph.find_modules_directly_imported_by(module)
        if module.startswith(f"{KERNEL}.") and target.startswith(f"{KERNEL}.")
    }
    assert {(a, b) for a, b in arrows if "" < a < b and (b, a) in arrows} == BOTH_WAYS.keys()

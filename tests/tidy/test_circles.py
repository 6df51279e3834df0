"""No circle of imports anywhere: each module can be read after those that it stands on."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import grimp
import pytest

PACKAGES = ("ringlog", "ringlog_cdc", "ringlog_schemas")
AGAINST = {
    ("operations", "generations"): "an operation waits for the generation that is made for its ring",
    ("operations", "tablets"): "operations and tablets wait for each other (tablets.track)",
    ("tablets", "zones"): "tablets of a zone go where their partition is, which waits for them",
}
"""The imports between folders of the kernel that go against their order, and why. No others shall."""


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


def _arrows(package: str) -> set[tuple[str, str]]:
    """(folder, folder that it imports) of those right below a package."""
    graph = grimp.build_graph(package.split(".")[0], cache_dir=None)

    def folder(module: str) -> str:
        place, _, rest = module.removeprefix(f"{package}.").partition(".")
        return place if rest and module.startswith(f"{package}.") else ""

    pairs = ((one, other) for one in graph.modules for other in graph.find_modules_directly_imported_by(one))
    arrows = {(folder(one), folder(other)) for one, other in pairs}
    return {(one, other) for one, other in arrows if one and other and one != other}


@pytest.mark.parametrize(("package", "against"), [("ringlog.kernel", set(AGAINST)), ("ringlog_cdc", set())])
def test_folders_stand_in_an_order_but_for_what_is_known(package: str, against: set[tuple[str, str]]) -> None:
    """Of the others the import linter knows: no room has a circle of folders."""
    arrows = _arrows(package)
    assert len(arrows) > 3
    assert against <= arrows, "what is known is needed"
    folders = {one for arrow in arrows for one in arrow}
    assert order({one: {to for of, to in arrows - against if of == one} for one in folders})
    for arrow in against:
        with pytest.raises(CycleError):
            order({one: {to for of, to in arrows - against | {arrow} if of == one} for one in folders})

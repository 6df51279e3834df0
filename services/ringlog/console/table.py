"""The views of the console: one row gives the path in ``/v1``, the page, its ``.json``, OpenAPI and the navigation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from ringlog.console.moments import ViewInput
from ringlog.console.views import levels
from ringlog.console.views.availability import availability
from ringlog.console.views.health import health
from ringlog.console.views.log import LAST, log
from ringlog.console.views.nodes import nodes
from ringlog.console.views.operations import operations
from ringlog.console.views.placement import schema, settings, tablets, zones
from ringlog.console.views.service import cdc, checks, clocks, plans, principals, snapshots
from ringlog.kernel.values import Value

TEXT_CHARS_MAX: Final = 200
EPOCH_MAX: Final = 2**62


class Parameter(Value):
    """A parameter of the query. ``kind``: int, bool or str. ``most``: the greatest number or length."""

    kind: type
    meaning: str
    most: int = TEXT_CHARS_MAX


class ConsoleView(Value):
    """A view. ``is_live``: it also depends on reports and on the time, not on the state alone."""

    name: str
    title: str
    question: str
    read: Callable[[ViewInput], dict[str, Any]]
    parameters: Mapping[str, Parameter]
    is_live: bool = True


WAIT_S: Final = 30.0
"""The longest wait of ``?wait=EPOCH``."""
COMMON: Final = {
    "epoch": Parameter(int, "Epoch of a past state. Default: the newest one.", EPOCH_MAX),
    "wait": Parameter(int, f"Epoch to wait for, at most {WAIT_S:.0f} s.", EPOCH_MAX),
}
"""The parameters of every view."""
PAGING: Final = {
    "page": Parameter(int, "Page of the rows, from 1.", 1_000_000),
    "limit": Parameter(int, f"Rows of a page. Default: {levels.LIMIT}.", levels.LIMIT_MAX),
}
FILTER: Final = {"filter": Parameter(str, "Text that shown rows contain.")}

VIEWS: Final = {
    view.name: view
    for view in (
        ConsoleView("health", "Health", "Is anything broken, since when, and what do I do first?", health, {}),
        ConsoleView(
            "nodes",
            "Nodes",
            "Which node is dead or behind, what does it own, and can it be removed?",
            nodes,
            {"node": Parameter(str, "Name of the node to show in detail."), **FILTER, **PAGING},
        ),
        ConsoleView(
            "operations",
            "Operations",
            "What is in flight, what does it wait for, and can I still cancel it?",
            operations,
            {"operation": Parameter(str, "Id of the operation to show in detail."), **PAGING},
        ),
        ConsoleView(
            "log",
            "Log",
            "What changed, by whom, and what was refused?",
            log,
            {
                "from": Parameter(int, "First epoch.", EPOCH_MAX),
                "to": Parameter(int, "Last epoch.", EPOCH_MAX),
                "last": Parameter(int, f"Number of records. Default: {LAST}.", levels.LIMIT_MAX),
                "by": Parameter(str, "Author: a principal, a person, or a role of agents."),
                "kind": Parameter(str, "Commands, separated by commas."),
                "all": Parameter(bool, "Also records without effect."),
                "refused": Parameter(bool, "Only records without effect."),
                "diff": Parameter(bool, "Also the difference between the states at `from` and `to`."),
            },
            is_live=False,
        ),
        ConsoleView(
            "availability",
            "Availability",
            "Which ranges can clients read and write, and which further death breaks more?",
            availability,
            {},
        ),
        ConsoleView(
            "tablets",
            "Tablets",
            "Why is a node full, what moves, and why does nothing move?",
            tablets,
            PAGING,
        ),
        ConsoleView(
            "zones",
            "Zones",
            "Which partitions are stuck or read-only, and what ends that?",
            zones,
            {"zone": Parameter(str, "Name of the zone to show in detail."), **PAGING},
        ),
        ConsoleView(
            "cdc", "CDC", "How late is the CDC log, does a writer stand still, and were writes rejected?", cdc, {}
        ),
        ConsoleView(
            "snapshots",
            "Snapshots",
            "If the broker burns now, what do I lose?",
            snapshots,
            {},
        ),
        ConsoleView("clocks", "Clocks", "What breaks this week?", clocks, {}),
        ConsoleView("checks", "Checks", "Are topics, agents, Redis and this machine in order?", checks, {}),
        ConsoleView(
            "plans",
            "Plans",
            "Which changes wait for an approval, and what would they do?",
            plans,
            {"plan": Parameter(str, "Name of the plan to show in detail.")},
            is_live=False,
        ),
        ConsoleView(
            "schema", "Schema", "Which tables exist, and in which version?", schema, {**FILTER, **PAGING}, is_live=False
        ),
        ConsoleView("settings", "Settings", "Which settings differ from their defaults?", settings, {}, is_live=False),
        ConsoleView("principals", "Principals", "Who may change what?", principals, {}, is_live=False),
    )
}
"""The views by name, in the order of the navigation."""

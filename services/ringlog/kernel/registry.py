"""What the log may ask for: the commands, each declared in one family file of ``kernel.commands``.

A family file has, for each of its commands, the class (a frozen dataclass below ``Command``) and its rule, a pure
function ``decide_…(state, command, context) -> Decision``; the class of the second argument says which command it
decides. ``CODES`` of the file are the reasons for refusal that the family brings, with their meaning. All that needs
to know what there is (payloads, JSON, reference pages, fuzzing, the simulator) asks here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, get_type_hints

from ringlog.kernel.commands import (
    cdc,
    cdc_clock,
    cdc_expiry,
    cdc_writers,
    cluster,
    features,
    functions,
    keyspaces,
    movements,
    nodes,
    operations,
    pauses,
    rebalances,
    recovery,
    resizes,
    schema,
    schema_batch,
    service,
    snapshots,
    tablets,
    truncation,
    user_types,
    verdicts,
    views,
    zones,
)
from ringlog.kernel.outcome import Decision, EntryContext
from ringlog.kernel.state import ClusterState
from ringlog.kernel.values import Command

FAMILIES: Final = (
    cluster,
    features,
    snapshots,
    truncation,
    nodes,
    movements,
    operations,
    keyspaces,
    schema,
    user_types,
    views,
    functions,
    schema_batch,
    tablets,
    resizes,
    pauses,
    service,
    recovery,
    cdc,
    cdc_writers,
    cdc_expiry,
    cdc_clock,
    verdicts,
    zones,
    rebalances,
)
"""The family files, in the order of the reference pages."""

Rule = Callable[[ClusterState, Any, EntryContext], Decision]


def _rules() -> dict[type[Command], Rule]:
    """The rules by the class of their second argument, in the order in which they are declared."""
    found: dict[type[Command], Rule] = {}
    for family in FAMILIES:
        for name, rule in vars(family).items():
            if name.startswith("decide_") and rule.__module__ == family.__name__:
                _, kind, *_ = get_type_hints(rule).values()
                assert kind.__module__ == family.__name__, f"{kind.__name__} and its rule are in one file"
                assert kind not in found, f"{kind.__name__} has one rule"
                found[kind] = rule
        declared = {kind for kind in vars(family).values() if isinstance(kind, type) and issubclass(kind, Command)}
        assert {kind for kind in declared if kind.__module__ == family.__name__} <= found.keys(), "each has a rule"
    return found


RULES: Final = _rules()

COMMANDS: Final[dict[str, type[Command]]] = {kind.__name__: kind for kind in RULES}
"""Kind (the wire name) to class."""

VERSIONS: Final[dict[str, int]] = {name: kind.VERSION for name, kind in COMMANDS.items()}
"""Kind to the version that this release writes."""

"""Explore the switch and the end of CDC generations in each order of events, then again without each rule.

``python -m tests.kernel.generations.explore`` prints two Markdown tables (``make explore``). The exit status is 1 if an
invariant fails with all rules, or if none fails without one of them. ``--largest`` adds the scenarios that take
minutes.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Protocol

from ringlog.kernel.values import Value
from tests.kernel.generations import ending_model, switch_model


class Exploring(Protocol):
    """Interface of both models."""

    seen: int

    def explore(self) -> str | None: ...


class Scenario(Value):
    """A model and its possible events. ``large`` marks scenarios of a minute or more."""

    name: str
    make: Callable[..., Exploring]
    what: Mapping[str, Any]
    large: bool = False


def _switch(name: str, large: bool = False, **what: Any) -> Scenario:
    return Scenario(f"switch: {name}", switch_model.Explorer, MappingProxyType(what), large)


def _ending(name: str, large: bool = False, **what: Any) -> Scenario:
    return Scenario(f"end: {name}", ending_model.Explorer, MappingProxyType(what), large)


TWO_WRITERS = ("v", "w")
SCENARIOS = (
    _switch("a delayed writer", restarts=0),
    _switch("a killed writer returns", horizon=2),
    _switch("the same, with an extended lease", horizon=3),
    _switch("two writers", writers=TWO_WRITERS, restarts=0),
    _switch("a preparation is dropped", restarts=0, aborts=1),
    _switch("a preparation is dropped, a writer returns", large=True, horizon=2, aborts=1),
    _switch("two switches in a row", restarts=0, switches=2, horizon=2),
    _switch("two switches in a row, one more preparation is dropped", restarts=0, switches=2, horizon=3, aborts=1),
    _switch("a fence", restarts=0, fences=1),
    _switch("a fence, and the name returns", large=True, horizon=2, fences=1),
    _switch("a fence, and its lease is lowered", restarts=0, fences=1, lowerings=1),
    _switch("the same, and the name returns", large=True, horizon=2, fences=1, lowerings=1),
    _switch("a generation is withdrawn", restarts=0, withdrawals=1, horizon=2),
    _switch("the same, and a killed writer returns", large=True, withdrawals=1, horizon=2),
    _switch("a fence, a lowering, a withdrawal", restarts=0, fences=1, lowerings=1, withdrawals=1),
    _ending("two writers", fences=0),
    _ending("two writers, a fence", fences=1),
    _ending("one writer, a fence, the name returns", writers=("w",), restarts=1),
    _ending("two writers, a fence, a restart", large=True, restarts=1),
)

OFF = (
    (_switch("one writer"), "above every horizon", "a generation may start below a promise"),
    (_switch("one writer"), "frozen while prepared", "a write lease rises while a generation is prepared"),
    (_switch("one writer"), "floor", "a new incarnation lowers the horizon that it found"),
    (_switch("one writer", horizon=2), "current incarnation only", "an incarnation that has ended promises"),
    (_switch("a fence", fences=1), "horizons of fenced writers", "a promise is forgotten with the fence"),
    (_switch("a fence", fences=1), "a fenced name keeps its horizon", "the name begins anew below what it promised"),
    (
        _switch("one writer", lowerings=1),
        "only fenced writers are lowered",
        "a live writer's horizon is lowered for it",
    ),
    (_switch("a fence", fences=1, lowerings=1), "lowered above what was used", "the operator lowers to where he likes"),
    (_switch("a fence", fences=1, lowerings=1), "rights before the fence", "a fenced writer may still write"),
    (
        _switch("one writer", restarts=0, horizon=2, withdrawals=1),
        "only what no horizon reaches is withdrawn",
        "a generation goes that writers may have used",
    ),
    (_switch("one writer", horizon=2), "folded horizon", "a promise counts before it is in the log"),
    (_switch("one writer"), "lowering binds at once", "a lowering binds only when it is in the log"),
    (_switch("one writer"), "registration folded first", "a process works before it has folded its registration"),
    (_switch("one writer", horizon=2), "knowledge and horizon of one state", "generations are read earlier"),
    (_ending("a fence"), "every writer is done", "a generation closes while a writer is behind"),
    (_ending("a fence"), "durable before it is claimed", "a low-watermark is claimed for rows on their way"),
    (_ending("a fence"), "positions of the claim after its rows", "positions are read before the rows landed"),
    (_ending("a fence"), "rights before the fence", "a fence is only an entry of the log"),
    (_ending("a fence"), "positions of the fence after the rights", "positions are read while it could write"),
    (_ending("a restart", restarts=1), "rights of all incarnations", "the one before may still write"),
    (_ending("a restart", restarts=1), "the current incarnation is fenced", "a fence meant for another one counts"),
    (_ending("a restart", restarts=1), "registration folded first", "a process works before it has folded its own"),
)
"""(scenario, disabled rule, consequence)."""


def main() -> int:
    """Print both tables and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--largest", action="store_true")
    args = parser.parse_args()
    is_fine = True
    print("| scenario | situations | broken |\n|---|---|---|")
    for scenario in SCENARIOS:
        if args.largest or not scenario.large:
            made = scenario.make(**scenario.what)
            broken = made.explore()
            is_fine &= broken is None
            print(f"| {scenario.name} | {made.seen:,} | {broken or 'no'} |", flush=True)
    print("\n| left out | what it is like | so | found in |\n|---|---|---|---|")
    for scenario, rule, words in OFF:
        begun = time.monotonic()
        broken = scenario.make(without=rule, **scenario.what).explore()
        is_fine &= broken is not None
        seconds = time.monotonic() - begun
        print(
            f"| {rule} | {words} | {broken or '**nothing was found**'} | {scenario.name}, {seconds:.1f} s |", flush=True
        )
    return 0 if is_fine else 1


if __name__ == "__main__":
    sys.exit(main())

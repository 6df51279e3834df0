"""Explore the validation rule for writes on each log of a few entries, then again without each part of the rule.

``python -m tests.kernel.verdicts.explore`` prints two Markdown tables (``make explore``). The exit status is 1 if an
invariant fails with the whole rule, or if none fails without one of its parts.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

from ringlog.kernel.values import Value
from tests.kernel.verdicts import model
from tests.kernel.verdicts.model import Explorer, Life, State, Version, Write

TIMES = range(1, 4)


def plain(columns: str = "ab") -> Iterator[Write]:
    """Yield writes that name no table, version or epoch."""
    yield from (Write(at, at, column) for at in TIMES for column in columns)


def naming() -> Iterator[Write]:
    """Yield writes that name a table id, a table version or an epoch, including nonexistent ones."""
    for at in TIMES:
        yield from (Write(at, at, "a", table=table) for table in "xyz")
        yield from (Write(at, at, column, "x", version) for version in (1, 2, 3, 7) for column in "ab")
        yield from (Write(at, at, "b", epoch=epoch) for epoch in (1, 2, 3, 4, 5, 90))


def stamped() -> Iterator[Write]:
    """Yield writes with timestamps that differ from their append times."""
    yield from (Write(at, timestamp, "a") for at in TIMES for timestamp in range(5))


class Scenario(Value):
    """Possible entries of a log, and the writes to validate."""

    name: str
    what: MappingProxyType[str, Any]

    def explorer(self, without: str | None = None) -> Explorer:
        """Return a new explorer."""
        return Explorer(without, **self.what)


def _scenario(name: str, **what: Any) -> Scenario:
    return Scenario(name, MappingProxyType(what))


TABLE = State(lifetimes=(Life("x", 1, 0, (Version(1, 1, 0, "a"),)),), generations=(0,))
TABLES = _scenario("plain writes", writes=(*plain(),), length=9, start=State(generations=(0,)))
NAMES = _scenario("writes that name", writes=(*naming(),), length=9, start=State(generations=(0,)))
SETTING = _scenario("a leeway", kinds=("settle", "leeway"), writes=(*stamped(),), length=6, start=TABLE)
SWITCH = _scenario(
    "generations",
    kinds=("settle", "commit", "withdraw", "leeway"),
    writes=(*stamped(),),
    length=6,
    last=5,
    start=State(lifetimes=TABLE.lifetimes),
)
FORGETTING = _scenario(
    "forgetting",
    kinds=("settle", "create", "alter", "drop", "forget"),
    writes=(*plain(), *naming()),
    length=6,
    start=TABLE,
)
LOWERING = _scenario(
    "a settled time that is lowered",
    kinds=("settle", "create", "alter", "drop", "promise", "forget", "append", "lower"),
    writes=(Write(1, 1, "a"), Write(2, 1, "b")),
    length=5,
    last=3,
    start=State(generations=(0,)),
)
LOWERED_SWITCH = _scenario(
    "lowered, and generations",
    kinds=("settle", "commit", "withdraw", "leeway", "append", "lower"),
    writes=(Write(1, 1, "a"), Write(1, 2, "a")),
    length=5,
    last=3,
    start=State(lifetimes=TABLE.lifetimes),
)
SCENARIOS = (TABLES, NAMES, SETTING, SWITCH, FORGETTING, LOWERING, LOWERED_SWITCH)

OFF = (
    (TABLES, model.SETTLED_FIRST, "a reader judges as soon as it has read the write", model.DISAGREE),
    (TABLES, model.SINCE_SETTLED, "a change counts for every write, whenever appended", model.DISAGREE),
    (SETTING, model.SETTINGS_SINCE, "a new leeway counts for every write", model.DISAGREE),
    (TABLES, model.KEPT, "the state has only the newest version of a table", model.DISAGREE),
    (TABLES, model.DROPS_KEPT, "a dropped table leaves the state", model.DISAGREE),
    (TABLES, model.NEVER_SINKS, "a reader takes its promise back, as a CDC writer may", model.DISAGREE),
    (SWITCH, model.GENERATION_ABOVE, "a generation starts above the CDC writers' horizons only", model.DISAGREE),
    (SWITCH, model.WITHDRAWN_ABOVE, "a generation is withdrawn below a settled time", model.DISAGREE),
    (SWITCH, model.TIMESTAMP_TOO, "only the append time is below the settled time", model.DISAGREE),
    (NAMES, model.ID_DECIDES, "a table is found by its name", model.WRONG_TABLE),
    (NAMES, model.EPOCH_CAPPED, "an epoch names all that the log had by then", model.DISAGREE),
    (NAMES, model.ONE_CODE, "an id that was never heard of has a code of its own", model.DISAGREE),
    (FORGETTING, model.NAMES_END, "a version may be named for ever, and is forgotten once replaced", model.DISAGREE),
    (FORGETTING, model.FORGOTTEN_LATE, "a version is forgotten once replaced", model.DISAGREE),
    (FORGETTING, model.SETTLED_FORGETS, "what still counts is forgotten", model.LOST),
    (FORGETTING, model.GONE_IS_NONE, "a write is judged by what is left", model.DISAGREE),
    (NAMES, model.OLD_READS, "only the newest version may be named", model.NOT_READ),
    (NAMES, model.NO_WAIT, "a reader folds up to the epoch that a write names", model.STOPPED),
    (LOWERING, model.READ_FIRST, "a node judges by what it had folded before it read the write", model.DISAGREE),
    (LOWERING, model.LOWERED_ABOVE_USED, "the settled time sinks whatever was appended", model.DISAGREE),
    (LOWERED_SWITCH, model.LOWERED_STAMPS_TOO, "only append times are looked at", model.DISAGREE),
    (LOWERING, model.LOWERED_ABOVE_HORIZON, "it sinks below what a CDC writer may judge", model.DISAGREE),
    (LOWERING, model.LOWERED_ABOVE_FORGOTTEN, "it sinks below what is forgotten", model.LOST),
    (LOWERING, model.LOWERED_CUTS, "a table waits for the time that was taken back", model.LATE),
)
"""(scenario, disabled part, consequence, violated invariant)."""


def main() -> int:
    """Print both tables and return the exit status."""
    is_fine = True
    print("| scenario | logs | broken |\n|---|---|---|")
    for scenario in SCENARIOS:
        made = scenario.explorer()
        broken = made.explore()
        is_fine &= broken is None
        print(f"| {scenario.name} | {made.seen:,} | {broken or 'no'} {' → '.join(made.found)} |", flush=True)
    print("\n| left out | what it is like | so | log |\n|---|---|---|---|")
    for scenario, rule, words, promise in OFF:
        made = scenario.explorer(rule)
        broken = made.explore()
        is_fine &= broken == promise
        print(f"| {rule} | {words} | {broken or '**nothing was found**'} | {' → '.join(made.found)} |", flush=True)
    return 0 if is_fine else 1


if __name__ == "__main__":
    sys.exit(main())

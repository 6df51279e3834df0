"""The coverage of a search, as tables with visible empty cells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from ringlog.kernel.model.outcome import OutcomeKind
from ringlog.kernel.operations.kinds import KINDS
from ringlog.kernel.operations.stages import CANCELLED, FINISHED
from ringlog.kernel.registry import COMMANDS
from ringlog.kernel.values import Value
from ringlog_sim.families import FAMILIES
from ringlog_sim.runner.actions import PERFORMED
from ringlog_sim.runner.script import FAULTS

Did = Mapping[tuple[str, ...], int]
Count = Callable[[str, str], int]


class CoverageTable(Value):
    """``cells[row][column]``: number of occurrences. 0 is an empty cell."""

    title: str
    columns: tuple[str, ...]
    cells: tuple[tuple[str, tuple[int, ...]], ...]

    def empty(self) -> int:
        """Return the number of empty cells."""
        return sum(not count for _, counts in self.cells for count in counts)


def tables(did: Did) -> tuple[CoverageTable, ...]:
    """Return tables: commands by outcome and by fault, stages of operations by fault, actions of scripts, other
    counters.
    """
    commands = sorted(COMMANDS)
    outcomes = [kind.value for kind in OutcomeKind if kind is not OutcomeKind.HALT]
    asked: Counter[tuple[str, str]] = Counter()
    for key, count in did.items():
        if key[0] == "command":
            what = key[2] if key[2] in _ANSWERS else "rejected"
            asked[key[1], _ANSWERS.get(what, what)] += count
    stages = [
        (name, stage)
        for name, kind in sorted(KINDS.items())
        for stage in kind.stages
        if stage not in (FINISHED, CANCELLED)
    ]
    operators = [kind for kind in commands if any(family.commands.get(kind) for family in FAMILIES)]
    return (
        _table(
            "entries of the log, by command and outcome", commands, outcomes, lambda r, c: did.get(("entry", r, c), 0)
        ),
        _table(
            "operators' requests, by answer",
            operators,
            ["applied", "rejected", "expired", "timed out", "nothing to ask"],
            lambda row, column: asked[row, column],
        ),
        _table("entries during a fault", commands, FAULTS, lambda r, c: did.get(("during", c, r), 0)),
        CoverageTable(
            "faults in each stage of an operation",
            FAULTS,
            tuple(
                (f"{kind} {stage}", tuple(did.get(("fault", fault, kind, stage), 0) for fault in FAULTS))
                for kind, stage in stages
            ),
        ),
        _table("actions of scripts", sorted(PERFORMED), ["times"], lambda r, _: did.get(("action", r), 0)),
        _others(did),
    )


_ANSWERS = {
    "AppliedResult": "applied",
    "ExpiredResult": "expired",
    "timed out": "timed out",
    "nothing to ask": "nothing to ask",
    "rejected": "rejected",
}


def _table(title: str, rows: Sequence[str], columns: Sequence[str], count: Count) -> CoverageTable:
    return CoverageTable(
        title, tuple(columns), tuple((row, tuple(count(row, column) for column in columns)) for row in rows)
    )


def _others(did: Did) -> CoverageTable:
    listed = ("entry", "command", "during", "fault", "action")
    rows = sorted((" ".join(key), count) for key, count in did.items() if key[0] not in listed)
    return CoverageTable("besides", ("times",), tuple((name, (count,)) for name, count in rows))

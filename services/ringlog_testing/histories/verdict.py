"""What a check says: of one key, and of a whole history."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ringlog_testing.histories.operations import ClientOperation


class Linearizability(StrEnum):
    """Linearizable, not, or not known within the limit of the search."""

    LINEARIZABLE = "linearizable"
    NOT_LINEARIZABLE = "not_linearizable"
    UNDECIDED = "undecided"


class Method(StrEnum):
    """How a key was checked."""

    ZONES = "zones"
    SEARCH = "search"
    EPOCHS = "epochs"


@dataclass(frozen=True, slots=True)
class KeyVerdict:
    """Of one key's operations. ``line``: with it the history stops being linearizable; 0 where it is, or nobody knows.

    ``why`` and ``culprits`` are there where the method knows them; ``configurations`` counts the steps of a search.
    """

    verdict: Linearizability
    line: int = 0
    why: str = ""
    culprits: tuple[ClientOperation, ...] = ()
    configurations: int = 0


@dataclass(frozen=True, slots=True)
class ShortestCounterexample:
    """The smallest beginning of a key's history that no order explains, and the operations that it takes for that.

    ``line``: the last line of that beginning. ``is_least``: leaving out one more operation would leave nothing to show,
    where the limits of the search let us know; on a key with swaps, what changes the value is never left out.
    """

    key: str
    line: int
    why: str
    operations: tuple[ClientOperation, ...]
    is_least: bool


@dataclass(frozen=True, slots=True)
class KeyReport:
    """One key: how it was checked, and what came out."""

    key: str
    method: Method
    operations: int
    decision: KeyVerdict


@dataclass(frozen=True, slots=True)
class HistoryReport:
    """A whole history. ``counterexample`` is of the key whose history stops being linearizable first."""

    verdict: Linearizability
    keys: tuple[KeyReport, ...]
    counterexample: ShortestCounterexample | None

"""The results of a check: for one key and for a whole history."""

from __future__ import annotations

from enum import StrEnum

from ringlog.kernel.values import Value
from ringlog_testing.histories.operations import ClientOperation


class Linearizability(StrEnum):
    """Linearizable, not linearizable, or undecided within the limit of the search."""

    LINEARIZABLE = "linearizable"
    NOT_LINEARIZABLE = "not_linearizable"
    UNDECIDED = "undecided"


class Method(StrEnum):
    """The method that checked a key."""

    ZONES = "zones"
    SEARCH = "search"
    EPOCHS = "epochs"


class KeyVerdict(Value):
    """The result for one key. ``line``: the first line that makes the history non-linearizable, 0 for none or unknown.

    ``why`` and ``culprits`` are set if the method knows them. ``configurations`` counts the steps of a search.
    """

    verdict: Linearizability
    line: int = 0
    why: str = ""
    culprits: tuple[ClientOperation, ...] = ()
    configurations: int = 0


class ShortestCounterexample(Value):
    """The smallest non-linearizable prefix of a key's history, reduced to the necessary operations.

    ``line``: the last line of that prefix. ``is_least``: no single operation can be removed, as far as the search
    limits allow a decision. On a key with swaps, operations that change the value are never removed.
    """

    key: str
    line: int
    why: str
    operations: tuple[ClientOperation, ...]
    is_least: bool


class KeyReport(Value):
    """The result for one key and its method."""

    key: str
    method: Method
    operations: int
    decision: KeyVerdict


class HistoryReport(Value):
    """The result for a whole history. ``counterexample``: of the key that stops being linearizable first."""

    verdict: Linearizability
    keys: tuple[KeyReport, ...]
    counterexample: ShortestCounterexample | None

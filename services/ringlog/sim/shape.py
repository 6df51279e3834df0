"""The cluster that a run begins with, in a few numbers."""

from __future__ import annotations

from dataclasses import dataclass

from ringlog.kernel.values import Column

COLUMNS = (Column("k", "text"), Column("c", "int"), Column("v", "text"))
"""Of every table: partition key k, clustering key c."""


@dataclass(frozen=True, slots=True)
class ClusterShape:
    """``founded``: nodes that own the ring when the run begins (0: there is no cluster yet); ``joining``: nodes that
    start in the run and join; ``old``: entries that have left the history.
    """

    founded: int
    joining: int
    factor: int
    tokens: int
    history: int
    old: bool

    @property
    def datacenters(self) -> int:
        """Over how many datacenters the nodes are spread: two where they have an even number of tokens."""
        return 2 - self.tokens % 2


def tablet_bytes(number: int) -> int:
    """What a node says that a tablet of this number holds, of whatever table and wherever it is."""
    return (4 + number % 3) << 30

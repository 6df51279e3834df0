"""Nodes that keep their rows on disk, while they crash, lose power in a commit, and the mutations let go of their head.

What is cut is what every node has for good; a node that begins reads on from its own position. The CDC job reads the
whole topic all the same: what a job does without its mutations is no matter of nodes. Applications read the rows, each
at its own moment: at the position of the last write, or at QUORUM.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ringlog.kernel.values import Micros
from ringlog.sim.chance import Chance
from ringlog.sim.world import MS, SECOND

PROFILE: Final = "rows"
"""The profile of which every run has them; others have none."""
LASTS: Micros = 6 * SECOND
POSITION: Final = "position"
"""The word for a read at a position, beside the names of levels."""
Drawn = tuple[Micros, str, tuple[Any, ...]]


def keeping(chance: Chance, nodes: Sequence[str]) -> list[Drawn]:
    """(time, what happens, with which arguments)."""
    drawn: list[Drawn] = [(0, "keep_rows", ())]

    def add(count: int, low: int, high: int, what: str, *drawers: Any) -> None:
        for _ in range(count):
            drawn.append((chance.between(low, high) * MS, what, tuple(draw() for draw in drawers)))

    def node() -> str:
        return chance.pick(nodes)

    def way() -> str:
        return chance.pick([POSITION, "QUORUM", "QUORUM"])

    add(chance.between(3, 6), 50, 4_500, "burst", lambda: chance.between(2, 5))
    add(chance.between(3, 6), 300, 5_000, "crash", node, lambda: chance.between(50, 800))
    add(2, 300, 3_000, "crash", node, lambda: chance.between(1_000, 4_000))
    add(chance.between(0, 3), 200, 4_500, "torn", node)
    add(chance.between(2, 4), 800, 5_000, "retention")
    add(chance.between(12, 24), 200, 6_000, "read_rows", lambda: chance.below(2), lambda: chance.below(40), way)
    return drawn

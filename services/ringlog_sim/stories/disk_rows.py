"""Nodes with rows on disk. They crash and lose power in a commit, and the head of the mutations topic is truncated.

Truncation removes only mutations that every node has durably stored. A starting node continues at its own position. The
CDC job still reads the whole topic, because a truncated topic for the job is not part of this story. Applications read
the rows at different times: at the position of the last write, or at QUORUM.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ringlog.kernel.values import Micros
from ringlog_sim.actors.nodes.row_reads import AGAIN, POSITION
from ringlog_sim.devices.world import MS, SECOND, Chance
from ringlog_sim.stories.story import Drawn, StorySetting

PROFILE: Final = "rows"
"""The profile that always has this story. Others never have it."""
LASTS: Micros = 6 * SECOND
LASTS_AHEAD: Micros = 8 * SECOND
AHEAD: Final = 0.25


def draw_disk_rows(setting: StorySetting) -> list[Drawn]:
    """Draw crashes, writes, reads, and truncations of the topic."""
    chance, nodes = setting.chance("rows"), setting.nodes
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


def one_is_ahead(seed: int) -> bool:
    """Return True for runs with three replicas in which one gets writes seconds before the others."""
    return Chance(seed, "rows/ahead").happens(AHEAD)


def draw_one_ahead(setting: StorySetting) -> list[Drawn]:
    """Draw ``draw_disk_rows``, and later, with all nodes up, writes, and reads while these replicate."""
    return draw_disk_rows(setting) + _ahead(setting.chance("rows/ahead/drawn"), setting.nodes)


def _ahead(chance: Chance, nodes: Sequence[str]) -> list[Drawn]:
    fast = chance.pick(nodes)
    drawn: list[Drawn] = [(0, "slow_reader", (name, chance.between(2_000, 3_500))) for name in nodes if name != fast]
    drawn += [(chance.between(6_600, 7_800) * MS, "burst", (chance.between(2, 4),)) for _ in range(3)]
    for _ in range(6):
        drawn.append((chance.between(6_500, 7_600) * MS, "read_rows", (chance.below(2), chance.below(40), AGAIN)))
    return drawn

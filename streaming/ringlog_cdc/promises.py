"""What a CDC writer promises next: the pure rules of horizon and low-watermark.

- The horizon is raised ahead of use while there is something to route, to ``lead`` beyond the clock; an idle writer
  lets it lie, so that it costs no entries and holds back no generation.
- While a generation is prepared nothing is raised; the horizon is lowered at once to just above what stored plans
  have used, so that the generation can be committed soon. It is never lowered below the floor found at registration
  nor the low-watermark.
- The low-watermark is raised to the start of a generation once everything below it is durable.

The clock decides only when to ask; the log decides what holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ringlog.kernel.state import Generation

HELD_STEPS = 10
"""While rows are held the horizon is raised at most so many times a lead: each time is an entry of the log."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A writer as the log has it, and what it used (times in microseconds).

    ``used``: the greatest timestamp or append time of any stored plan. ``active``: rows were planned lately.
    ``held``: rows wait.
    """

    horizon: int
    floor: int
    low_watermark: int
    used: int
    prepared: bool
    active: bool
    held: bool


def next_horizon(standing: Standing, now: int, lead: int) -> int | None:
    """The horizon to ask for now, or None if the present one serves."""
    if standing.prepared:
        lowest = max(standing.floor, standing.low_watermark, standing.used + 1)
        return lowest if lowest < standing.horizon else None
    left = standing.horizon - now
    short = (standing.held and left < lead - lead // HELD_STEPS) or (standing.active and left < lead // 2)
    return now + lead if short else None


def next_closing(generations: Sequence[Generation], low_watermark: int) -> Generation | None:
    """The generation whose start the low-watermark reaches next: the first that follows another and begins above."""
    followers = list(generations)[1:]
    return next((generation for generation in followers if generation.timestamp > low_watermark), None)


def closed_before(generations: Sequence[Generation], low_watermark: int) -> tuple[str, ...]:
    """Ids of the generations that ended at or before ``low_watermark``."""
    pairs = zip(generations, list(generations)[1:], strict=False)
    return tuple(earlier.id for earlier, later in pairs if later.timestamp <= low_watermark)

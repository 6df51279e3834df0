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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from ringlog.kernel.model.state import CdcWriter, Generation
from ringlog.protocol.submission.results import RejectedResult, Submitted

_REPLACED = ("stale_incarnation", "unknown_writer", "writer_fenced")
HELD_STEPS = 10
"""While rows are held the horizon is raised at most N times a lead: each time is an entry of the log."""


@dataclass(frozen=True, slots=True)
class WriterStanding:
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


def binding(folded: int, lowering: int | None) -> int:
    """The horizon that binds: the folded one, or that of a lowering whose fate is open, submitted or not yet folded."""
    return folded if lowering is None else min(folded, lowering)


def next_horizon(standing: WriterStanding, now: int, lead: int) -> int | None:
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


def closes_before_nothing(generations: Sequence[Generation], claimed: int, low_watermark: int) -> bool:
    """True if the newest closing in the chain reaches up to a generation that was withdrawn: what it closes is open.

    It takes a clock that was ahead here, too, to store such a closing; nothing can be routed behind it.
    """
    return claimed > low_watermark and all(generation.timestamp != claimed for generation in generations)


def is_replaced(answer: Submitted) -> bool:
    """Does the answer to a promise say that this incarnation promises nothing any more?"""
    return isinstance(answer, RejectedResult) and answer.code in _REPLACED


class Claim(Enum):
    """What a writer does about its low-watermark."""

    NOTHING = "nothing"
    RAISE_HORIZON = "raise horizon"
    SUBMIT = "submit"


def next_claim(mine: CdcWriter, claimed: int, is_durable: bool) -> Claim:
    """What to do about ``claimed``, the low-watermark of the newest closing in the chain.

    ``is_durable``: every part before that closing is carried out; one that is not may still write rows of what it
    closes. A low-watermark is not above the horizon, so that may have to be raised first.
    """
    if claimed <= mine.low_watermark or not is_durable:
        return Claim.NOTHING
    return Claim.RAISE_HORIZON if mine.horizon < claimed else Claim.SUBMIT


def covers(
    durable: Mapping[int, int], later: Mapping[int, int | None], ends: Mapping[int, int], clock_is_past: bool
) -> bool:
    """True if ``durable`` (source partition to offset) covers every record appended before a limit.

    ``later``: the first offset that was appended at the limit or after it, None if there is none; ``ends``: where
    each partition ends. A partition with a later record answers by itself; for another one the clock, which was looked
    at before the broker was asked, must be safely past the limit.
    """
    for partition, end in ends.items():
        first = later[partition]
        if durable.get(partition, 0) < (end if first is None else first) or (first is None and not clock_is_past):
            return False
    return True

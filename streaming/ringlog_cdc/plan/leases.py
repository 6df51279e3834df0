"""Pure rules for the next promise of a CDC writer: its horizon and its low-watermark.

* While there is something to route, the horizon is raised ahead of use, to ``lead`` past the clock. An idle writer
  leaves it unchanged, which costs no entries and delays no generation.
* While a generation is prepared, the horizon is never raised. It is lowered at once to just above the use of stored
  plans, so that the generation can be committed soon. It never goes below the low-watermark, nor below the floor found
  at registration.
* The low-watermark is raised to the start of a generation once everything below is durable.

Invariant: the clock decides only when to ask, and the log decides the outcome.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from ringlog.kernel.model.state import CdcWriter, Generation
from ringlog.kernel.values import Value
from ringlog.protocol.submission.results import RejectedResult, Submitted

_REPLACED = ("stale_incarnation", "unknown_writer", "writer_fenced")
HELD_STEPS = 10
"""While rows are held, the horizon is raised at most this number of times per lead, because each time is an entry of
the log.
"""


class WriterStanding(Value):
    """A writer's state in the log and its use so far. Times in microseconds.

    Attributes:
        floor: Horizon found at registration.
        used: Largest timestamp or append time of any stored plan.
        prepared: A generation is prepared.
        active: Rows were planned recently.
        held: Rows are waiting.
    """

    horizon: int
    floor: int
    low_watermark: int
    used: int
    prepared: bool
    active: bool
    held: bool


def binding(folded: int, lowering: int | None) -> int:
    """Return the horizon in force: the folded one, or that of a lowering that is not yet folded, if that is lower."""
    return folded if lowering is None else min(folded, lowering)


def next_horizon(standing: WriterStanding, now: int, lead: int) -> int | None:
    """Return the horizon to request, or None to keep the current one.

    Args:
        standing: The writer.
        now: Clock, microseconds.
        lead: Distance of the horizon from the clock, microseconds.
    """
    if standing.prepared:
        lowest = max(standing.floor, standing.low_watermark, standing.used + 1)
        return lowest if lowest < standing.horizon else None
    left = standing.horizon - now
    short = (standing.held and left < lead - lead // HELD_STEPS) or (standing.active and left < lead // 2)
    return now + lead if short else None


def next_closing(generations: Sequence[Generation], low_watermark: int) -> Generation | None:
    """Return the generation whose start the low-watermark reaches next, or None.

    The first generation has no predecessor to close.
    """
    followers = list(generations)[1:]
    return next((generation for generation in followers if generation.timestamp > low_watermark), None)


def closed_before(generations: Sequence[Generation], low_watermark: int) -> tuple[str, ...]:
    """Return the ids of the generations that ended at or before ``low_watermark``."""
    pairs = zip(generations, list(generations)[1:], strict=False)
    return tuple(earlier.id for earlier, later in pairs if later.timestamp <= low_watermark)


def closes_before_nothing(generations: Sequence[Generation], claimed: int, low_watermark: int) -> bool:
    """Return True if the newest closing of the chain ends at a generation that was withdrawn, so the closed ones are
    open again.

    Only a clock that was ahead here as well can store such a closing. Nothing can be routed after it.
    """
    return claimed > low_watermark and all(generation.timestamp != claimed for generation in generations)


def is_replaced(answer: Submitted) -> bool:
    """Return True if the answer to a promise means that this incarnation can make no more promises."""
    return isinstance(answer, RejectedResult) and answer.code in _REPLACED


class Claim(Enum):
    """A writer's next step for its low-watermark."""

    NOTHING = "nothing"
    RAISE_HORIZON = "raise horizon"
    SUBMIT = "submit"


def next_claim(mine: CdcWriter, claimed: int, is_durable: bool) -> Claim:
    """Return the next step for the low-watermark.

    A low-watermark must not exceed the horizon, so the horizon may have to be raised first.

    Args:
        mine: The writer.
        claimed: Low-watermark of the newest closing in the chain.
        is_durable: Every part before that closing is done. An unfinished one may still write rows into closed
            generations.
    """
    if claimed <= mine.low_watermark or not is_durable:
        return Claim.NOTHING
    return Claim.RAISE_HORIZON if mine.horizon < claimed else Claim.SUBMIT


def covers(
    durable: Mapping[int, int], later: Mapping[int, int | None], ends: Mapping[int, int], clock_is_past: bool
) -> bool:
    """Return True if all records appended before a limit are durable.

    A partition with a record after the limit proves its own case. Otherwise the clock, read before the broker was
    asked, must be safely past the limit.

    Args:
        durable: Source partition to the first offset that may not be durable.
        later: First offset appended at or after the limit, or None.
        ends: End of each partition.
        clock_is_past: The clock is safely past the limit.
    """
    for partition, end in ends.items():
        first = later[partition]
        if durable.get(partition, 0) < (end if first is None else first) or (first is None and not clock_is_past):
            return False
    return True

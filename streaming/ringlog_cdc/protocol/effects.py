"""Effects of the CDC job's protocols, in addition to those of ``ringlog.protocol.effects``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from ringlog.kernel.values import Micros
from ringlog.protocol.effects import Effect, Steps
from ringlog_cdc.plan.chain import PlanChain
from ringlog_cdc.plan.plan import PlanEntry

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Woken(Effect[None]):
    """Wait for an epoch or a ``Wake`` since the last wait, at most ``timeout`` microseconds.

    The driver raises if the job was asked to stop.
    """

    timeout: Micros


@dataclass(frozen=True, slots=True)
class Wake(Effect[None]):
    """End the current or next wait of the writer's process."""


@dataclass(frozen=True, slots=True)
class Locked(Effect[T], Generic[T]):
    """Perform the steps that ``start`` returns, one at a time. The outcome is their result. Not nested.

    Under this lock a plan is checked against the horizon and stored, and a lowering of the horizon starts and ends.
    """

    start: Callable[[], Steps[T]]


@dataclass(frozen=True, slots=True)
class OfChain(Effect[T], Generic[T]):
    """Evaluate ``read`` on the plan chain, which does not change meanwhile. The outcome is its result."""

    read: Callable[[PlanChain], T]


@dataclass(frozen=True, slots=True)
class AppendPlan(Effect[None]):
    """Store the next entry of the chain.

    Only while ``Locked``. The driver raises ChainMoved if its sequence number is in use.
    """

    entry: PlanEntry


@dataclass(frozen=True, slots=True)
class EndsOf(Effect[dict[int, int] | None]):
    """Ask for the ends of a topic.

    Outcome: partition to the offset of its next record, or None if the broker does not answer.
    """

    topic: str


@dataclass(frozen=True, slots=True)
class FirstSince(Effect[dict[int, int | None] | None]):
    """Ask for the first records since a time.

    Outcome: partition to the first offset appended at ``limit`` (microseconds) or later, or to None if there are no
    such records. None as a whole if the broker does not answer.
    """

    topic: str
    limit: Micros


def chain_head(chain: PlanChain) -> PlanEntry:
    """Return the newest entry. For ``OfChain``."""
    return chain.head

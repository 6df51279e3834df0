"""Effects of the CDC job's protocols, in addition to those of ``ringlog.protocol.effects``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from ringlog.kernel.values import Micros, Value
from ringlog.protocol.effects import Effect, Steps
from ringlog_cdc.plan.chain import PlanChain
from ringlog_cdc.plan.plan import PlanEntry

T = TypeVar("T")


class Woken(Effect[None], Value):
    """Wait for an epoch or a ``Wake`` since the last wait, at most ``timeout`` microseconds.

    The driver raises if the job was asked to stop.
    """

    timeout: Micros


class Wake(Effect[None], Value):
    """End the current or next wait of the writer's process."""


class Locked(Effect[T], Value, Generic[T]):
    """Perform the steps that ``start`` returns, one at a time. The outcome is their result. Not nested.

    Under this lock a plan is checked against the horizon and stored, and a lowering of the horizon starts and ends.
    """

    start: Callable[[], Steps[T]]


class OfChain(Effect[T], Value, Generic[T]):
    """Evaluate ``read`` on the plan chain, which does not change meanwhile. The outcome is its result."""

    read: Callable[[PlanChain], T]


class AppendPlan(Effect[None], Value):
    """Store the next entry of the chain.

    Only while ``Locked``. The driver raises ChainMoved if its sequence number is in use.
    """

    entry: PlanEntry


class EndsOf(Effect[dict[int, int] | None], Value):
    """Ask for the ends of a topic.

    Outcome: partition to the offset of its next record, or None if the broker does not answer.
    """

    topic: str


class FirstSince(Effect[dict[int, int | None] | None], Value):
    """Ask for the first records since a time.

    Outcome: partition to the first offset appended at ``limit`` (microseconds) or later, or to None if there are no
    such records. None as a whole if the broker does not answer.
    """

    topic: str
    limit: Micros


def chain_head(chain: PlanChain) -> PlanEntry:
    """Return the newest entry. For ``OfChain``."""
    return chain.head

"""Effects that the protocols of the CDC job have beside those of ``ringlog.protocol.effects``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ringlog.kernel.values import Micros
from ringlog.protocol.effects import Steps
from ringlog_cdc.plan.chain import PlanChain
from ringlog_cdc.plan.plan import PlanEntry


@dataclass(frozen=True, slots=True)
class Woken:
    """Wait for an epoch or a ``Wake`` since the last time, for ``timeout`` at most. The driver raises if the
    job was asked to stop.
    """

    timeout: Micros


@dataclass(frozen=True, slots=True)
class Wake:
    """End the wait of the writer's process, or its next one."""


@dataclass(frozen=True, slots=True)
class Locked:
    """Perform ``steps`` while no other steps of this kind are under way; outcome: what they return. Not nested.

    Under this lock a plan is checked against the horizon and stored, and a lowering of the horizon begins and ends.
    """

    steps: Steps[Any]


@dataclass(frozen=True, slots=True)
class OfChain:
    """Outcome: what ``read`` gives of the plan chain, which nobody changes meanwhile."""

    read: Callable[[PlanChain], Any]


@dataclass(frozen=True, slots=True)
class AppendPlan:
    """Store the next entry of the chain, only while ``Locked``. The driver raises ChainMoved if its place is taken."""

    entry: PlanEntry


@dataclass(frozen=True, slots=True)
class EndsOf:
    """Outcome: partition of ``topic`` to the offset of its next record; None if the broker does not answer."""

    topic: str


@dataclass(frozen=True, slots=True)
class FirstSince:
    """Outcome: partition of ``topic`` to the first offset appended at ``limit`` or later, or to None if there is none;
    None if the broker does not answer.
    """

    topic: str
    limit: Micros


def chain_head(chain: PlanChain) -> PlanEntry:
    """For ``OfChain``: the newest entry."""
    return chain.head

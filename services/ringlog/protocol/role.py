"""What all roles do first: find the cluster, read its log to the end, take the role over.

Each instance serves one term. An instance that slept since its take-over could fence the active one. So a role with
a transactional id reads the log again, and initialises the id only if no other instance has taken over.
"""

from __future__ import annotations

from dataclasses import dataclass

from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Micros
from ringlog.protocol.effects import FOREVER, CatchUp, FaultPoint, Steps, Until
from ringlog.protocol.submission.direct import Direct


@dataclass(frozen=True, slots=True)
class BecomeActive:
    """Start to be the active instance of the role, in ``term``."""

    term: int


@dataclass(frozen=True, slots=True)
class CheckSuperseded:
    """Check that this instance may continue. The driver raises if the folded log names another active instance, or if
    a stop was requested.
    """


@dataclass(frozen=True, slots=True)
class Initialise:
    """Take the role's transactional id: its last holder publishes nothing any more."""


@dataclass(frozen=True, slots=True)
class StartServing:
    """Start to handle requests and records: the preparations are over."""


def superseded(state: ClusterState, role: str, term: int) -> str | None:
    """Why the instance that acts in ``term`` (0: none yet) must end; None if no higher term is in ``state``."""
    acting = state.terms.get(role)
    if acting is None or not acting.term > term > 0:
        return None
    return f"term {acting.term} of {role} was taken by instance {acting.instance}"


def take_role(direct: Direct, role: str, instance: str, timeout: Micros | None = None) -> Steps[int]:
    """Wait for the cluster, read all of its log, and take the role over; gives the term. Raises as ``take_over``."""
    yield Until(lambda state: state.epoch > 0 or None, FOREVER, "the cluster to be founded")
    yield CatchUp()
    taken = yield from direct.take_over(role, instance, timeout)
    yield BecomeActive(taken.term)
    yield CheckSuperseded()
    yield FaultPoint(f"took over {role}")
    return taken.term


def take_id() -> Steps[None]:
    """Take the role's transactional id, unless another instance acts by now."""
    yield CatchUp()
    yield CheckSuperseded()
    yield Initialise()

"""What all roles do first: find the cluster, read its log to the end, take the role over.

Each instance serves one term. An instance that slept since its take-over would shut out the one that acts now; so a
role that holds a transactional id confirms, by the log as it is now, that nobody has taken over before it takes the id.
"""

from __future__ import annotations

from dataclasses import dataclass

from ringlog.kernel.state import ClusterState
from ringlog.kernel.values import Micros
from ringlog.protocol.direct import Direct
from ringlog.protocol.effects import FOREVER, At, CatchUp, Steps, Until


@dataclass(frozen=True, slots=True)
class Acts:
    """From here on this instance acts, in ``term``."""

    term: int


@dataclass(frozen=True, slots=True)
class Look:
    """The driver raises if this instance must not go on: another acts as far as was folded, or it was asked to stop."""


@dataclass(frozen=True, slots=True)
class Initialise:
    """Take the role's transactional id: its last holder publishes nothing any more."""


@dataclass(frozen=True, slots=True)
class Accept:
    """Preparations are over: what comes in is worked on from here on."""


def superseded(state: ClusterState, role: str, term: int) -> str | None:
    """Why the instance that acts in ``term`` (0: none yet) must end; None if no higher term is in ``state``."""
    known = state.terms.get(role)
    if known is None or not known.term > term > 0:
        return None
    return f"term {known.term} of {role} was taken by instance {known.instance}"


def take_role(direct: Direct, role: str, instance: str, patience: Micros | None = None) -> Steps[int]:
    """Wait for the cluster, read all of its log, and take the role over; gives the term. Raises as ``take_over``."""
    yield Until(lambda state: state.epoch > 0 or None, FOREVER, "the cluster to be founded")
    yield CatchUp()
    taken = yield from direct.take_over(role, instance, patience)
    yield Acts(taken.term)
    yield Look()
    yield At(f"took over {role}")
    return taken.term


def take_id() -> Steps[None]:
    """Take the role's transactional id, unless another instance acts by now."""
    yield CatchUp()
    yield Look()
    yield Initialise()

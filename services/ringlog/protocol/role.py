"""The start of every role: find the cluster, read its log to the end, and become the active instance.

Each instance serves one term. An instance that slept since its take-over could fence the active one. So a role with
a transactional id reads the log again, and initialises the id only if no other instance has taken over.
"""

from __future__ import annotations

from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Micros, Value
from ringlog.protocol.effects import FOREVER, CatchUp, Effect, FaultPoint, Until
from ringlog.protocol.submission.direct import Direct


class BecomeActive(Effect[None], Value):
    """Start to be the active instance of the role, in ``term``."""

    term: int


class CheckSuperseded(Effect[None], Value):
    """Check that this instance may continue. The driver raises if the folded log names another active instance, or if
    a stop was requested.
    """


class Initialise(Effect[None], Value):
    """Take the role's transactional id, so the previous instance can no longer publish."""


class StartServing(Effect[None], Value):
    """Start to handle requests and records: the preparations are over."""


def superseded(state: ClusterState, role: str, term: int) -> str | None:
    """Return the reason why the instance of ``term`` (0: none yet) must end; None if ``state`` has no higher term."""
    acting = state.terms.get(role)
    if acting is None or not acting.term > term > 0:
        return None
    return f"term {acting.term} of {role} was taken by instance {acting.instance}"


async def take_role(direct: Direct, role: str, instance: str, timeout: Micros | None = None) -> int:
    """Wait for the cluster, read all of its log, and take the role over. Return the term. Raise as ``take_over``."""
    await Until(lambda state: state.epoch > 0 or None, FOREVER, "the cluster to be created")
    await CatchUp()
    taken = await direct.take_over(role, instance, timeout)
    await BecomeActive(taken.term)
    await CheckSuperseded()
    await FaultPoint(f"took over {role}")
    return taken.term


async def take_id() -> None:
    """Take the role's transactional id, unless another instance acts by now."""
    await CatchUp()
    await CheckSuperseded()
    await Initialise()

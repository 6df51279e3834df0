"""Health and metrics of an agent: pure functions of one view of its process (``ProcessView``).

================  =====  ==============================================================================================
state             ready  when
================  =====  ==============================================================================================
``starting``      no     it waits for its topics or for the broker
``stands_by``     yes    another instance is active in the role, and this one can replace it
``taking_over``   no     it reads the log before it takes over the role, and does not work yet
``active``        yes    it does the role's work
``broker_away``   no     the broker does not answer, in any of the states above except ``starting``
``ended``         no     it was superseded, crashed or halted, and its process ends; ``why`` names the reason
================  =====  ==============================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from ringlog.agents.exits import CRASHED, HALTED, STOPPED, SUPERSEDED, End
from ringlog.kernel.values import Epoch, Micros, Value
from ringlog.log.replicas.metrics import LogView, log_samples, process_samples
from ringlog.runtime.monitoring.health import Health, StateSince
from ringlog.runtime.monitoring.metrics import Sample

STARTING, STANDS_BY, TAKING_OVER, ACTIVE = "starting", "stands_by", "taking_over", "active"
BROKER_AWAY, ENDED = "broker_away", "ended"
STATES: Final = (STARTING, STANDS_BY, TAKING_OVER, ACTIVE, BROKER_AWAY, ENDED)
_ENDS: Final = {STOPPED: "stopped", CRASHED: "crashed", SUPERSEDED: "superseded", HALTED: "halted"}


class RoleView(Value):
    """A view of a worker that has the role, or is taking it over.

    ``is_active``: it does the role's work. ``handled``: the last epoch that its work is done for. ``refused``: the
    number of its rejected proposals. ``alarm``: a broken invariant of its state; empty: none. ``more``: metrics of the
    role. ``waits``: the wait of its maintenance work, with its start; empty: none.
    """

    log: LogView
    term: int = 0
    is_active: bool = False
    handled: Epoch = 0
    refused: int = 0
    alarm: str = ""
    more: tuple[Sample, ...] = ()
    waits: str = ""


class ProcessView(Value):
    """A view of an agent's process.

    ``waits``: the wait before its start; None after it. ``away``: a text about an unavailable broker; empty: it
    answers. ``end``: the end of its worker; None: it has not ended. ``worker``: None on stand-by.
    """

    waits: str | None = None
    away: str = ""
    end: End | None = None
    worker: RoleView | None = None


def health_of(view: ProcessView) -> Health:
    """Return the health of an agent: the first state that holds, from its end to its work."""
    worker = view.worker

    def is_in(state: str, why: str, is_ready: bool = False) -> Health:
        known = (None, None) if worker is None else (worker.log.epoch, worker.log.behind)
        return Health(state, is_ready, why, *known)

    if view.end is not None:
        return is_in(ENDED, f"{_ENDS[view.end.code]}: {view.end.detail}")
    if worker is not None and worker.log.halted is not None:
        return is_in(ENDED, f"halted: {worker.log.halt}")
    if view.waits is not None:
        return is_in(STARTING, view.waits)
    if view.away:
        return is_in(BROKER_AWAY, view.away)
    if worker is None:
        return is_in(STANDS_BY, "another instance is active in this role", is_ready=True)
    if worker.log.silent_s is not None and worker.log.outage:
        return is_in(BROKER_AWAY, worker.log.outage)
    if not worker.is_active:
        doing = (
            f"the agent prepares the work of term {worker.term}"
            if worker.term
            else "the agent reads the log before it becomes the active instance"
        )
        return is_in(TAKING_OVER, doing)
    return is_in(ACTIVE, worker.alarm or worker.waits, is_ready=True)


def samples_of(view: ProcessView, now: Micros) -> Iterator[Sample]:
    """Yield the metrics of an agent. ``now``: its clock."""
    health = health_of(view)
    yield from process_samples(now)
    yield Sample("ringlog_agent_ready", health.is_ready)
    yield from (Sample("ringlog_agent_state", state == health.state, (state,)) for state in STATES)
    if (worker := view.worker) is not None:
        yield from log_samples(worker.log)
        yield Sample("ringlog_agent_term", worker.term)
        yield Sample("ringlog_agent_handled_epoch", worker.handled)
        yield Sample("ringlog_agent_refused_proposals", worker.refused)
        yield Sample("ringlog_agent_broken_state", worker.alarm != "")
        yield from worker.more


class AgentWatch:
    """The watch of one agent. ``look``: returns the view of its process. Until it is set, ``waits`` is shown."""

    def __init__(self, role: str, now: Callable[[], Micros]) -> None:
        self.labels: Mapping[str, str] = {"role": role}
        self.waits = "the agent searches for its topics"
        self.look: Callable[[], ProcessView] | None = None
        self._now = now
        self._since = StateSince(now)

    def health(self) -> tuple[Health, Micros]:
        """See ``WatchedProcess``."""
        found = health_of(self._view())
        return found, self._since.of(found.state)

    def samples(self) -> Iterator[Sample]:
        """See ``WatchedProcess``."""
        return samples_of(self._view(), self._now())

    def _view(self) -> ProcessView:
        return ProcessView(self.waits) if self.look is None else self.look()

"""Moments: named points of a run at which actions can be armed. Faults at random times rarely hit these points.

A process calls ``at`` when it reaches a point: directly before it publishes, between fence and barrier, with unstored
rows. An applied entry is also a moment, by its kind or by the stage that an operation enters. A script's action
``when`` arms one of them, for its n-th occurrence from then on. An unarmed moment costs almost nothing and has no
effect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ringlog.kernel.commands.topology.operations import AdvanceOperation
from ringlog.kernel.model.outcome import Entry
from ringlog.kernel.model.state import ClusterState
from ringlog_sim.devices.listener import RunListener
from ringlog_sim.devices.world import MS, SimHost, SimWorld, Work

HERE = "@"
"""The name that represents the host whose process has reached the moment."""
DAWDLE = "dawdle"
"""An action that delays the process itself for this number of milliseconds, while its host continues."""

Happen = Callable[[int, str, tuple[Any, ...]], None]


@dataclass(slots=True)
class Armed:
    """An armed action: at the ``left``-th occurrence of ``moment``, ``what`` happens ``delay`` milliseconds later."""

    number: int
    moment: str
    left: int
    delay: int
    what: str
    arguments: tuple[Any, ...]


class Moments(RunListener):
    """The armed actions. While there are any, it listens to entries like a check, among ``listeners``.

    ``did``: the counters of the run.
    """

    def __init__(self, world: SimWorld, did: Counter[tuple[str, ...]], listeners: list[RunListener]) -> None:
        self._world = world
        self._did = did
        self._listeners = listeners
        self.happen: Happen = lambda *_: None
        self._armed: list[Armed] = []

    def arm(self, number: int, moment: str, left: int, delay: int, what: str, *arguments: Any) -> None:
        """Arm a moment. ``number``: action number, the seed of the armed action's draws."""
        if self not in self._listeners:
            self._listeners.append(self)
        self._armed.append(Armed(number, moment, left, delay, what, arguments))

    def disarm(self) -> None:
        """Disarm all moments."""
        self._armed.clear()
        self.happen = lambda *_: None

    def at(self, moment: str, host: SimHost) -> Work:
        """Report that a process on ``host`` has reached a moment. Its armed actions happen before the process
        continues.
        """
        if not self._armed:
            return
        for armed in self._take_ready(moment, f"{moment}@{host.name}"):
            self._trace(armed)
            if armed.what == DAWDLE:
                yield armed.arguments[0] * MS
                continue
            here = tuple(host.name if argument == HERE else argument for argument in armed.arguments)
            self._schedule(armed, here)
            if not armed.delay:
                yield 1

    def applied(self, before: ClusterState, after: ClusterState, item: Entry, offset: int) -> None:
        """Treat an applied entry as a moment, by its kind and, if it advances an operation, by the stage."""
        stage = f"stage {item.command.to}" if isinstance(item.command, AdvanceOperation) else item.kind
        for armed in self._take_ready(item.kind, stage):
            self._trace(armed)
            self._schedule(armed, armed.arguments)

    def _take_ready(self, *names: str) -> list[Armed]:
        """Return and disarm the actions for these names whose last occurrence this is."""
        ready = []
        for armed in tuple(self._armed):
            if armed.moment in names:
                armed.left -= 1
                if armed.left <= 0:
                    self._armed.remove(armed)
                    ready.append(armed)
        return ready

    def _schedule(self, armed: Armed, arguments: tuple[Any, ...]) -> None:
        self._world.on(None, armed.delay * MS, lambda _: self.happen(armed.number, armed.what, arguments))

    def _trace(self, armed: Armed) -> None:
        self._did["moment", armed.moment.partition("@")[0], armed.what] += 1
        if self._world.tracing:
            self._world.tell("moment", f"{armed.moment}: {armed.what} {armed.arguments} in {armed.delay} ms")

"""Moments: named points of a run for which something is armed, since faults at random times hardly ever meet them.

A process tells ``at`` that it has come to a point: just before it publishes, between fence and barrier, with rows in
its hand. An entry that is applied is a moment, too, by its kind or by the stage that an operation enters. An action
``when`` of a script arms one of them, for the n-th time from then on. Where nothing is armed a moment costs next to
nothing and changes nothing.
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
"""Stands for the host whose process has come to the moment."""
DAWDLE = "dawdle"
"""The process itself takes that many milliseconds, while everything else on its host goes on."""

Happen = Callable[[int, str, tuple[Any, ...]], None]


@dataclass(slots=True)
class Armed:
    """At the ``left``-th time from now that ``moment`` comes, ``what`` happens ``delay`` milliseconds later."""

    number: int
    moment: str
    left: int
    delay: int
    what: str
    arguments: tuple[Any, ...]


class Moments(RunListener):
    """What is armed. While something is, it hears of entries as checks do, among ``listeners``; it judges nothing.

    ``did``: what the run counts.
    """

    def __init__(self, world: SimWorld, did: Counter[tuple[str, ...]], listeners: list[RunListener]) -> None:
        self._world = world
        self._did = did
        self._listeners = listeners
        self.happen: Happen = lambda *_: None
        self._armed: list[Armed] = []

    def arm(self, number: int, moment: str, left: int, delay: int, what: str, *arguments: Any) -> None:
        """Arm a moment; ``number``: that of the action, from which what happens draws."""
        if self not in self._listeners:
            self._listeners.append(self)
        self._armed.append(Armed(number, moment, left, delay, what, arguments))

    def disarm(self) -> None:
        """Nothing happens any more."""
        self._armed.clear()
        self.happen = lambda *_: None

    def at(self, moment: str, host: SimHost) -> Work:
        """A process on ``host`` has come to a moment: what is armed happens before it goes on."""
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
        """An applied entry is a moment by its kind; one that moves an operation on, by the stage as well."""
        stage = f"stage {item.command.to}" if isinstance(item.command, AdvanceOperation) else item.kind
        for armed in self._take_ready(item.kind, stage):
            self._trace(armed)
            self._schedule(armed, armed.arguments)

    def _take_ready(self, *names: str) -> list[Armed]:
        """Whatever is armed for a moment of these names and has waited for the last time; it is not armed any more."""
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

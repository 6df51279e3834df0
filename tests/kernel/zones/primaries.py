"""Two primaries: a partition of the log, its nodes, each of which knows a beginning of the log, and what they said.

Decisions are the kernel's own functions; a step counts by ``protocol.rebalancer.zone_groups``, words are those of
``node.protocol.groups``. A node hears of one entry after the other, says what it has to say when that is on its disk,
and forgets the rest when it crashes. It acts under what it knows: with a step before it that is the voters before the
step and those after it. A primary is confirmed if majorities of each of these know the same as it does.

Promise: of what nodes know at one moment, one thing at most has a confirmed primary. Without a rule some order of
events breaks it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from ringlog.kernel.model.zones import ZonePartition, ZoneRevisions, ZoneStep
from ringlog.kernel.values import StreamReport
from ringlog.kernel.zones.rebalance import ALREADY_NEW, ROLLED_BACK, cancel_finished, cancelled, switched, triggered
from ringlog.node.protocol.groups import Member
from ringlog.protocol.coordinator.tablet_steps import NOTHING
from ringlog.protocol.rebalancer.zone_groups import HAS, SessionReports, added_nodes, awaited, awaiting_return, session
from tests.kernel.zones.scenes import NoRows

RULES = {
    "before": "a step counts only when a majority of the voters before it has it",
    "disk": "a node says that it has a step when that is on its disk",
    "revision": "a word counts for one revision",
    "joint": "a node acts under the voters before a step and after it until the step counts",
}
"""The rules that can be left out."""

Groups = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class World:
    """``log``: the partition at each epoch. ``knows``, ``kept``: how much of it each node knows, and has on its disk;
    ``goals``: where the partition is to go yet; ``cancels``: how many may come.
    """

    log: tuple[ZonePartition, ...]
    knows: tuple[int, ...]
    kept: tuple[int, ...]
    goals: tuple[tuple[str, ...], ...]
    cancels: int


def beginning(nodes: int, goals: tuple[str, ...], cancels: int = 1) -> World:
    """All nodes know that the first goal is where the partition is; each letter is a node."""
    first = ZoneStep(tuple(goals[0]))
    one = ZonePartition("z", 0, first, first, revisions=ZoneRevisions(stable=1))
    return World((one, one), (1,) * nodes, (1,) * nodes, tuple(tuple(goal) for goal in goals[1:]), cancels)


def name(number: int) -> str:
    return chr(ord("a") + number)


class Primaries:
    """What may happen; without the rule ``left_out``."""

    def __init__(self, left_out: str = "", crashes: bool = True) -> None:
        self.left_out = left_out
        self.crashes = crashes
        self.seen = 0

    def events(self, world: World) -> Iterator[tuple[str, World]]:
        for number, (knows, kept) in enumerate(zip(world.knows, world.kept, strict=True)):
            who = name(number)
            if knows + 1 < len(world.log):
                yield f"{who} hears of {knows + 1}", replace(world, knows=_with(world.knows, number, knows + 1))
            if kept < knows:
                yield f"{who} has it on its disk, and says so", replace(world, kept=_with(world.kept, number, knows))
                if self.crashes:
                    yield f"{who} crashes", replace(world, knows=_with(world.knows, number, kept))
        yield from self.decisions(world)

    def decisions(self, world: World) -> Iterator[tuple[str, World]]:
        one, epoch = world.log[-1], len(world.log)
        if world.goals and not one.pending:
            goal = ZoneStep(world.goals[0])
            after = triggered(one, goal, epoch, epoch)
            assert after is not None
            yield f"it is to go to {''.join(goal.peers)}", replace(_appended(world, after), goals=world.goals[1:])
        if not one.pending:
            return
        words = self.words(world)
        applied = not self.awaited(one, words)
        if one.cancel is None:
            if applied:
                yield "the step counts", _appended(world, switched(one, None, epoch))
            if world.cancels:
                yield "it is cancelled", replace(_appended(world, cancelled(one)), cancels=world.cancels - 1)
        elif applied:
            yield "the step counts after all", _appended(world, cancel_finished(one, ALREADY_NEW, None, epoch))
        elif not awaiting_return(one, words):
            yield "it is undone", _appended(world, cancel_finished(one, ROLLED_BACK, None, epoch))

    def words(self, world: World) -> SessionReports:
        """What nodes have said last."""
        said: dict[str, dict[str, StreamReport]] = {}
        heard = world.knows if self.left_out == "disk" else world.kept
        for number, at in enumerate(heard):
            one = world.log[at]
            word = Member(name(number), NoRows())._report_kind(one, at) if one.pending else ""
            if word:
                of = world.log[-1] if self.left_out == "revision" else one
                report = StreamReport(name(number), session(of, word), 0, NOTHING)
                said.setdefault(report.operation, {})[name(number)] = report
        return said

    def awaited(self, one: ZonePartition, words: SessionReports) -> bool:
        if self.left_out != "before":
            return bool(awaited(one, words))
        having = words.get(session(one, HAS), {})
        return not added_nodes(one) <= set(having) or not _most(one.pending[0].peers, having)

    def acting(self, one: ZonePartition) -> Groups:
        """The voters of which majorities are needed by who knows this."""
        new = (one.pending[0].peers,) if one.pending else ()
        old = () if one.reached is None or (new and self.left_out == "joint") else (one.reached.peers,)
        return (*old, *new)

    def confirmed(self, world: World) -> list[int]:
        """The epochs of log entries that say what majorities act under, each of another revision."""
        views: dict[tuple[int, int], list[int]] = {}
        for number, at in enumerate(world.knows):
            revisions = world.log[at].revisions
            views.setdefault((revisions.stable, revisions.pending), []).append(number)
        found = []
        for numbers in views.values():
            at, nodes = world.knows[numbers[0]], {name(number) for number in numbers}
            if all(_most(group, nodes) for group in self.acting(world.log[at])):
                found.append(at)
        return found

    def explore(self, first: World) -> tuple[str, ...] | None:
        """The shortest way to two primaries; None if there is none."""
        came: dict[World, tuple[World, str] | None] = {first: None}
        waiting = deque([first])
        while waiting:
            world = waiting.popleft()
            self.seen += 1
            for event, after in self.events(world):
                if after in came:
                    continue
                came[after] = (world, event)
                if len(self.confirmed(after)) > 1:
                    return _way(came, after)
                waiting.append(after)
        return None


def _most(group: tuple[str, ...], nodes: Collection[str]) -> bool:
    return 2 * len([node for node in group if node in nodes]) > len(group)


def _with(values: tuple[int, ...], place: int, value: int) -> tuple[int, ...]:
    return (*values[:place], value, *values[place + 1 :])


def _appended(world: World, one: ZonePartition) -> World:
    return replace(world, log=(*world.log, one))


def _way(came: dict[World, tuple[World, str] | None], world: World) -> tuple[str, ...]:
    events: list[str] = []
    before = came[world]
    while before is not None:
        events.append(before[1])
        before = came[before[0]]
    return tuple(events[::-1])

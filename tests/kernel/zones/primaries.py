"""Explores a partition for two primaries: its log, its nodes with prefixes of the log, and their reports.

Decisions are the kernel's functions. ``protocol.rebalancer.zone_groups`` counts the reports for a step, and
``protocol.nodes.groups`` creates them. A node applies entries in order, reports after they are on its disk, and loses
the others in a crash. During a step it acts for the voters before and after the step. A primary is confirmed if
majorities of both know the same log as the node.

Invariant: at each time, at most one revision has a confirmed primary. Without one of the rules, some order of events
violates it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator

from ringlog.kernel.model.zones import ZonePartition, ZoneRevisions, ZoneStep
from ringlog.kernel.values import StreamReport, Value, replace
from ringlog.kernel.zones.rebalance import ALREADY_NEW, ROLLED_BACK, cancel_finished, cancelled, switched, triggered
from ringlog.protocol.coordinator.tablet_steps import NOTHING
from ringlog.protocol.nodes.groups import Member
from ringlog.protocol.rebalancer.zone_groups import (
    HAS,
    SessionReports,
    added_nodes,
    awaiting_return,
    session,
    unanswered_nodes,
)
from tests.kernel.zones.states import NoRows

RULES = {
    "before": "a step counts only when a majority of the voters before it has it",
    "disk": "a node says that it has a step when that is on its disk",
    "revision": "a word counts for one revision",
    "joint": "a node acts under the voters before a step and after it until the step counts",
}
"""Rules that can be disabled."""

Groups = tuple[tuple[str, ...], ...]


class World(Value, dict=True):
    """One situation.

    Attributes:
        log: the partition at each epoch.
        knows, kept: the entries that each node has applied, and has on disk.
        goals: further targets of the partition.
        cancels: number of cancels left.
    """

    log: tuple[ZonePartition, ...]
    knows: tuple[int, ...]
    kept: tuple[int, ...]
    goals: tuple[tuple[str, ...], ...]
    cancels: int


def beginning(nodes: int, goals: tuple[str, ...], cancels: int = 1) -> World:
    """Return the world with the partition at the first goal, known to all nodes. Each letter is a node."""
    first = ZoneStep(tuple(goals[0]))
    one = ZonePartition("z", 0, first, first, revisions=ZoneRevisions(stable=1))
    return World((one, one), (1,) * nodes, (1,) * nodes, tuple(tuple(goal) for goal in goals[1:]), cancels)


def name(number: int) -> str:
    return chr(ord("a") + number)


class Primaries:
    """Possible events, without the rule ``left_out``."""

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
        """Return the last reports of the nodes."""
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
            return bool(unanswered_nodes(one, words))
        having = words.get(session(one, HAS), {})
        return not added_nodes(one) <= set(having) or not _most(one.pending[0].peers, having)

    def acting(self, one: ZonePartition) -> Groups:
        """Return the groups of voters that a node with this entry needs majorities of."""
        new = (one.pending[0].peers,) if one.pending else ()
        old = () if one.reached is None or (new and self.left_out == "joint") else (one.reached.peers,)
        return (*old, *new)

    def confirmed(self, world: World) -> list[int]:
        """Return the epochs of entries, one for each revision, with the majorities of its groups."""
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
        """Return the shortest sequence of events to two primaries, or None."""
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

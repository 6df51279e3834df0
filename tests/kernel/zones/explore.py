"""Explore a partition, its group and their messages in each order of events, then again without each rule.

``python -m tests.kernel.zones.explore`` prints a Markdown table (``make explore``). The exit status is 1 if an
invariant fails with all rules, or if none fails without one of them.

The world has one partition of the log, decided by the kernel's functions, and a group with a configuration, possibly
with a step in progress. The leader sends the pending step of the log, or its cancel. Each message may be late, repeated
or lost. Invariants:

- a configuration recorded as reached is the group's configuration at that time;
- a planned step requires a pending step;
- a group starts the pending step, even if the same step was cancelled before;
- a cancel reverts only its own step, and the same cause does not start that step again;
- without a pending step, the partition is at the target of the last accepted trigger, unless a cancel followed.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator

from ringlog.kernel.model.zones import ZonePartition, ZoneStep
from ringlog.kernel.values import Value, replace
from ringlog.kernel.zones.queue import is_same
from ringlog.kernel.zones.rebalance import (
    ALREADY_NEW,
    ALREADY_OLD,
    PLANNED_REMOVED,
    ROLLED_BACK,
    cancel_finished,
    cancelled,
    outdated_keys,
    switched,
    triggered,
)

RULES = {
    "cause": "a trigger counts only if its cause is newer",
    "orphan": "a target that is stable already is not planned",
    "again": "a target that is being cancelled is planned",
    "applied": "a switch names the revision of pending that was applied",
    "meant": "a cancel names the revision of pending that is meant",
    "answered": "the end of a cancel names what was cancelled",
    "wins": "a group that was sent a cancel begins nothing that is not newer",
    "third": "a group that has applied the step says so, and it counts",
    "anew": "what is begun again after a cancel has a revision of its own",
    "mark": "a trigger that takes a plan away is acted on, too",
}
"""Rules that can be disabled."""

A, B = ZoneStep(("a",)), ZoneStep(("b",))
Follow = Callable[[], "World"]
Message = tuple[str, int, ZoneStep | None, str]
"""(kind, revision or cause, step, result)."""


class World(Value, dict=True):
    """The log's partition, the group, the possible messages, and the expected target.

    ``heard`` is the cause of the last accepted trigger, ``undone`` that of the trigger before the last cancel.
    """

    partition: ZonePartition
    epoch: int = 1
    target: ZoneStep = A
    conf: ZoneStep = A
    applying: tuple[ZoneStep, int] | None = None
    seen: tuple[int, int] = (0, 0)
    messages: frozenset[Message] = frozenset()
    changes: int = 2
    cancels: int = 1
    owed: ZoneStep | None = None
    heard: int = 0
    undone: int = 0


class Broken(Exception):
    """A violated invariant."""


class Explorer:
    """All worlds reachable from the first, without the rules ``left_out``."""

    def __init__(self, left_out: str = "", *, changes: int = 2, cancels: int = 1) -> None:
        self.left_out = left_out
        first = ZonePartition("z", 0, A, A)
        self.first = World(first, changes=changes, cancels=cancels)
        self.seen = 0

    def explore(self) -> tuple[str, ...] | None:
        """Return the shortest sequence of events that violates an invariant, and the invariant, or None."""
        came: dict[World, tuple[World, str] | None] = {self.first: None}
        waiting = deque([self.first])
        while waiting:
            world = waiting.popleft()
            self.seen += 1
            for event, follow in self.events(world):
                try:
                    after = follow()
                    check_invariants(after)
                except Broken as broken:
                    return (*_way(came, world), event, f"broken: {broken}")
                if after not in came:
                    came[after] = (world, event)
                    waiting.append(after)
        return None

    def has(self, rule: str) -> bool:
        return self.left_out != rule

    def events(self, world: World) -> Iterator[tuple[str, Follow]]:
        """Yield the possible next events."""
        one = world.partition
        if world.changes:
            yield "the nodes change", lambda: self.changed(world)
        revision = one.revisions.pending
        if one.pending and one.cancel is None:
            yield from _sent(world, ("rebalance", revision, one.pending[0], ""))
            if world.cancels:
                intent: Message = ("intent", revision, None, "")
                yield "an operator cancels", lambda: replace(_with(world, intent), cancels=world.cancels - 1)
        if one.cancel is not None:
            yield from _sent(world, ("cancel", one.cancel.revision, one.cancel.new, ""))
        if world.applying is not None:
            yield "the group applies its step", lambda: applied(world)
        for message in sorted(world.messages, key=repr):
            yield f"{message[0]} {message[1]} arrives", lambda message=message: self.arrives(world, message)  # type: ignore[misc]

    def changed(self, world: World) -> World:
        target = B if world.target is A else A
        after = replace(world, epoch=world.epoch + 1, target=target, changes=world.changes - 1)
        return _with(after, ("trigger", after.epoch, None, ""))

    def arrives(self, world: World, message: Message) -> World:
        kind, number, step, result = message
        if kind == "trigger":
            return self.trigger(world, number)
        if kind == "rebalance" and step is not None:
            return self.rebalance(world, step, number)
        if kind == "cancel" and step is not None:
            return self.cancel(world, step, number)
        if kind == "applied" and step is not None:
            return self.switch(world, step, number)
        if kind == "intent":
            return self.intent(world, number)
        return self.answer(world, number, result)

    # Log

    def trigger(self, world: World, cause: int) -> World:
        one, epoch = world.partition, world.epoch + 1
        if not self.has("cause"):
            one = replace(one, change=0)
        leads_there = bool(one.pending) and is_same(one.pending[-1], world.target)
        if not self.has("orphan") and not one.pending and is_same(one.stable, world.target):
            after: ZonePartition | None = replace(one, planned=world.target, change=cause)
        elif not self.has("again") and one.cancel is not None and leads_there and one.change < cause:
            after = replace(one, planned=None, change=cause)
        else:
            after = triggered(one, world.target, cause, epoch)
        if after is None:
            return world
        if cause <= world.undone and after.pending and not world.partition.pending:
            raise Broken("what was cancelled is begun again by its own cause")
        if not self.has("mark") and after.status == PLANNED_REMOVED:
            after = replace(after, change=world.partition.change)
        return replace(world, partition=after, epoch=epoch, owed=world.target, heard=cause)

    def switch(self, world: World, step: ZoneStep, revision: int) -> World:
        one, epoch = world.partition, world.epoch + 1
        seen = one.revisions if not self.has("applied") else replace(one.revisions, pending=revision)
        if not one.pending or outdated_keys(one, seen) or not is_same(step, one.pending[0]):
            return world
        return _recorded(replace(world, partition=switched(one, None, epoch), epoch=epoch))

    def intent(self, world: World, revision: int) -> World:
        one = world.partition
        if not one.pending or one.cancel is not None or (self.has("meant") and revision != one.revisions.pending):
            return world
        if revision != one.revisions.pending:
            raise Broken("a cancel undoes what came later")
        return replace(world, partition=cancelled(one), epoch=world.epoch + 1, owed=None, undone=world.heard)

    def answer(self, world: World, revision: int, result: str) -> World:
        one, epoch = world.partition, world.epoch + 1
        if one.cancel is None or (self.has("answered") and one.cancel.revision != revision):
            return world
        result = result if self.has("third") else ROLLED_BACK
        after = cancel_finished(one, result, None, epoch)
        if not self.has("anew") and after.pending == one.pending:
            after = replace(after, revisions=replace(after.revisions, pending=one.revisions.pending))
        return _recorded(replace(world, partition=after, epoch=epoch))

    # Group

    def rebalance(self, world: World, step: ZoneStep, revision: int) -> World:
        if (revision, 0) < (world.seen if self.has("wins") else (world.seen[0], 0)):
            return world
        world = replace(world, seen=max(world.seen, (revision, 0)))
        if is_same(world.conf, step) and world.applying is None:
            return _with(world, ("applied", revision, step, ""))
        return replace(world, applying=(step, revision))

    def cancel(self, world: World, step: ZoneStep, revision: int) -> World:
        if (revision, 1) < world.seen:
            return world
        world = replace(world, seen=(revision, 1))
        if is_same(world.conf, step):
            result = ALREADY_NEW
        else:
            result = ROLLED_BACK if world.applying is not None else ALREADY_OLD
        return _with(replace(world, applying=None), ("answer", revision, None, result))


def applied(world: World) -> World:
    """Return the world after the group has applied its step and reported it."""
    assert world.applying is not None
    step, revision = world.applying
    return _with(replace(world, conf=step, applying=None), ("applied", revision, step, ""))


def check_invariants(world: World) -> None:
    """Raise ``Broken`` for a violated invariant."""
    one = world.partition
    if one.planned is not None and not one.pending:
        raise Broken("a plan with nothing before it")
    if one.pending and one.cancel is None and world.seen == (one.revisions.pending, 1):
        raise Broken("the group takes what is pending for what was cancelled")
    if not one.pending and world.owed is not None and not is_same(one.stable, world.owed):
        raise Broken("a trigger that was accepted is lost")


def _recorded(world: World) -> World:
    if not is_same(world.partition.reached, world.conf):
        raise Broken("the log records what the group does not have")
    return world


def _with(world: World, message: Message) -> World:
    return replace(world, messages=world.messages | {message})


def _sent(world: World, message: Message) -> Iterator[tuple[str, Follow]]:
    if message not in world.messages:
        yield f"{message[0]} {message[1]} is sent", lambda: _with(world, message)


def _way(came: dict[World, tuple[World, str] | None], world: World) -> list[str]:
    events: list[str] = []
    before = came[world]
    while before is not None:
        events.append(before[1])
        before = came[before[0]]
    return events[::-1]


def main() -> int:
    """Print the table and return the exit status."""
    print("| without the rule | states | shortest counterexample |\n|---|---|---|")
    wrong = False
    for rule in ("", *RULES):
        explorer = Explorer(rule, changes=3, cancels=2)
        found = explorer.explore()
        wrong |= (found is None) is bool(rule)
        print(f"| {RULES.get(rule, '(none)')} | {explorer.seen:,} | {'; '.join(found or ('none',))} |")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())

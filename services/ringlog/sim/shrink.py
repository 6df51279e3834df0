"""A failing script cut down: fewer actions, then a smaller cluster, as long as the same promise is broken.

Since every action draws from a stream of its own, what is left behaves much as before. Removing is tried in halves,
quarters and so on (Zeller's ddmin), then one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from ringlog.sim.run import RunReport, run_script
from ringlog.sim.script import Action, Script

RUNS_MAX = 400


class _Shrinker:
    def __init__(self, rule: str, play: Callable[[Script], RunReport], runs_max: int) -> None:
        self.rule = rule
        self.play = play
        self.left = runs_max

    def fails(self, script: Script) -> bool:
        """True if ``script`` breaks the same promise."""
        self.left -= 1
        return self.play(script).rule == self.rule

    def actions(self, script: Script) -> Script:
        """Fewer actions."""
        size = max(len(script.actions) // 2, 1)
        while self.left > 0:
            shorter = next(
                (made for made in _without(script, size) if self.left > 0 and self.fails(made)),
                None,
            )
            if shorter is not None:
                script = shorter
                size = min(size, max(len(script.actions) // 2, 1))
            elif size == 1:
                break
            else:
                size //= 2
        return script

    def shape(self, script: Script) -> Script:
        """A smaller cluster."""
        for change in (
            {"old": False},
            {"history": 10_000},
            {"tokens": 1},
            {"factor": 1},
            {"joining": 0},
            {"joining": 1},
        ):
            if all(getattr(script.shape, name) == value for name, value in change.items()):
                continue
            smaller = replace(script, shape=replace(script.shape, **change))
            if self.left > 0 and _sound(smaller) and self.fails(smaller):
                script = smaller
        return script


def _without(script: Script, size: int) -> Iterator[Script]:
    for start in range(0, len(script.actions), size):
        kept: tuple[Action, ...] = script.actions[:start] + script.actions[start + size :]
        if len(kept) < len(script.actions):
            yield replace(script, actions=kept)


def _sound(script: Script) -> bool:
    """True if the actions name only nodes that the shape has."""
    most = script.shape.founded + script.shape.joining
    named = (argument for action in script.actions for argument in action.arguments)
    return all(
        not (isinstance(name, str) and name[:1] == "n" and name[1:].isdigit() and int(name[1:]) > most)
        for name in named
    )


def shrink(
    script: Script, rule: str, play: Callable[[Script], RunReport] = run_script, runs_max: int = RUNS_MAX
) -> Script:
    """The smallest script found that still breaks ``rule``."""
    shrinker = _Shrinker(rule, play, runs_max)
    return shrinker.shape(shrinker.actions(script))

"""Shrinking of a failing script, and its storage as a file.

Actions are removed first, then the cluster is reduced, as long as the same invariant is broken. Every action draws from
its own stream, so the remaining ones behave much as before. Removal is tried in halves, quarters and so on (Zeller's
ddmin), then one by one. A stored script is a regression test once it is in ``tests/sim/regressions``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from ringlog.files import read_text
from ringlog.kernel.values import replace
from ringlog_sim.runner.run import RunReport, run_script
from ringlog_sim.runner.script import Action, Script, from_json, to_json

RUNS_MAX = 400


class _Shrinker:
    def __init__(self, rule: str, play: Callable[[Script], RunReport], runs_max: int) -> None:
        self.rule = rule
        self.play = play
        self.left = runs_max

    def fails(self, script: Script) -> bool:
        """Return True if ``script`` breaks the same invariant."""
        self.left -= 1
        return self.play(script).rule == self.rule

    def actions(self, script: Script) -> Script:
        """Return the script with fewer actions."""
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
        """Return the script with a smaller cluster."""
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
            if self.left > 0 and _is_consistent(smaller) and self.fails(smaller):
                script = smaller
        return script


def _without(script: Script, size: int) -> Iterator[Script]:
    for start in range(0, len(script.actions), size):
        kept: tuple[Action, ...] = script.actions[:start] + script.actions[start + size :]
        if len(kept) < len(script.actions):
            yield replace(script, actions=kept)


def _is_consistent(script: Script) -> bool:
    """Return True if the actions name only nodes of the shape."""
    most = script.shape.founded + script.shape.joining
    named = (argument for action in script.actions for argument in action.arguments)
    return all(
        not (isinstance(name, str) and name[:1] == "n" and name[1:].isdigit() and int(name[1:]) > most)
        for name in named
    )


def shrink(
    script: Script, rule: str, play: Callable[[Script], RunReport] = run_script, runs_max: int = RUNS_MAX
) -> Script:
    """Return the smallest script found that still breaks ``rule``."""
    shrinker = _Shrinker(rule, play, runs_max)
    return shrinker.shape(shrinker.actions(script))


class NoScript(ValueError):
    """A file without a valid script. The text says why."""


def save(folder: Path, report: RunReport, script: Script) -> Path:
    """Write ``script``, which broke ``report.rule``. Return the file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{report.rule.replace(' ', '_')}-{script.profile}-{script.seed}.json"
    found = {"rule": report.rule, "detail": report.detail, "script": to_json(script)}
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return path


def load(path: Path) -> tuple[str, Script]:
    """Return (the rule that was broken when it was found, the script). Raise NoScript or OSError."""
    try:
        found = json.loads(read_text(path))
        return str(found["rule"]), from_json(found["script"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise NoScript(f"{path}: {type(error).__name__}: {error}") from error

"""Who says what is held: the rules in force, where everybody who obeys them looks, and what is held by them now.

Two adapters of one port. ``MemoryDelays`` is for tests in one process. ``FolderDelays`` steers a live stack: a folder
with one file a rule, written whole or not at all and read again at every record, so a rule that was there before an
entry was appended is obeyed by everybody who had not read that entry yet. ``held/`` below it has one file for each
participant that holds something.
"""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Protocol

from ringlog.log.delays.rules import HeldEntry, Rule, rule_from_json, rule_to_json
from ringlog.log.errors import BadRule, UnknownRule, WaitTimedOut
from ringlog.runtime.logs import get_logger

LOOK_S = 0.02
WAIT_S = 10.0
RULES_MAX = 1_000
HELD = "held"

log = get_logger(__name__)


class DelaysControl(Protocol):
    """Rules for those who obey them. Safe from threads."""

    def rules(self) -> tuple[Rule, ...]:
        """The rules in force now, by name."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Until the rules may have changed, at most ``timeout_s``."""
        ...

    def report(self, holder: str, held: Sequence[HeldEntry]) -> None:
        """What ``holder`` (unique for ever) holds now, instead of what it said before."""
        ...


class MemoryDelays:
    """Rules in memory, for participants in one process."""

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self._rules: dict[str, Rule] = {}
        self._held: dict[str, tuple[HeldEntry, ...]] = {}
        self._changed = threading.Condition()
        for rule in rules:
            self.put(rule)

    def put(self, rule: Rule) -> Rule:
        """Obey this rule from now on, instead of another of its name."""
        with self._changed:
            if len(self._rules) >= RULES_MAX:
                raise BadRule(f"there are {RULES_MAX} rules already", "release some")
            self._rules = dict(sorted({**self._rules, rule.name: rule}.items()))
            self._changed.notify_all()
        return rule

    def release(self, name: str) -> None:
        """The rule is no more. Raises UnknownRule."""
        with self._changed:
            if name not in self._rules:
                raise UnknownRule(f"no rule is called {name}")
            self._rules = {key: rule for key, rule in self._rules.items() if key != name}
            self._changed.notify_all()

    def rules(self) -> tuple[Rule, ...]:
        """The rules in force now, by name."""
        return tuple(self._rules.values())

    def wait(self, timeout_s: float) -> None:
        """Until the rules change, at most ``timeout_s``, and never long: delays pass by themselves."""
        with self._changed:
            self._changed.wait(min(timeout_s, LOOK_S))

    def report(self, holder: str, held: Sequence[HeldEntry]) -> None:
        """What ``holder`` holds now."""
        with self._changed:
            self._held.pop(holder, None)
            if held:
                self._held[holder] = tuple(held)

    def held(self) -> tuple[HeldEntry, ...]:
        """All that is held now."""
        with self._changed:
            return _in_order(held for all_of_one in self._held.values() for held in all_of_one)

    def await_held(self, rule: str, participant: str = "", timeout_s: float = WAIT_S) -> HeldEntry:
        """The first entry held by that rule (at that participant), as soon as there is one. Raises WaitTimedOut."""
        return _await_held(self.held, rule, participant, timeout_s)


class FolderDelays:
    """Rules in a folder, for participants in any number of processes of one machine.

    ``warn``: tell of files that are no rules in this process's own log.
    """

    def __init__(self, folder: Path, *, warn: bool = False) -> None:
        self.folder = folder
        self._warn = warn
        self._lock = threading.Lock()
        self._seen: tuple[tuple[str, int, int, int], ...] = ()
        self._rules: tuple[Rule, ...] = ()
        self._problems: tuple[str, ...] = ()

    # ------------------------------------------------------------------------------------------ for people

    def put(self, rule: Rule) -> Rule:
        """Obey this rule from now on, instead of another of its name. Raises OSError, BadRule."""
        if len(self.rules()) >= RULES_MAX:
            raise BadRule(f"there are {RULES_MAX} rules already", "release some")
        os.replace(self._draft(rule), self._path(rule.name))
        return rule

    def add(self, rule: Rule) -> Rule:
        """As ``put``, under the first free name that begins with the rule's: ``hold-1``, ``hold-2``, …"""
        for number in range(1, RULES_MAX + 1):
            named = replace(rule, name=f"{rule.name}-{number}")
            draft = self._draft(named)
            try:
                os.link(draft, self._path(named.name))
            except FileExistsError:
                continue
            finally:
                draft.unlink()
            return named
        raise BadRule(f"there are {RULES_MAX} rules already", "release some")

    def release(self, name: str) -> None:
        """The rule is no more; also one that could not be read. Raises UnknownRule."""
        if name != os.path.basename(name):
            raise UnknownRule(f"no rule is called {name}")
        try:
            self._path(name).unlink()
        except FileNotFoundError as error:
            raise UnknownRule(f"no rule is called {name}") from error

    def problems(self) -> tuple[str, ...]:
        """Files that are no rules, and why: nobody obeys them."""
        self.rules()
        return self._problems

    def held(self) -> tuple[HeldEntry, ...]:
        """All that processes which still run say that they hold."""
        found: list[HeldEntry] = []
        for path in sorted((self.folder / HELD).glob("*.json")):
            try:
                if _runs(int(path.name.partition("-")[0])):
                    found += _reported(path.read_text("utf-8"))
            except (OSError, ValueError, TypeError, RecursionError):
                continue  # it was let go this very moment, or is nobody's report
        return _in_order(found)

    def await_held(self, rule: str, participant: str = "", timeout_s: float = WAIT_S) -> HeldEntry:
        """The first entry held by that rule (at that participant), as soon as there is one. Raises WaitTimedOut."""
        return _await_held(self.held, rule, participant, timeout_s)

    # ------------------------------------------------------------------------------------ for participants

    def rules(self) -> tuple[Rule, ...]:
        """The rules in force now, by name; a file that is none is obeyed by nobody."""
        with self._lock:
            seen = self._look()
            if seen != self._seen:
                self._read(tuple(name for name, *_ in seen))
                self._seen = seen
            return self._rules

    def wait(self, timeout_s: float) -> None:
        """A moment, at most ``timeout_s``: no process hears of changes to another one's files."""
        time.sleep(min(timeout_s, LOOK_S))

    def report(self, holder: str, held: Sequence[HeldEntry]) -> None:
        """What ``holder`` holds now, for ``held`` of any process."""
        path = self.folder / HELD / f"{os.getpid()}-{holder}.json"
        try:
            if not held:
                path.unlink(missing_ok=True)
                return
            path.parent.mkdir(parents=True, exist_ok=True)
            draft = path.with_suffix(".tmp")
            draft.write_text(json.dumps([asdict(each) for each in held]), "utf-8")
            os.replace(draft, path)
        except OSError as error:
            log.warning("held_not_told", folder=str(self.folder), why=str(error))

    # ------------------------------------------------------------------------------------------- internals

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def _draft(self, rule: Rule) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        draft = self.folder / f".{rule.name}.{uuid.uuid4().hex}.tmp"
        draft.write_text(rule_to_json(rule) + "\n", "utf-8")
        return draft

    def _look(self) -> tuple[tuple[str, int, int, int], ...]:
        found = []
        try:
            names = sorted(os.listdir(self.folder))
        except FileNotFoundError:  # there are no rules yet
            return ()
        for name in names:
            if name.endswith(".json") and not name.startswith("."):
                try:
                    stat = (self.folder / name).stat()
                except FileNotFoundError:  # released this very moment
                    continue
                found.append((name, stat.st_ino, stat.st_mtime_ns, stat.st_size))
        return tuple(found)

    def _read(self, names: Sequence[str]) -> None:
        rules, problems = [], []
        for name in names:
            try:
                rule = rule_from_json((self.folder / name).read_text("utf-8"))
                if f"{rule.name}.json" != name:
                    raise BadRule(f"name: the file of rule {rule.name} is called {rule.name}.json")
                rules.append(rule)
            except FileNotFoundError:
                continue
            except (BadRule, OSError, UnicodeDecodeError) as error:
                problems.append(f"{name}: {error}")
                if self._warn:
                    log.warning("no_rule", file=name, why=str(error))
        self._rules, self._problems = tuple(sorted(rules, key=lambda rule: rule.name)), tuple(problems)


def _reported(text: str) -> list[HeldEntry]:
    """What a process wrote that it holds. Raises ValueError, TypeError, RecursionError for anything else."""
    found = [HeldEntry(**each) for each in json.loads(text)]
    for each in found:
        if type(each.since) is not int or not all(isinstance(name, str) for name in (each.participant, each.rule)):
            raise TypeError("a report of somebody else")
    return found


def _in_order(held: Iterable[HeldEntry]) -> tuple[HeldEntry, ...]:
    return tuple(sorted(held, key=lambda each: (each.since, each.participant, each.rule)))


def _await_held(look: Callable[[], tuple[HeldEntry, ...]], rule: str, participant: str, timeout_s: float) -> HeldEntry:
    started = time.monotonic()
    tick = threading.Event()
    while True:
        for held in look():
            if held.rule == rule and participant in ("", held.participant):
                return held
        waited = time.monotonic() - started
        if waited >= timeout_s:
            whom = f" at {participant}" if participant else ""
            raise WaitTimedOut(f"rule {rule} to hold something{whom}", waited, "is there an entry that it fits?")
        tick.wait(LOOK_S)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True

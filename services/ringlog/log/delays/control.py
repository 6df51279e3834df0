"""Control of delay rules: the rules in force, and the entries that participants hold because of them.

The port has two adapters. ``MemoryDelays`` is for tests in one process. ``FolderDelays`` controls a running stack
through a folder with one file per rule. Rule files are written atomically and checked at every record. So a rule that
exists before an entry is appended applies to every participant that has not read the entry. The subfolder ``held/``
contains one file for each participant that holds entries.
"""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from ringlog.kernel.values import asdict, replace
from ringlog.log.delays.rules import HeldEntry, Rule, rule_from_json, rule_to_json
from ringlog.log.errors import BadRule, UnknownRule, WaitTimedOut
from ringlog.runtime.logs import get_logger

LOOK_S = 0.02
WAIT_S = 10.0
RULES_MAX = 1_000
HELD = "held"

log = get_logger(__name__)


class DelaysControl(Protocol):
    """The rules, for the participants that obey them. Safe from threads."""

    def rules(self) -> tuple[Rule, ...]:
        """Return the rules in force, by name."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Wait until the rules may have changed, at most ``timeout_s``."""
        ...

    def report(self, holder: str, held: Sequence[HeldEntry]) -> None:
        """Replace the report of the entries that ``holder`` holds. The name of a holder is never reused."""
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
        """Put a rule in force. It replaces a rule of the same name. Raises BadRule."""
        with self._changed:
            if len(self._rules) >= RULES_MAX:
                raise BadRule(f"{RULES_MAX} rules exist already, which is the maximum", "release some")
            self._rules = dict(sorted({**self._rules, rule.name: rule}.items()))
            self._changed.notify_all()
        return rule

    def release(self, name: str) -> None:
        """Remove a rule. Raises UnknownRule."""
        with self._changed:
            if name not in self._rules:
                raise UnknownRule(f"no rule has the name {name}")
            self._rules = {key: rule for key, rule in self._rules.items() if key != name}
            self._changed.notify_all()

    def rules(self) -> tuple[Rule, ...]:
        """Return the rules in force, by name."""
        return tuple(self._rules.values())

    def wait(self, timeout_s: float) -> None:
        """Wait until the rules change, at most ``timeout_s`` and ``LOOK_S``. Delays end without a change of
        the rules.
        """
        with self._changed:
            self._changed.wait(min(timeout_s, LOOK_S))

    def report(self, holder: str, held: Sequence[HeldEntry]) -> None:
        """Replace the report of the entries that ``holder`` holds."""
        with self._changed:
            self._held.pop(holder, None)
            if held:
                self._held[holder] = tuple(held)

    def held(self) -> tuple[HeldEntry, ...]:
        """Return all held entries."""
        with self._changed:
            return _in_order(held for all_of_one in self._held.values() for held in all_of_one)

    def await_held(self, rule: str, participant: str = "", timeout_s: float = WAIT_S) -> HeldEntry:
        """Wait for the first entry that the rule holds (at the participant, if given). Raises WaitTimedOut."""
        return _await_held(self.held, rule, participant, timeout_s)


class FolderDelays:
    """Rules in a folder, for participants in any number of processes on one machine.

    Args:
        warn: Log a warning for each file that is not a valid rule.
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
        """Put a rule in force. It replaces a rule of the same name. Raises OSError, BadRule."""
        if len(self.rules()) >= RULES_MAX:
            raise BadRule(f"{RULES_MAX} rules exist already, which is the maximum", "release some")
        os.replace(self._draft(rule), self._path(rule.name))
        return rule

    def add(self, rule: Rule) -> Rule:
        """Put a rule in force under the first free name with a number: ``hold-1``, ``hold-2``, …

        Raises OSError, BadRule.
        """
        for number in range(1, RULES_MAX + 1):
            named = replace(rule, name=f"{rule.name}-{number}")
            draft = self._draft(named)
            try:
                # A hard link fails if the name exists, so two processes never get the same name.
                os.link(draft, self._path(named.name))
            except FileExistsError:
                continue
            finally:
                draft.unlink()
            return named
        raise BadRule(f"{RULES_MAX} rules exist already, which is the maximum", "release some")

    def release(self, name: str) -> None:
        """Remove a rule, even one that could not be read. Raises UnknownRule."""
        if name != os.path.basename(name):
            raise UnknownRule(f"no rule has the name {name}")
        try:
            self._path(name).unlink()
        except FileNotFoundError as error:
            raise UnknownRule(f"no rule has the name {name}") from error

    def problems(self) -> tuple[str, ...]:
        """Return the files that are not valid rules, and the reasons. Participants ignore them."""
        self.rules()
        return self._problems

    def held(self) -> tuple[HeldEntry, ...]:
        """Return all entries held by processes that are still running."""
        found: list[HeldEntry] = []
        for path in sorted((self.folder / HELD).glob("*.json")):
            try:
                if _runs(int(path.name.partition("-")[0])):
                    found += _reported(path.read_text("utf-8"))
            except (OSError, ValueError, TypeError, RecursionError):
                continue  # released in the meantime, or not a report
        return _in_order(found)

    def await_held(self, rule: str, participant: str = "", timeout_s: float = WAIT_S) -> HeldEntry:
        """Wait for the first entry that the rule holds (at the participant, if given). Raises WaitTimedOut."""
        return _await_held(self.held, rule, participant, timeout_s)

    # ------------------------------------------------------------------------------------ for participants

    def rules(self) -> tuple[Rule, ...]:
        """Return the rules in force, by name. Files that are not valid rules are ignored."""
        with self._lock:
            seen = self._look()
            if seen != self._seen:
                self._read(tuple(name for name, *_ in seen))
                self._seen = seen
            return self._rules

    def wait(self, timeout_s: float) -> None:
        """Sleep for at most ``timeout_s`` and ``LOOK_S``. A process is not notified of file changes."""
        time.sleep(min(timeout_s, LOOK_S))

    def report(self, holder: str, held: Sequence[HeldEntry]) -> None:
        """Replace the report of the entries that ``holder`` holds. Every process can read it with ``held``."""
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
        except FileNotFoundError:  # no rules yet
            return ()
        for name in names:
            if name.endswith(".json") and not name.startswith("."):
                try:
                    stat = (self.folder / name).stat()
                except FileNotFoundError:  # released in the meantime
                    continue
                found.append((name, stat.st_ino, stat.st_mtime_ns, stat.st_size))
        return tuple(found)

    def _read(self, names: Sequence[str]) -> None:
        rules, problems = [], []
        for name in names:
            try:
                rule = rule_from_json((self.folder / name).read_text("utf-8"))
                if f"{rule.name}.json" != name:
                    raise BadRule(f"name: the file of rule {rule.name} must have the name {rule.name}.json")
                rules.append(rule)
            except FileNotFoundError:
                continue
            except (BadRule, OSError, UnicodeDecodeError) as error:
                problems.append(f"{name}: {error}")
                if self._warn:
                    log.warning("no_rule", file=name, why=str(error))
        self._rules, self._problems = tuple(sorted(rules, key=lambda rule: rule.name)), tuple(problems)


def _reported(text: str) -> list[HeldEntry]:
    """Decode a report. Raises ValueError, TypeError or RecursionError for any other text."""
    found = [HeldEntry(**each) for each in json.loads(text)]
    for each in found:
        if type(each.since) is not int or not all(isinstance(name, str) for name in (each.participant, each.rule)):
            raise TypeError("the report belongs to another process")
    return found


def _in_order(held: Iterable[HeldEntry]) -> tuple[HeldEntry, ...]:
    return tuple(sorted(held, key=lambda each: (each.since, each.participant, each.rule)))


def _await_held(check: Callable[[], tuple[HeldEntry, ...]], rule: str, participant: str, timeout_s: float) -> HeldEntry:
    started = time.monotonic()
    tick = threading.Event()
    while True:
        for held in check():
            if held.rule == rule and participant in ("", held.participant):
                return held
        waited = time.monotonic() - started
        if waited >= timeout_s:
            whom = f" at {participant}" if participant else ""
            raise WaitTimedOut(f"rule {rule} to hold something{whom}", waited, "check that the rule matches an entry")
        tick.wait(LOOK_S)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True

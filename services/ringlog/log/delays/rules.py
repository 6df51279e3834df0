"""Rules that hold, delay or drop chosen entries of the metadata log for chosen participants.

The test tool that CEP-21 plans under the name of a *test CMS*: somebody decides when an entry is committed, and when
each participant hears of it.

::

    where         hold                          delay                        drop
    commit        not in the log until          in the log after that many   never in the log, or in it while the
                  released                      seconds                      author hears nothing (``answer_only``)
    propagation   not shown to the reader,      not shown for that many      refused: a log has no holes, so what is
                  nor is anything behind it     seconds, nor what follows    kept from a reader keeps what follows, too

A rule holds as long as it exists: to release is to remove it. ``times`` ends a drop after this number of entries. An
empty field of a ``Match`` fits everything; all fields that are given must fit. ``submitter`` and ``participants`` are
patterns as of a shell (``node-*``).

Who takes part under which name: agents under their role (``validator``), every client under its submitter
(``node-n4``, ``cli``, ``coordinator-1a2b3c4d`` inside the coordinator).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from fnmatch import fnmatchcase
from typing import Any

from ringlog.kernel.model.outcome import Entry, Undecodable, UnknownCommand, UnreadableEntry
from ringlog.kernel.operations.stages import STAGES
from ringlog.kernel.registry import COMMANDS
from ringlog.kernel.values import Epoch, Micros
from ringlog.log.errors import BadRule

HOLD, DELAY, DROP = "hold", "delay", "drop"
COMMIT, PROPAGATION = "commit", "propagation"
ACTIONS = (HOLD, DELAY, DROP)
PLACES = (COMMIT, PROPAGATION)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_SECONDS_MAX = 86_400.0


@dataclass(frozen=True, slots=True)
class Match:
    """Which entries: all that fit every field given.

    ``epoch``: the one that the entry makes, or would make as the next one after its predecessor. ``operation`` and
    ``stage``: those that the command names; ``stage`` is the one that it enters.
    """

    kind: str = ""
    epoch: Epoch = 0
    request_id: str = ""
    operation: str = ""
    stage: str = ""
    submitter: str = ""

    def __post_init__(self) -> None:
        if self.kind and self.kind not in COMMANDS:
            raise BadRule(f"kind: {self.kind} is no command", f"one of {', '.join(sorted(COMMANDS))}")
        if self.stage and self.stage not in STAGES:
            raise BadRule(f"stage: {self.stage} is no stage", f"one of {', '.join(STAGES)}")
        if self.epoch < 0:
            raise BadRule(f"epoch: {self.epoch} is below 0")

    def fits(self, item: Entry | UnreadableEntry, epoch: Callable[[], Epoch | None]) -> bool:
        """True if the record is one of these. ``epoch`` is asked only if that matters; None: it makes none."""
        if self == _ANY:
            return True
        if isinstance(item, UnreadableEntry):
            return False
        command = item.command
        readable = not isinstance(command, Undecodable | UnknownCommand)
        return (
            self.kind in ("", item.kind)
            and self.request_id in ("", item.request_id)
            and (not self.operation or (readable and getattr(command, "operation", None) == self.operation))
            and (not self.stage or (readable and getattr(command, "to", None) == self.stage))
            and (not self.submitter or fnmatchcase(item.submitter, self.submitter))
            and (not self.epoch or epoch() == self.epoch)
        )


_ANY = Match()


@dataclass(frozen=True, slots=True)
class Rule:
    """What happens to which entries on their way to (``propagation``) or from (``commit``) whom.

    ``participants``: patterns; none means everybody. ``seconds``: of a delay. ``times``: how many entries a drop takes
    in each process, 0 for all. ``answer_only``: the entry arrives, its author hears nothing. Raises BadRule.
    """

    name: str
    action: str
    where: str = PROPAGATION
    participants: tuple[str, ...] = ()
    match: Match = field(default_factory=Match)
    seconds: float = 0.0
    times: int = 0
    answer_only: bool = False

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise BadRule(f"name: {self.name!r} is not made of up to 64 letters, digits, '-', '_' and '.'")
        if self.action not in ACTIONS:
            raise BadRule(f"action: {self.action!r} is none of {', '.join(ACTIONS)}")
        if self.where not in PLACES:
            raise BadRule(f"where: {self.where!r} is none of {', '.join(PLACES)}")
        if self.action == DROP and self.where == PROPAGATION:
            raise BadRule(
                "where: what a reader has seen has no holes, so nothing can be dropped on the way to it",
                "hold it, or drop the commit",
            )
        if (self.action == DELAY) != (self.seconds > 0) or not self.seconds <= _SECONDS_MAX:
            raise BadRule(
                f"seconds: {self.seconds}: a delay has between 0 and {_SECONDS_MAX:.0f}, nothing else has any"
            )
        if self.times < 0 or ((self.times or self.answer_only) and self.action != DROP):
            raise BadRule("times and answer_only belong to a drop, and times is not below 0")

    def concerns(self, where: str, participant: str) -> bool:
        """True if the rule speaks of this participant's commits or reading."""
        if self.where != where:
            return False
        return not self.participants or any(fnmatchcase(participant, pattern) for pattern in self.participants)


@dataclass(frozen=True, slots=True)
class HeldEntry:
    """An entry that waits at a participant, because of a rule.

    ``offset``: of the record for propagation, None for a commit. ``behind``: how many records wait behind it here.
    ``since``: wall clock, microseconds.
    """

    participant: str
    rule: str
    where: str
    kind: str
    request_id: str
    offset: int | None
    behind: int
    since: Micros


def rule_to_json(rule: Rule) -> str:
    """One JSON object; what says nothing is left out."""
    found = {key: value for key, value in asdict(rule).items() if value not in ((), "", 0, False)}
    found["match"] = {key: value for key, value in asdict(rule.match).items() if value}
    return json.dumps(found)


def rule_from_json(text: str) -> Rule:
    """The rule of ``rule_to_json``, or one written by hand. Raises BadRule."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRule(f"no JSON: {error}") from error
    given = _typed(Rule, found, "a rule")
    match = Match(**_typed(Match, given.pop("match", {}), "match"))
    return Rule(**{**given, "participants": _patterns(given.get("participants", [])), "match": match})


_TYPES: dict[str, tuple[type, ...]] = {
    "epoch": (int,),
    "times": (int,),
    "seconds": (int, float),
    "answer_only": (bool,),
    "participants": (list,),
    "match": (dict,),
}


def _typed(made: type[Rule] | type[Match], found: Any, what: str) -> dict[str, Any]:
    """The fields of an object with values of their types; all others are strings."""
    if not isinstance(found, dict):
        raise BadRule(f"{what} is a JSON object")
    known = [each.name for each in fields(made)]
    given: dict[str, Any] = {}
    for key, value in found.items():
        if key not in known:
            raise BadRule(f"{key}: not a field of {what}", f"one of {', '.join(known)}")
        wanted = _TYPES.get(key, (str,))
        if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
            raise BadRule(f"{key}: {value!r} is not of type {wanted[0].__name__}")
        given[key] = value
    for needed in ("name", "action") if made is Rule else ():
        if needed not in given:
            raise BadRule(f"{needed} is missing")
    return given


def _patterns(values: list[object]) -> tuple[str, ...]:
    if not all(isinstance(value, str) and value for value in values):
        raise BadRule("participants: each is a pattern, not empty")
    return tuple(str(value) for value in values)

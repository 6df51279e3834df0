"""Rules that hold, delay or drop chosen entries of the metadata log for chosen participants.

CEP-21 plans this tool as a *test CMS*: the test decides when an entry is committed, and when each participant sees it.

::

    where         hold                          delay                        drop
    commit        not in the log until          in the log after this        never in the log, or in the log without an
                  released                      number of seconds            answer to the author (``answer_only``)
    propagation   not shown to the reader,      not shown for this number    invalid: a log has no holes, so a dropped
                  like all later entries        of seconds, like all         entry would hide all later ones
                                                later entries

A rule is in force while it exists. Removing the rule releases its entries. ``times`` ends a drop after this number of
entries. An entry must match all fields of a ``Match``; empty fields match every entry. ``submitter`` and
``participants`` are shell patterns (``node-*``).

Agents participate under the name of their role (``validator``), and clients under their submitter (``node-n4``,
``cli``, ``coordinator-1a2b3c4d`` inside the coordinator).

Source: CEP-21.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

from ringlog.kernel.model.outcome import Entry, Undecodable, UnknownCommand, UnreadableEntry
from ringlog.kernel.operations.stages import STAGES
from ringlog.kernel.registry import COMMANDS
from ringlog.kernel.values import Epoch, Micros, Value, asdict, field
from ringlog.log.errors import BadRule
from ringlog.wire.senders import parsed_sender

HOLD, DELAY, DROP = "hold", "delay", "drop"
COMMIT, PROPAGATION = "commit", "propagation"
ACTIONS = (HOLD, DELAY, DROP)
PLACES = (COMMIT, PROPAGATION)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_SECONDS_MAX = 86_400.0


class Match(Value):
    """A selection of entries: all that match every given field.

    ``epoch`` is the epoch that the entry makes, or would make after its predecessor. ``operation`` and ``stage`` are
    named by the command; ``stage`` is the one that the operation enters.
    """

    kind: str = ""
    epoch: Epoch = 0
    request_id: str = ""
    operation: str = ""
    stage: str = ""
    submitter: str = ""

    def __post_init__(self) -> None:
        if self.kind and self.kind not in COMMANDS:
            raise BadRule(f"kind: {self.kind} is not a command", f"use one of {', '.join(sorted(COMMANDS))}")
        if self.stage and self.stage not in STAGES:
            raise BadRule(f"stage: {self.stage} is not a stage", f"use one of {', '.join(STAGES)}")
        if self.epoch < 0:
            raise BadRule(f"epoch: {self.epoch} is below 0")

    def fits(self, item: Entry | UnreadableEntry, epoch: Callable[[], Epoch | None]) -> bool:
        """Return True if the record matches.

        ``epoch`` is called only if the epoch matters. None means that the record makes no epoch.
        """
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
            and (not self.submitter or fnmatchcase(parsed_sender(item.submitter).name, self.submitter))
            and (not self.epoch or epoch() == self.epoch)
        )


_ANY = Match()


class Rule(Value):
    """The action on matching entries that a participant appends (``commit``) or reads (``propagation``).

    Raises BadRule.

    Args:
        participants: Shell patterns; empty: all participants.
        seconds: Duration of a delay.
        times: Number of entries that a drop affects in each process; 0: all.
        answer_only: Append the entry, but drop the answer to its author.
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
            raise BadRule(f"action: {self.action!r} is not one of {', '.join(ACTIONS)}")
        if self.where not in PLACES:
            raise BadRule(f"where: {self.where!r} is not one of {', '.join(PLACES)}")
        if self.action == DROP and self.where == PROPAGATION:
            raise BadRule(
                "where: readers see the log without gaps, so their entries cannot be dropped",
                "hold the entries, or drop the commit",
            )
        if (self.action == DELAY) != (self.seconds > 0) or not self.seconds <= _SECONDS_MAX:
            raise BadRule(
                f"seconds: {self.seconds}: a delay needs 0 to {_SECONDS_MAX:.0f} s; other actions have no seconds"
            )
        if self.times < 0 or ((self.times or self.answer_only) and self.action != DROP):
            raise BadRule("only a drop can have times and answer_only; times must be 0 or more")

    def concerns(self, where: str, participant: str) -> bool:
        """Return True if the rule applies to this participant at this place."""
        if self.where != where:
            return False
        return not self.participants or any(fnmatchcase(participant, pattern) for pattern in self.participants)


class HeldEntry(Value):
    """An entry that a rule holds at a participant.

    ``offset`` is that of the record for propagation, None for a commit. ``behind`` counts the records that wait behind
    it at this participant. ``since`` is wall-clock time.
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
    """Encode a rule as one JSON object without its default fields."""
    found = {key: value for key, value in asdict(rule).items() if value not in ((), "", 0, False)}
    found["match"] = {key: value for key, value in asdict(rule.match).items() if value}
    return json.dumps(found)


def rule_from_json(text: str) -> Rule:
    """Decode a rule of ``rule_to_json``, or a handwritten one. Raises BadRule."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRule(f"not valid JSON: {error}") from error
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
    """Return the fields of a JSON object after a check of names and types. Untyped fields are strings."""
    if not isinstance(found, dict):
        raise BadRule(f"{what} must be a JSON object")
    known = [*made.__struct_fields__]
    given: dict[str, Any] = {}
    for key, value in found.items():
        if key not in known:
            raise BadRule(f"{key}: not a field of {what}", f"use one of {', '.join(known)}")
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
        raise BadRule("participants: each must be a pattern that is not empty")
    return tuple(str(value) for value in values)

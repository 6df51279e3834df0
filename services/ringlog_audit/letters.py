"""Checks of dead letters: each has a write with the same bytes, which must be rejected for that reason."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from ringlog_audit.report import AuditCheck, AuditReport
from ringlog_audit.rules.streams import generation_for
from ringlog_audit.sources.topics import AuditError, AuditTopics, Decoder
from ringlog_audit.writes.refusals import AuditRules
from ringlog_audit.writes.writes import BY_THE_JOB, AuditWrite, Position, Writes

IMPORTED = "import "
"""The prefix of the writer's name in dead letters from an import of change events."""


class DeadLetters:
    """The dead letters of a cluster's mutations. ``reasons``: the reason of each letter by position."""

    def __init__(self, topics: AuditTopics, decoder: Decoder) -> None:
        self._source = topics.name("mutations")
        self._decoder = decoder
        self.reasons: dict[Position, str] = {
            (letter["partition"], letter["offset"]): letter["reason"]
            for _, letter in self._all(topics)
            if isinstance(letter, dict)
        }

    def _all(self, topics: AuditTopics) -> Iterator[tuple[int, dict[str, Any] | AuditError]]:
        """Yield (offset, letter or decoding error). Events that an import rejected before they were mutations are
        skipped.
        """
        for message in topics.records("dead-letters"):
            letter: dict[str, Any] | AuditError
            try:
                letter = self._decoder.decode(message.value() or b"")
            except AuditError as broken:
                letter = broken
            if isinstance(letter, dict) and letter["topic"] != self._source and letter["writer"].startswith(IMPORTED):
                continue
            yield message.offset() or 0, letter

    def check(self, topics: AuditTopics, writes: Writes, rules: AuditRules, report: AuditReport) -> set[Position]:
        """Add the check of all letters to a report. Return the positions of the writes with a letter."""
        check = AuditCheck("dead_letters", "each dead letter is one write that the rules reject, with that reason")
        report.checks.append(check)
        seen: dict[Position, dict[str, Any]] = {}
        for offset, letter in self._all(topics):
            if isinstance(letter, AuditError):
                check.fail(f"dead letter {offset}: {letter}")
                continue
            position = (letter["partition"], letter["offset"])
            where, write = f"{position[0]}/{position[1]}: {letter['reason']}", writes.by_position.get(position)
            short = {name: value for name, value in letter.items() if name not in ("key", "value")}
            if position in seen:
                if seen[position] != short:
                    check.fail(f"{where}: twice")
            elif write is None:
                check.fail(f"{where}: no write has this position")
            elif wrong := self._wrong(letter, write, position, writes, rules):
                check.fail(f"{where}{wrong}")
            seen.setdefault(position, short)
        report.counts["dead_letters"] = len(seen)
        return {*seen}

    def _wrong(
        self, letter: dict[str, Any], write: AuditWrite, position: Position, writes: Writes, rules: AuditRules
    ) -> str:
        """Return the error in a letter of that write, or empty text."""
        reason = letter["reason"]
        refusal, parts = writes.reading.whole(write, position, letter["epoch"])
        if reason in BY_THE_JOB:
            starts = {write.generation, *(part.generation for one in parts or () for part in one)}
            used = [generation_for(rules.generations, start) for start in starts]
            is_right = not refusal and (reason == "oversized" or any(one is not None and one.is_closed for one in used))
        else:
            is_right = reason == refusal
        if not is_right:
            return f", expected {refusal or 'a CDC row'}"
        if letter["topic"] != self._source or not _keeps(letter, write.key, write.value):
            return ": its key or value differs from the write"
        return ""


def _keeps(letter: dict[str, Any], key: bytes | None, value: bytes) -> bool:
    """Return True if a dead letter contains the write's bytes.

    A cut letter contains the first bytes, and in its detail the SHA-256 of all bytes.
    """
    for kept, whole in ((letter["key"] or b"", key or b""), (letter["value"] or b"", value)):
        cut = whole.startswith(kept) and hashlib.sha256(whole).hexdigest() in letter["detail"]
        if kept != whole and not cut:
            return False
    return True

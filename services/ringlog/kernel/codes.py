"""The closed set of reasons for which a command is refused: a stable code and what it means.

Codes are part of the interface: programs branch on them, so a released code keeps its meaning. Every ``Rejected``
carries one of these and a sentence of its own that names field and rule. Those of a family are declared in its file.
"""

from __future__ import annotations

from typing import Final

from ringlog.kernel.registry import FAMILIES

_PROTOCOL: Final = {
    "answer_forgotten": "Too many requests were rejected to remember each answer; ask under a new request id.",
    "bad_field": "A field breaks its own rule, whatever the state.",
    "bad_json": "The text is not a JSON command.",
    "broken_rule": "A rule of this release has a defect and failed: an author appends nothing, a reader halts.",
    "request_expired": "The request was made before the oldest epoch still remembered: a copy would not be known.",
    "request_id_reused": "The request id belongs to another applied command.",
    "state_id_not_above": "The state id is not above the one that it follows.",
    "too_many": "There are as many of them as there may be; see docs/guide/growth.md.",
    "too_large": "What would follow is larger than its readers can carry.",
    "undecodable": "The payload of a known command could not be read.",
    "unknown_command": "This release does not know the command or its version.",
    "unknown_field": "The command has no such field.",
    "unreadable_entry": "A record of the log is no entry: the detail says what its bytes break.",
}
"""Of the log itself, and of every command."""

_DECLARED: Final = (_PROTOCOL, *(getattr(family, "CODES", {}) for family in FAMILIES))

CODES: Final[dict[str, str]] = {code: meaning for codes in _DECLARED for code, meaning in codes.items()}
"""Code to its meaning, one sentence each."""

assert len(CODES) == sum(map(len, _DECLARED)), "each code is declared once"

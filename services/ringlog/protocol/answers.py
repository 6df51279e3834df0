"""What becomes of a request: exactly one of these, and final."""

from __future__ import annotations

from dataclasses import dataclass

from ringlog.kernel.values import Epoch


@dataclass(frozen=True, slots=True)
class AppliedResult:
    """The command is in the log: it made ``epoch``."""

    request_id: str
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class RejectedResult:
    """The command was decided on the state of ``epoch`` and refused; it never has an effect."""

    request_id: str
    code: str
    detail: str
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class ExpiredResult:
    """Unknown, now final.

    No effect from here on, but there may have been one. Look in the log since ``since_epoch``.
    """

    request_id: str
    since_epoch: Epoch


@dataclass(frozen=True, slots=True)
class WithdrawnResult:
    """A Noop took the request's id with ``epoch``: whatever still carries it is a duplicate."""

    request_id: str
    epoch: Epoch


Submitted = AppliedResult | RejectedResult | ExpiredResult


def describe(answer: Submitted) -> str:
    """An answer as a sentence for logs and errors."""
    match answer:
        case AppliedResult():
            return f"applied at epoch {answer.epoch}"
        case RejectedResult():
            return f"{answer.code}: {answer.detail}"
        case _:
            return f"request_expired: unknown, now final; look in the log since epoch {answer.since_epoch}"

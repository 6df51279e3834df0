"""The root of Ringlog's errors.

Each error has a stable ``code``, a message, a ``hint`` with the next step, and ``retriable``: whether the same call may
succeed later without a change by the caller. Only a repeated call with the same request id is free of second effects;
see ``SubmissionTimedOut``.
"""

from __future__ import annotations

from typing import ClassVar


class RinglogError(Exception):
    """Base class of Ringlog's errors."""

    code: str = "error"
    hint: str = ""
    retriable: ClassVar[bool] = False

"""What becomes of a request, for callers: the answers of ``ringlog.protocol.answers``."""

from __future__ import annotations

from ringlog.protocol.answers import (
    AppliedResult,
    ExpiredResult,
    RejectedResult,
    Submitted,
    WithdrawnResult,
    describe,
)

__all__ = ["AppliedResult", "ExpiredResult", "RejectedResult", "Submitted", "WithdrawnResult", "describe"]

"""The root of Ringlog's errors.

Each error has a stable ``code``, a message, a ``hint`` with the next step, and ``retriable``: whether the same call may
succeed later without a change by the caller. Only a repeated call with the same request id is free of second effects;
see ``SubmissionTimedOut``.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

E = TypeVar("E", bound=Exception)


class RinglogError(Exception):
    """Base class of Ringlog's errors."""

    code: str = "error"
    hint: str = ""
    retriable: ClassVar[bool] = False

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to copy and unpickle the error. By default Python passes the message as the only argument."""
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[E], arguments: tuple[Any, ...], attributes: dict[str, Any]) -> E:
    error = kind.__new__(kind)
    error.args = arguments
    error.__dict__.update(attributes)
    return error

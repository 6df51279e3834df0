"""Answers to requests that are submitted together: one wait for all of them.

One future per request would cost as much as deciding the request, and the caller waits for all answers anyway. Each
answer is set by the thread of the client that received it.
"""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

T = TypeVar("T")


class ResultBatch(Generic[T]):
    """Result slots in order. One thread calls ``slot`` and ``results``; any thread may fill a slot."""

    def __init__(self) -> None:
        self._slots: list[ResultSlot[T]] = []
        self._lock = threading.Lock()
        # The extra count keeps the batch incomplete until ``results`` is called, so that an early answer does not end
        # the wait.
        self._open = 1
        self._whole = threading.Event()

    def slot(self) -> ResultSlot[T]:
        """Add a slot for one more answer."""
        with self._lock:
            self._open += 1
        slot = ResultSlot(self)
        self._slots.append(slot)
        return slot

    def results(self) -> tuple[T, ...]:
        """Wait for all answers and return them in slot order. No slot can follow. Raises the first error."""
        self.filled()
        self._whole.wait()
        return tuple([slot.result() for slot in self._slots])

    def filled(self) -> None:
        """Count one slot as filled."""
        with self._lock:
            self._open -= 1
            if self._open:
                return
        self._whole.set()


class ResultSlot(Generic[T]):
    """The slot of one answer. Like a future, it is filled once."""

    __slots__ = ("_answer", "_error", "_together")

    def __init__(self, batch: ResultBatch[T]) -> None:
        self._together = batch
        self._answer: T | None = None
        self._error: BaseException | None = None

    def set_result(self, answer: T) -> None:
        self._answer = answer
        self._together.filled()

    def set_exception(self, error: BaseException) -> None:
        self._error = error
        self._together.filled()

    def result(self) -> T:
        """Return the answer, or raise the error."""
        if self._error is not None:
            raise self._error
        assert self._answer is not None, "the answer is set before the event"
        return self._answer

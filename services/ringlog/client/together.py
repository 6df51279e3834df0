"""The answers to requests that are submitted together: one wait for all of them.

A future for each would cost as much as to decide the request, and who asked waits for all in any case. Answers come in
whichever of the client's threads found them.
"""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

T = TypeVar("T")


class ResultBatch(Generic[T]):
    """Seats for answers, in their order. ``slot`` and ``results``: for one thread; the seats are filled by any."""

    def __init__(self) -> None:
        self._seats: list[ResultSlot[T]] = []
        self._lock = threading.Lock()
        self._open = 1
        self._whole = threading.Event()

    def slot(self) -> ResultSlot[T]:
        """A place for one more answer."""
        with self._lock:
            self._open += 1
        slot = ResultSlot(self)
        self._seats.append(slot)
        return slot

    def results(self) -> tuple[T, ...]:
        """All answers, once they are there; there are no more seats. Raises the first error, in the order of seats."""
        self.filled()
        self._whole.wait()
        return tuple([slot.result() for slot in self._seats])

    def filled(self) -> None:
        """One seat has what it was for."""
        with self._lock:
            self._open -= 1
            if self._open:
                return
        self._whole.set()


class ResultSlot(Generic[T]):
    """The place of one answer; it is filled once, as a future is."""

    __slots__ = ("_answer", "_error", "_together")

    def __init__(self, batch: ResultBatch[T]) -> None:
        self._together = batch
        self._answer: T | None = None
        self._error: BaseException | None = None

    def set_result(self, answer: T) -> None:
        """There it is."""
        self._answer = answer
        self._together.filled()

    def set_exception(self, error: BaseException) -> None:
        """There will be none."""
        self._error = error
        self._together.filled()

    def result(self) -> T:
        """What it was filled with; raises the error."""
        if self._error is not None:
            raise self._error
        assert self._answer is not None, "it was filled"
        return self._answer

"""A stop signal ends a process at any moment."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from ringlog.runtime.process import stop_on_signals


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


class Held(threading.Event):
    """An event that records its thread: in the main thread, ``set`` would wait for a lock that the same thread may
    hold.
    """

    setter: threading.Thread | None = None

    def set(self) -> None:
        self.setter = threading.current_thread()
        super().set()


def test_the_handler_does_not_block() -> None:
    stopping = Held()
    stop_on_signals(stopping, (signal.SIGUSR1,))
    assert not stopping.is_set()
    for _ in range(3):
        signal.raise_signal(signal.SIGUSR1)
    assert stopping.wait(60)
    assert stopping.setter is not threading.main_thread()

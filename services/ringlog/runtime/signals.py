"""A request to stop that harms nobody who waits for it.

A signal's handler runs in the main thread, in the middle of whatever that does. If that is ``Event.wait``, the event's
lock may be held at that moment, and a handler that sets the event waits for it for ever. So a handler only puts a word
into a queue whose ``put`` may interrupt itself; a thread that waits for the word sets the event.
"""

from __future__ import annotations

import signal
import threading
from queue import SimpleQueue

STOP = (signal.SIGTERM, signal.SIGINT)


def stop_on_signals(stopping: threading.Event, numbers: tuple[signal.Signals, ...] = STOP) -> None:
    """Set ``stopping`` soon after one of these signals. For the main thread."""
    told: SimpleQueue[int] = SimpleQueue()

    def listen() -> None:
        told.get()
        stopping.set()

    threading.Thread(target=listen, name="signals", daemon=True).start()
    for number in numbers:
        signal.signal(number, lambda given, _frame: told.put(given))

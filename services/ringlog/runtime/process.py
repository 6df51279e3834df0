"""Signal handling and garbage collection of a process.

A signal handler runs in the main thread and interrupts other code. If that code is ``Event.wait``, the event's lock may
be held, and a handler that sets the event would deadlock. So the handler only puts the signal into a queue whose
``put`` is reentrant. A thread that reads the queue sets the event.

States and entries contain no reference cycles, so they are freed when they are replaced. By default the collector scans
young objects after every 700 net allocations. A batch of entries causes that many times, without effect. Imported
modules stay in memory. Scanning them during the imports and at exit takes a fifth of the run time of a small command.
"""

from __future__ import annotations

import gc
import signal
import threading
from queue import SimpleQueue
from typing import Final

STOP = (signal.SIGTERM, signal.SIGINT)


def stop_on_signals(stopping: threading.Event, numbers: tuple[signal.Signals, ...] = STOP) -> None:
    """Set ``stopping`` soon after one of these signals. Call this in the main thread."""
    signals: SimpleQueue[int] = SimpleQueue()

    def listen() -> None:
        signals.get()
        stopping.set()

    threading.Thread(target=listen, name="signals", daemon=True).start()
    for number in numbers:
        signal.signal(number, lambda given, _frame: signals.put(given))


GC_THRESHOLD: Final = 20_000
"""Net allocations between two scans of young objects."""


def reduce_gc() -> None:
    """Collect rarely, and exclude all present objects from later collections.

    The present objects live as long as the process. A full collection would scan all of them and block every request
    meanwhile.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)


def delay_gc() -> None:
    """Collect rarely during imports. For the first lines of a process."""
    gc.set_threshold(GC_THRESHOLD)


def skip_gc_at_exit() -> None:
    """Exclude all objects from the collection at exit. For the last lines of a process."""
    gc.freeze()

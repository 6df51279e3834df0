"""Settings of a process: how signals stop it, and how rarely Python's garbage collector runs.

A signal handler runs in the main thread, in the middle of other code. If that is ``Event.wait``, the lock of the event
may be held, and a handler that sets the event would wait for ever. So the handler only puts a word into a queue whose
``put`` may interrupt itself; a thread that reads the queue sets the event.

States and entries have no cycles: they are freed when they are replaced. By default the collector scans the young
values whenever 700 more were made than freed, which each batch of entries does many times, without effect. Modules
that a start loads stay. Scanning them while they are loaded and again at exit takes a fifth of a small command's time.
"""

from __future__ import annotations

import gc
import signal
import threading
from queue import SimpleQueue
from typing import Final

STOP = (signal.SIGTERM, signal.SIGINT)


def stop_on_signals(stopping: threading.Event, numbers: tuple[signal.Signals, ...] = STOP) -> None:
    """Set ``stopping`` soon after one of these signals. For the main thread."""
    signals: SimpleQueue[int] = SimpleQueue()

    def listen() -> None:
        signals.get()
        stopping.set()

    threading.Thread(target=listen, name="signals", daemon=True).start()
    for number in numbers:
        signal.signal(number, lambda given, _frame: signals.put(given))


YOUNG: Final = 20_000
"""Values made, less those that were freed, before the young ones are looked at."""


def rarely_collect() -> None:
    """Look at young values rarely, and never again at what there is by now: that stays for as long as the process.

    Nobody is answered during a full collection, and it would walk through all of it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG)


def load_undisturbed() -> None:
    """For the first lines of a process: look at young values rarely, from before its modules are loaded."""
    gc.set_threshold(YOUNG)


def end_undisturbed() -> None:
    """For the last lines of one: what is there by now goes with the process, and is not looked through before."""
    gc.freeze()

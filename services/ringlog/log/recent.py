"""The newest entries that a replica has applied, as the log has them: what a process can show others of its log.

One thread adds, any may read. Entries follow one another by their epochs; where a replica begins again with a later
state, so does this. What it may hold is bounded in bytes, and the oldest go.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Final

from ringlog.kernel.values import Epoch

HELD_BYTES_MAX: Final = 4 * 1024 * 1024
LAST_ALONE: Final = 0
"""No bytes but those of the last entry: enough for a process that nobody asks."""


class RecentEntries:
    """At most ``bytes_max`` of them, and always the last one."""

    def __init__(self, bytes_max: int = HELD_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._before: Epoch = 0
        self._entries: deque[bytes] = deque()
        self._bytes = self._since_mark = 0

    def add(self, epoch: Epoch, data: bytes, is_mark: bool = False) -> None:
        """The entry that made an epoch; ``is_mark``: it asks for a snapshot of that."""
        with self._lock:
            if epoch != self._before + len(self._entries) + 1:  # the state before this one is that of a snapshot
                self._entries.clear()
                self._before, self._bytes, self._since_mark = epoch - 1, 0, 0
            self._since_mark = 0 if is_mark else self._since_mark + len(data)
            self._entries.append(data)
            self._bytes += len(data)
            while self._bytes > self._bytes_max and len(self._entries) > 1:
                self._bytes -= len(self._entries.popleft())
                self._before += 1

    @property
    def since_mark(self) -> int:
        """Bytes of the entries that were applied since the newest mark of a snapshot."""
        return self._since_mark

    @property
    def before(self) -> Epoch:
        """The epoch before the oldest entry that is here."""
        return self._before

    def at(self, epoch: Epoch) -> bytes | None:
        """The entry that made that epoch, if it is here."""
        with self._lock:
            number = epoch - self._before - 1
            return self._entries[number] if 0 <= number < len(self._entries) else None

    def after(self, epoch: Epoch, page_bytes: int) -> tuple[bytes, ...] | None:
        """Entries that follow on that epoch, as many as go into a page; None if they are not here from there on."""
        with self._lock:
            begin = epoch - self._before
            if not 0 <= begin <= len(self._entries):
                return None
            return first_page(islice(self._entries, begin, None), page_bytes)


def first_page(entries: Iterable[bytes], page_bytes: int) -> tuple[bytes, ...]:
    """The first ones, as many as have that size together; one at least, if there is one."""
    taken, size = list[bytes](), 0
    for data in entries:
        size += len(data)
        if taken and size > page_bytes:
            break
        taken.append(data)
    return tuple(taken)

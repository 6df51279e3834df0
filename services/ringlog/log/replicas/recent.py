"""The newest entries that a replica has applied, as the log has them: what a process can show others of its log.

Who may be the next to store a snapshot keeps the state behind the newest mark, too: nobody else has it any more.

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
from ringlog.log.folding import Start

HELD_BYTES_MAX: Final = 4 * 1024 * 1024
LAST_ALONE: Final = 0
"""No bytes but those of the last entry: enough for a process that nobody asks."""


class RecentEntries:
    """At most ``bytes_max`` of them, and always the last one. ``keeps_mark``: until it is taken."""

    def __init__(self, bytes_max: int = HELD_BYTES_MAX, *, keeps_mark: bool = False) -> None:
        self._bytes_max = bytes_max
        self._keeps_mark = keeps_mark
        self._mark: Start | None = None
        self._lock = threading.Lock()
        self._before: Epoch = 0
        self._entries: deque[bytes] = deque()
        self._bytes = self._since_mark = 0

    def add(self, epoch: Epoch, data: bytes, mark: Start | None = None) -> None:
        """The entry that made an epoch; ``mark``: it asks for a snapshot of this."""
        with self._lock:
            if epoch != self._before + len(self._entries) + 1:  # the state before this one is that of a snapshot
                self._entries.clear()
                self._before, self._bytes, self._since_mark, self._mark = epoch - 1, 0, 0, None
            self._since_mark = 0 if mark is not None else self._since_mark + len(data)
            if self._keeps_mark:
                self._mark = mark or self._mark
            self._entries.append(data)
            self._bytes += len(data)
            while self._bytes > self._bytes_max and len(self._entries) > 1:
                self._bytes -= len(self._entries.popleft())
                self._before += 1

    @property
    def since_mark(self) -> int:
        """Bytes of the entries that were applied since the newest mark of a snapshot."""
        return self._since_mark

    def take_mark(self) -> Start | None:
        """The state behind the newest mark, if that was applied here; none is kept from here on."""
        with self._lock:
            mark, self._mark, self._keeps_mark = self._mark, None, False
            return mark

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

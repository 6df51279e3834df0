"""The newest entries that a replica has applied, as bytes, for peers that ask for them.

A process that may store the next snapshot also keeps the state after the newest mark, because the replica itself has
moved on.

Invariants: the epochs of the entries are consecutive. If the replica restarts from a later state, the buffer restarts,
too. The buffer is bounded in bytes, and the oldest entries are removed first. One thread adds entries; any thread may
read.
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
"""Keep only the last entry. For processes that no peer asks for entries."""


class RecentEntries:
    """The newest entries, at most ``bytes_max`` bytes, but always the last one.

    Args:
        keeps_mark: Keep the state after the newest mark until ``take_mark`` is called.
    """

    def __init__(self, bytes_max: int = HELD_BYTES_MAX, *, keeps_mark: bool = False) -> None:
        self._bytes_max = bytes_max
        self._keeps_mark = keeps_mark
        self._mark: Start | None = None
        self._lock = threading.Lock()
        self._before: Epoch = 0
        self._entries: deque[bytes] = deque()
        self._bytes = self._since_mark = 0

    def add(self, epoch: Epoch, data: bytes, mark: Start | None = None) -> None:
        """Add the entry that made an epoch.

        ``mark`` is the start after the entry if the entry requests a snapshot.
        """
        with self._lock:
            # The replica began again with a snapshot, so the entries are not consecutive. Restart the buffer.
            if epoch != self._before + len(self._entries) + 1:
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
        """Bytes of the entries that were applied since the newest snapshot mark."""
        return self._since_mark

    def take_mark(self) -> Start | None:
        """Return the state after the newest mark, if it was applied here. No mark is kept after this call."""
        with self._lock:
            mark, self._mark, self._keeps_mark = self._mark, None, False
            return mark

    @property
    def before(self) -> Epoch:
        """The epoch before the oldest entry in the buffer."""
        return self._before

    def at(self, epoch: Epoch) -> bytes | None:
        """Return the entry that made an epoch, or None if the buffer does not contain it."""
        with self._lock:
            number = epoch - self._before - 1
            return self._entries[number] if 0 <= number < len(self._entries) else None

    def after(self, epoch: Epoch, page_bytes: int) -> tuple[bytes, ...] | None:
        """Return the entries after an epoch that fit into one page, or None if the buffer lacks the next one."""
        with self._lock:
            begin = epoch - self._before
            if not 0 <= begin <= len(self._entries):
                return None
            return first_page(islice(self._entries, begin, None), page_bytes)


def first_page(entries: Iterable[bytes], page_bytes: int) -> tuple[bytes, ...]:
    """Return the first entries, at most ``page_bytes`` bytes in total, but at least one if there is one."""
    taken, size = list[bytes](), 0
    for data in entries:
        size += len(data)
        if taken and size > page_bytes:
            break
        taken.append(data)
    return tuple(taken)

"""The newest entries of the log, kept to be attached to a message: a replica that is behind need not wait for the log.

What is attached stands in the log already, so who folds it learns nothing that the log would not tell.
"""

from __future__ import annotations

import threading
from collections import deque

from ringlog.kernel.encoding import command_digest
from ringlog.kernel.outcome import Entry, Outcome, OutcomeKind, Undecodable, UnknownCommand, Unreadable
from ringlog.kernel.state import ClusterState
from ringlog.kernel.values import Epoch
from ringlog.wire.commands import encode_command
from ringlog.wire.entries import encode_entry

ENTRIES_MAX = 256
BYTES_MAX = 1024 * 1024


class RecentEntries:
    """The last applied entries, each with the epoch that it made. Safe from threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: deque[tuple[Epoch, Entry]] = deque(maxlen=ENTRIES_MAX)

    def follow(self, _: ClusterState, after: ClusterState, item: Entry | Unreadable, outcome: Outcome, __: int) -> None:
        """A record of the log goes by."""
        if outcome.kind is OutcomeKind.APPLIED and isinstance(item, Entry):
            with self._lock:
                self._entries.append((after.epoch, item))

    def between(self, below: Epoch, upto: Epoch) -> tuple[bytes, ...]:
        """The entries that lead from epoch ``below`` to ``upto``; none if not all of them are known, or if they are
        more than fits in a message.
        """
        with self._lock:
            wanted = [entry for epoch, entry in self._entries if below < epoch <= upto]
        if len(wanted) != upto - below:
            return ()
        found = tuple(_data(entry) for entry in wanted)
        return found if all(found) and sum(map(len, found)) <= BYTES_MAX else ()


def _data(entry: Entry) -> bytes:
    """The entry as it stands in the log; nothing where this release writes the command in another way."""
    if isinstance(entry.command, Undecodable | UnknownCommand):
        return b""
    kind, version, payload = encode_command(entry.command)
    if command_digest(kind, version, payload) != entry.digest:
        return b""
    return encode_entry(entry, payload)

"""Who makes entries: a port, since an author's clock and random bits are its driver's."""

from __future__ import annotations

from typing import Protocol

from ringlog.kernel.state import ClusterState
from ringlog.kernel.values import Command, Epoch
from ringlog.wire.entries import EncodedEntry


class MakesEntries(Protocol):
    """Makes entries and request ids for one submitter (``ringlog.log.author``)."""

    def new_request_id(self) -> str:
        """A fresh request id."""

    def entry(
        self, state: ClusterState, command: Command, *, request_id: str | None = None, since_epoch: Epoch | None = None
    ) -> EncodedEntry:
        """An entry that follows ``state``: a new request made at its epoch, unless the caller says whose it is."""

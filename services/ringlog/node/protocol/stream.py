"""The protocol of a stream of rows or registers: fetch pages from the source until all of them are on disk.

One call delivers a sequence of pages. If it breaks, because either side failed, the next call continues after the last
page that was kept. A stream is retried until it is complete, until it is no longer wanted, or until the limit of
attempts is reached (``ringlog.client.participant.stream_attempts``). After that an operator decides whether to retry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ringlog.client.participant.stream_attempts import StreamAttempts
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Value, replace
from ringlog.node.registers import registers
from ringlog.node.rows import replica as row_replica
from ringlog.node.rows.store import VersionsSum
from ringlog.protocol.effects import Effect, FaultPoint, WallClock
from ringlog.wire.data import Rows, RowVersion


class StreamInterrupted(Value):
    """The reason why a stream must be requested again.

    Attributes:
        is_late: True if the deadline of the call expired and nothing else is wrong.
    """

    why: str
    is_late: bool = False


class NextPage(Effect[Any], Value):
    """Fetch the next page. If ``is_first``, begin a new call after the last kept page.

    Outcome: the page, an empty page at the end of the stream, or StreamInterrupted.
    """

    is_first: bool


class KeepPage(Effect[bool], Value):
    """Store a page together with the position that it reaches. Outcome: False if the page is not wanted."""

    page: Any


class EndPages(Effect[None], Value):
    """Complete the stream. No outcome: the completion of a late stream is refused."""


class AwaitRetry(Effect[None], Value):
    """Wait before the next attempt.

    Attributes:
        seconds: The length of the wait, or None if the stream must not be tried at present.
        why: The reason why the last attempt failed.
    """

    seconds: float | None
    why: str = ""


async def stream(
    fetch: row_replica.RowFetch | registers.RegisterFetch,
    tries: StreamAttempts,
    wanted: Callable[[], bool],
    state: Callable[[], ClusterState],
) -> None:
    """Fetch the stream that ``fetch`` describes, while it is wanted.

    Args:
        wanted: Returns False if the stream is no longer needed under the newest adopted state.
        state: Returns the newest adopted state.
    """
    while wanted():
        await FaultPoint("streaming")
        if not tries.may_try(fetch, fetch.operation, state()):
            await AwaitRetry(None)
            continue
        broken = await _called()
        if broken is None:
            break
        # A call that reached its deadline after some progress is not a failed attempt: large streams need many calls.
        if not broken.is_late and wanted():
            now = await WallClock()
            again = tries.record_failure(fetch, fetch.operation, fetch.source, state(), broken.why, now)
            await AwaitRetry(again, broken.why)
    tries.forget(fetch)


async def _called() -> StreamInterrupted | None:
    """Perform one call. Return None if it completed the stream. A late call without progress counts as failed."""
    has_kept = False
    page = await NextPage(is_first=True)
    while not isinstance(page, StreamInterrupted):
        if not page:
            await EndPages()
            return None
        if not await KeepPage(page):
            return StreamInterrupted("the stream is obsolete, or the page does not match the request")
        has_kept = True
        page = await NextPage(is_first=False)
    return replace(page, is_late=page.is_late and has_kept)


class RowStreamProgress:
    """The progress of a stream of rows: the number of rows so far and the last one."""

    def __init__(self, rows: row_replica.RowReplica, fetch: row_replica.RowFetch) -> None:
        self.fetch = fetch
        self.last: RowVersion | None = None
        self.rows = 0
        self._row_replica = rows
        self._sum = VersionsSum()

    def keep(self, page: Rows) -> bool:
        """Store a page, for ``KeepPage``."""
        if not self._row_replica.take_in(self.fetch, page):
            return False
        self.last = page.rows[-1]
        self._sum.add(page.rows)
        self.rows += len(page)
        return True

    def end(self) -> bool:
        """Complete the stream, for ``EndPages``. Return False if the rows are no longer wanted."""
        return self._row_replica.complete(self.fetch, self.rows, self._sum.hex())

"""A stream of a node, of rows or of registers: page by page from its source, until it is all on the own disk.

A call brings one page after the other; one that breaks, whichever side was killed, is followed by another, which goes
on after the last page that was kept. A stream is tried until it is whole, or nobody wants it any more, or it was tried
as often as it may be (``ringlog.node.stream_attempts``): then an operator has it tried again, or not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ringlog.kernel.model.state import ClusterState
from ringlog.node.registers import registers
from ringlog.node.rows import replica as row_replica
from ringlog.node.rows.store import VersionsSum
from ringlog.node.stream_attempts import StreamAttempts
from ringlog.protocol.effects import FaultPoint, Steps, WallClock
from ringlog.wire.data import Rows, RowVersion


@dataclass(frozen=True, slots=True)
class AskAgain:
    """Why a stream has to be asked for again. ``is_late``: nothing is wrong, but the call's time is over."""

    why: str
    is_late: bool = False


@dataclass(frozen=True, slots=True)
class NextPage:
    """The next page of a call, the ``is_first`` one of a new call for what follows all that was kept. Outcome: it, an
    empty one at the end of the stream, or AskAgain.
    """

    is_first: bool


@dataclass(frozen=True, slots=True)
class KeepPage:
    """Have the page with what was kept before, and note how far that goes. Outcome: False if it is not to be kept."""

    page: Any


@dataclass(frozen=True, slots=True)
class EndPages:
    """All pages are here. No outcome: a stream that ends late is refused."""


@dataclass(frozen=True, slots=True)
class Again:
    """Wait before the next attempt; ``seconds`` is None if there is none as things are. ``why``: the last was in
    vain.
    """

    seconds: float | None
    why: str = ""


def stream(
    fetch: row_replica.RowFetch | registers.RegisterFetch,
    tries: StreamAttempts,
    wanted: Callable[[], bool],
    state: Callable[[], ClusterState],
) -> Steps[None]:
    """Have what ``fetch`` names streamed here, while it is ``wanted`` under the newest adopted ``state``."""
    while wanted():
        yield FaultPoint("streaming")
        if not tries.may_try(fetch, fetch.operation, state()):
            yield Again(None)
            continue
        broken: AskAgain | None = yield from _called()
        if broken is None:
            break
        if not broken.is_late and wanted():
            now = yield WallClock()
            again = tries.failed(fetch, fetch.operation, fetch.source, state(), broken.why, now)
            yield Again(again, broken.why)
    tries.over(fetch)


def _called() -> Steps[AskAgain | None]:
    """One call; None if it brought all that was missing. One that is late was in vain if it brought nothing."""
    has_kept = False
    page = yield NextPage(is_first=True)
    while not isinstance(page, AskAgain):
        if not page:
            yield EndPages()
            return None
        if not (yield KeepPage(page)):
            return AskAgain("nobody wants it any more, or what came was not asked for")
        has_kept = True
        page = yield NextPage(is_first=False)
    return replace(page, is_late=page.is_late and has_kept)


class GainedRows:
    """What has come of a stream of rows: ``rows`` in number, up to ``last``."""

    def __init__(self, rows: row_replica.RowReplica, fetch: row_replica.RowFetch) -> None:
        self.fetch = fetch
        self.last: RowVersion | None = None
        self.rows = 0
        self._row_replica = rows
        self._sum = VersionsSum()

    def keep(self, page: Rows) -> bool:
        """For ``KeepPage``."""
        if not self._row_replica.take_in(self.fetch, page):
            return False
        self.last = page.rows[-1]
        self._sum.add(page.rows)
        self.rows += len(page)
        return True

    def end(self) -> bool:
        """For ``EndPages``: False if nobody wants the rows any more."""
        return self._row_replica.complete(self.fetch, self.rows, self._sum.hex())

"""A stream of a node, of rows or of registers.

A stream is tried until it is whole, or nobody wants it any more, or it was tried as often as it may be
(``ringlog.node.tries``): then an operator has it tried again, or not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ringlog.kernel.state import ClusterState
from ringlog.node import holder, registers
from ringlog.node.tries import Tries
from ringlog.protocol.effects import At, Steps, WallClock


@dataclass(frozen=True, slots=True)
class AskAgain:
    """Why a stream has to be asked for again. ``got_on``: the call was not in vain, it only was too short."""

    why: str
    got_on: bool = False


@dataclass(frozen=True, slots=True)
class PullMissing:
    """Ask the source for what is missing, and keep it. Outcome: Broken, None if nothing is missing any more."""


@dataclass(frozen=True, slots=True)
class Again:
    """Wait before the next attempt; ``seconds`` is None if there is none as things are."""

    seconds: float | None


def stream(
    fetch: holder.RowFetch | registers.RegisterFetch,
    tries: Tries,
    wanted: Callable[[], bool],
    state: Callable[[], ClusterState],
) -> Steps[None]:
    """Have what ``fetch`` names streamed here, while it is ``wanted`` under the newest adopted ``state``."""
    while wanted():
        yield At("streaming")
        if not tries.may_try(fetch, fetch.operation, state()):
            yield Again(None)
            continue
        broken: AskAgain | None = yield PullMissing()
        if broken is None:
            break
        if not broken.got_on:
            now = yield WallClock()
            yield Again(tries.failed(fetch, fetch.operation, fetch.source, state(), broken.why, now))
    tries.over(fetch)

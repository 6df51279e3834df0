"""Sending a chain of entries until the fate of each is final, whatever the broker answers.

The identical entries are sent again until they are applied or can never be: a lost acknowledgement, a lost record and
a late copy all come to the same. Entries before the first open one are final and are not sent again.

To give up an *entry*, a Noop with the same predecessor is sent (``settle``): one of the two is applied, and both
fates are final.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import structlog

from ringlog.kernel.commands.model import Noop
from ringlog.kernel.values import Epoch
from ringlog.log.author import Author
from ringlog.log.errors import LogError, LogUnavailable, WaitTimedOut
from ringlog.log.fates import Chain, Fate, all_final, fates, open_entries
from ringlog.log.port import MetadataLog
from ringlog.log.replica import Replica
from ringlog.wire.entries import EncodedEntry

RESEND_S = 0.5

log = structlog.get_logger(__name__)


class FateOpen(LogError):
    """The deadline came while entries were open: each may be applied later, or never. ``settle`` ends that."""

    code = "fate_open"

    def __init__(self, chain: Chain, judged: tuple[Fate, ...], waited_s: float) -> None:
        count = len(open_entries(chain, judged))
        super().__init__(
            f"waited {waited_s:.1f} s for the fate of {count} entries after epoch {chain.base}",
            "they may still be applied; settle them with a Noop on the same predecessor",
        )
        self.chain = chain
        self.judged = judged


@dataclass(frozen=True, slots=True)
class Committed:
    """Final fates of a chain, and the epoch that the replica had reached then."""

    fates: tuple[Fate, ...]
    epoch: Epoch


def commit(
    metadata: MetadataLog, replica: Replica, chain: Chain, *, timeout_s: float = 30.0, resend_s: float = RESEND_S
) -> Committed:
    """Append the chain and wait for final fates, sending open entries again every ``resend_s``.

    Raises FateOpen at the deadline, ReplicaHalted or ReplicaStopped if nobody folds any more, RecordTooLarge if the
    log will never take one of the entries.
    """
    started = time.monotonic()
    judged = fates(replica.state, chain)
    while not all_final(judged):
        try:
            metadata.append([encoded.data for encoded in open_entries(chain, judged)])
        except LogUnavailable as error:
            log.warning("append_unanswered", log=metadata.name, entries=len(chain.entries), error=error.message)
        left = timeout_s - (time.monotonic() - started)
        judged = _await_fates(replica, chain, min(resend_s, left))
        if left <= resend_s and not all_final(judged):
            raise FateOpen(chain, judged, time.monotonic() - started)
    return Committed(judged, replica.state.epoch)


def _await_fates(replica: Replica, chain: Chain, timeout_s: float) -> tuple[Fate, ...]:
    def final() -> tuple[Fate, ...] | None:
        judged = fates(replica.state, chain)
        return judged if all_final(judged) else None

    try:
        return replica.wait_for(lambda _: final(), timeout_s, "the fates of entries")
    except WaitTimedOut:
        return fates(replica.state, chain)


def settle(
    metadata: MetadataLog, replica: Replica, author: Author, chain: Chain, *, timeout_s: float = 30.0
) -> Committed:
    """Make every fate of the chain final without sending its entries again: a Noop takes the place of the first open
    one.

    Entries that got there first stay applied. Raises FateOpen (of the Noop) at the deadline.
    """
    started = time.monotonic()
    while True:
        state = replica.read_barrier(timeout_s)
        judged = fates(state, chain)
        if all_final(judged):
            return Committed(judged, state.epoch)
        noop: EncodedEntry = author.entry(state, Noop())
        assert noop.entry.prev_state_id == open_entries(chain, judged)[0].entry.prev_state_id
        left = timeout_s - (time.monotonic() - started)
        commit(metadata, replica, Chain(state.epoch, (noop,)), timeout_s=max(left, 0.0))

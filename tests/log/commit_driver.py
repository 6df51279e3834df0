"""Commit and settle a chain in the calling thread: ``ringlog.protocol.submission.commit`` on a log.

To settle an *entry*, the author sends a Noop with the same predecessor: the log applies one of the two, and both
outcomes are final.
"""

from __future__ import annotations

import time

from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.values import Epoch, Micros, Value
from ringlog.log.author import Author
from ringlog.log.errors import LogError
from ringlog.log.port import MetadataLog
from ringlog.log.replicas.driver import LogDriver, micros
from ringlog.log.replicas.replica import LogReplica
from ringlog.protocol.effects import FOREVER, Barrier, Now, Steps
from ringlog.protocol.submission import commit as protocol
from ringlog.protocol.submission.results import CommitOutcome, EntryChain, all_final, commit_outcomes, open_entries


class FateOpen(LogError):
    """Raised at the deadline while entries are open: the log may apply each of them later, or never. ``settle`` ends
    that.
    """

    code = "fate_open"

    def __init__(self, chain: EntryChain, judged: tuple[CommitOutcome, ...], waited_s: float) -> None:
        count = len(open_entries(chain, judged))
        super().__init__(
            f"waited {waited_s:.1f} s for the fate of {count} entries after epoch {chain.base}",
            "they may still be applied; settle them with a Noop on the same predecessor",
        )
        self.chain = chain
        self.judged = judged


class Committed(Value):
    """Final outcomes of a chain, and the epoch of the replica at that time."""

    commit_outcomes: tuple[CommitOutcome, ...]
    epoch: Epoch


def commit(
    metadata: MetadataLog,
    replica: LogReplica,
    chain: EntryChain,
    *,
    timeout_s: float = 30.0,
    resend_s: float = protocol.RESEND / 1e6,
) -> Committed:
    """Append the chain and wait for final outcomes; send open entries again every ``resend_s``.

    Raises FateOpen at the deadline, ReplicaHalted or ReplicaStopped if the replica has stopped, RecordTooLarge if the
    log rejects the size of an entry.
    """
    return _fates_of(metadata, replica, protocol.commit(chain, micros(timeout_s), micros(resend_s)))


def settle(
    metadata: MetadataLog, replica: LogReplica, author: Author, chain: EntryChain, *, timeout_s: float = 30.0
) -> Committed:
    """Make every outcome of the chain final without sending its entries again. Raises FateOpen (of a Noop)."""
    return _fates_of(metadata, replica, settling(author, chain, micros(timeout_s)))


def _fates_of(metadata: MetadataLog, replica: LogReplica, steps: Steps[tuple[CommitOutcome, ...]]) -> Committed:
    started = time.monotonic()
    try:
        judged = LogDriver(metadata, replica).run_steps(steps)
    except protocol.Undecided as error:
        raise FateOpen(error.chain, error.judged, time.monotonic() - started) from error
    return Committed(judged, replica.state.epoch)


async def settling(author: Author, chain: EntryChain, timeout: Micros = FOREVER) -> tuple[CommitOutcome, ...]:
    """Make every outcome of the chain final without sending its entries again: a Noop replaces the first open entry.

    Entries that arrived earlier stay applied. Raises Undecided (of the Noop).
    """
    deadline = await Now() + timeout
    while True:
        state = await Barrier(timeout)
        judged = commit_outcomes(state, chain)
        if all_final(judged):
            return judged
        noop = author.entry(state, Noop())
        assert noop.entry.prev_state_id == open_entries(chain, judged)[0].entry.prev_state_id
        await protocol.commit(EntryChain(state.epoch, (noop,)), max(deadline - await Now(), 0))

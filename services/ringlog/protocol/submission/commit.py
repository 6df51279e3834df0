"""The commit of a chain: send its entries until the outcome of each is final, independent of the broker's answers.

The identical entries are sent again until they are applied or can never be. A lost acknowledgement, a lost record and a
late copy make no difference. Entries before the first open one are final and are not sent again. The pauses double,
because each copy is more work for a replica that is slow already.
"""

from __future__ import annotations

from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Micros
from ringlog.protocol.effects import FOREVER, Append, Newest, Now, Until
from ringlog.protocol.submission.results import (
    CommitOutcome,
    EntryChain,
    all_final,
    commit_outcomes,
    open_entries,
)

RESEND: Micros = 500_000
PAUSES_MAX = 8
"""The longest pause between two copies, as a multiple of the first."""


class Undecided(Exception):
    """The timeout passed while entries of the chain were open. Each may still be applied later, or never."""

    def __init__(self, chain: EntryChain, judged: tuple[CommitOutcome, ...]) -> None:
        super().__init__(f"{len(open_entries(chain, judged))} entries after epoch {chain.base} are open")
        self.chain = chain
        self.judged = judged


async def commit(
    chain: EntryChain, timeout: Micros = FOREVER, resend: Micros = RESEND, already_sent: int = 0
) -> tuple[CommitOutcome, ...]:
    """Append the chain until its outcomes are final, and return them.

    Args:
        resend: the first pause before open entries are sent again. Later pauses double.
        handed: the number of first entries that were appended just before.

    Raises Undecided.
    """
    deadline = await Now() + timeout
    judged = commit_outcomes(await Newest(), chain)

    def final(state: ClusterState) -> tuple[CommitOutcome, ...] | None:
        found = commit_outcomes(state, chain)
        return found if all_final(found) else None

    pause = resend
    while not all_final(judged):
        unsent = open_entries(chain, judged, already_sent)
        if unsent:
            await Append(tuple(encoded.data for encoded in unsent))
        # The handed entries may be lost, too. Later rounds send them again.
        already_sent = 0
        left = deadline - await Now()
        seen = await Until(final, min(pause, left), "the outcomes of entries")
        judged = commit_outcomes(await Newest(), chain) if seen is None else seen
        if left <= pause and not all_final(judged):
            raise Undecided(chain, judged)
        pause = min(2 * pause, PAUSES_MAX * resend)
    return judged

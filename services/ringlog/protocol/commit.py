"""Sending a chain of entries until the fate of each is final, whatever the broker answers.

The identical entries are sent again until they are applied or can never be: a lost acknowledgement, a lost record and
a late copy all come to the same. Entries before the first open one are final and are not sent again.

To give up an *entry*, a Noop with the same predecessor is sent (``settle``): one of the two is applied, and both
fates are final.
"""

from __future__ import annotations

from ringlog.kernel.commands.cluster import Noop
from ringlog.kernel.state import ClusterState
from ringlog.kernel.values import Micros
from ringlog.protocol.authors import MakesEntries
from ringlog.protocol.effects import FOREVER, Append, Barrier, Newest, Now, Steps, Until
from ringlog.protocol.fates import Chain, Fate, all_final, fates, open_entries

RESEND: Micros = 500_000


class Undecided(Exception):
    """Patience ended while entries of the chain were open: each may be applied later, or never."""

    def __init__(self, chain: Chain, judged: tuple[Fate, ...]) -> None:
        super().__init__(f"{len(open_entries(chain, judged))} entries after epoch {chain.base} are open")
        self.chain = chain
        self.judged = judged


def commit(chain: Chain, patience: Micros = FOREVER, resend: Micros = RESEND) -> Steps[tuple[Fate, ...]]:
    """Append the chain and wait for final fates, sending open entries again every ``resend``. Raises Undecided."""
    deadline = (yield Now()) + patience
    judged = fates((yield Newest()), chain)

    def final(state: ClusterState) -> tuple[Fate, ...] | None:
        found = fates(state, chain)
        return found if all_final(found) else None

    while not all_final(judged):
        yield Append(tuple(encoded.data for encoded in open_entries(chain, judged)))
        left = deadline - (yield Now())
        seen = yield Until(final, min(resend, left), "the fates of entries")
        judged = fates((yield Newest()), chain) if seen is None else seen
        if left <= resend and not all_final(judged):
            raise Undecided(chain, judged)
    return judged


def settle(author: MakesEntries, chain: Chain, patience: Micros = FOREVER) -> Steps[tuple[Fate, ...]]:
    """Make every fate of the chain final without sending its entries again: a Noop takes the place of the first open
    one.

    Entries that got there first stay applied. Raises Undecided (of the Noop).
    """
    deadline = (yield Now()) + patience
    while True:
        state = yield Barrier(patience)
        judged = fates(state, chain)
        if all_final(judged):
            return judged
        noop = author.entry(state, Noop())
        assert noop.entry.prev_state_id == open_entries(chain, judged)[0].entry.prev_state_id
        left = max(deadline - (yield Now()), 0)
        yield from commit(Chain(state.epoch, (noop,)), left)

"""The fate of entries that were sent: applied, lost, or still open.

An author sends a *chain*: entries each of which names the one before as its predecessor, the first one a state that
the log has. A fate is final when

- the entry is applied,
- another entry with the same predecessor is applied, or
- its predecessor's fate is final without effect.

To have *seen* an entry as stale is no fate: a copy of it may still be on its way, and its predecessor may still arrive.

The predecessor fixes the epoch: entry i of a chain on epoch b makes epoch b + 1 + i or nothing, and so does every
other entry with that predecessor. So a fate is read from the history at that epoch, in chain order, whatever the
order of arrival was. An epoch that has left the history gives ``FORGOTTEN``: final, but nobody can tell which way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from ringlog.kernel.state import ClusterState
from ringlog.kernel.values import Epoch
from ringlog.wire.entries import EncodedEntry


class Fate(Enum):
    """What became of an entry that was sent."""

    OPEN = "open"
    APPLIED = "applied"
    LOST = "lost"
    FORGOTTEN = "forgotten"


@dataclass(frozen=True, slots=True)
class EntryChain:
    """Entries sent together. ``base``: the epoch of the state that the first one follows (0 for a founding entry)."""

    base: Epoch
    entries: tuple[EncodedEntry, ...]

    def __post_init__(self) -> None:
        for before, after in zip(self.entries, self.entries[1:], strict=False):
            assert after.entry.prev_state_id == before.entry.state_id, "a chain's entries follow one another"


def fates(state: ClusterState, chain: EntryChain) -> tuple[Fate, ...]:
    """The fate of each entry of the chain, as the log that leads to ``state`` has decided it."""
    judged: list[Fate] = []
    before = Fate.APPLIED
    for epoch, encoded in enumerate(chain.entries, start=chain.base + 1):
        before = _fate(state, epoch, encoded.entry.state_id, before)
        judged.append(before)
    return tuple(judged)


def _fate(state: ClusterState, epoch: Epoch, state_id: str, before: Fate) -> Fate:
    if before is Fate.LOST:
        return Fate.LOST
    if epoch > state.epoch:
        return Fate.OPEN
    applied = state.history.at(epoch)
    if applied is None:
        return Fate.FORGOTTEN
    return Fate.APPLIED if applied.state_id == state_id else Fate.LOST


def all_final(judged: Sequence[Fate]) -> bool:
    """True when nothing that may still happen can change these fates."""
    return Fate.OPEN not in judged


def is_over(chain: EntryChain, state: ClusterState) -> bool:
    """True when all fates are final, by the newest epoch alone: a chain of which that is an entry goes on."""
    behind = state.epoch - chain.base
    if not 0 < behind < len(chain.entries):
        return behind > 0
    return state.state_id != chain.entries[behind - 1].entry.state_id


def open_entries(chain: EntryChain, judged: Sequence[Fate], behind: int = 0) -> tuple[EncodedEntry, ...]:
    """The entries to send again, identically and in chain order; of those behind the first ``behind`` ones."""
    both = zip(chain.entries[behind:], judged[behind:], strict=True)
    return tuple(encoded for encoded, fate in both if fate is Fate.OPEN)

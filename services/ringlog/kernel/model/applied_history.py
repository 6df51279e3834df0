"""The history as a value: the last applied entries by epoch, with lookup by id.

The epochs are consecutive, so the entries are a sequence: whole *blocks* of ``BLOCK`` epochs, shared between states,
and the growing *tail*. Entries below ``oldest`` count as forgotten at once and are removed one block at a time. State
ids ascend with the epochs (``fold``), so they are found by bisection. Request ids have two indexes: a small one of the
tail, and one of the blocks that changes once in ``BLOCK`` epochs. So an entry costs the same, a copy of half a block,
at any size of the history.

Two histories are equal if they remember the same. The blocks differ between a replica that folded from the start and
one that began with a stored state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

from immutables import Map

from ringlog.kernel.values import Epoch, Value

BLOCK: Final = 128
_NONE: Final[Map[str, int]] = Map()


class Applied(Value):
    """One applied entry, as history remembers it. ``digest``: hex SHA-256 of kind, version and payload."""

    epoch: Epoch
    state_id: str
    request_id: str
    digest: str


class History(Value, eq=False):
    """The last applied entries, bounded by the setting ``history_entries``.

    ``oldest``: the oldest epoch still known. ``blocks``, ``tail``: entries by epoch; every block is whole except the
    first, which may begin anywhere. ``old``, ``recent``: request id to epoch, of the blocks and of the tail.
    """

    oldest: Epoch = 0
    blocks: tuple[tuple[Applied, ...], ...] = ()
    tail: tuple[Applied, ...] = ()
    old: Map[str, int] = _NONE
    recent: Map[str, int] = _NONE

    def __len__(self) -> int:
        return self.tail[-1].epoch - self.first + 1 if self.tail else 0

    def __iter__(self) -> Iterator[Applied]:
        """Yield the entries by epoch."""
        if not self.tail:
            return iter(())
        kept = chain.from_iterable((*self.blocks, self.tail))
        begins = (self.blocks or (self.tail,))[0][0].epoch
        for _ in range(self.first - begins):
            next(kept)
        return kept

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, History):
            return NotImplemented
        return self is other or (self.oldest == other.oldest and tuple(self) == tuple(other))

    def __hash__(self) -> int:
        return hash((self.oldest, self.tail[-1:]))

    @property
    def first(self) -> Epoch:
        """Return the first remembered epoch, if there is one."""
        return max(self.oldest, 1)

    def at(self, epoch: Epoch) -> Applied | None:
        """Return the entry of an epoch, or None if it is not remembered."""
        tail = self.tail
        if not tail or not self.first <= epoch <= tail[-1].epoch:
            return None
        if epoch >= tail[0].epoch:
            return tail[epoch - tail[0].epoch]
        last = self.blocks[-1]
        block = self.blocks[(epoch - 1) // BLOCK - (last[0].epoch - 1) // BLOCK - 1]
        found = block[epoch - block[0].epoch]
        assert found.epoch == epoch, "blocks begin at epochs of 1 modulo BLOCK"
        return found

    def of_request(self, request_id: str) -> Applied | None:
        """Return the applied entry of a request, or None."""
        epoch = self.recent.get(request_id) or self.old.get(request_id)
        found = None if epoch is None else self.at(epoch)
        assert found is None or found.request_id == request_id, "the indexes name the entry of a request"
        return found

    def of_state(self, state_id: str) -> Applied | None:
        """Return the applied entry that made a state, or None."""
        if not self.tail or state_id > self.tail[-1].state_id:
            return None
        low, high = self.first, self.tail[-1].epoch
        while low <= high:
            middle = (low + high) // 2
            found = self.at(middle)
            assert found is not None, "the history has all epochs between its first and its last"
            if found.state_id == state_id:
                return found
            low, high = (middle + 1, high) if found.state_id < state_id else (low, middle - 1)
        return None

    def with_(self, applied: Applied, entries_max: int) -> History:
        """Return this history with ``applied`` added, reduced to at most ``entries_max`` entries."""
        epoch, oldest, blocks, tail = applied.epoch, self.oldest, self.blocks, self.tail
        assert not tail or epoch == tail[-1].epoch + 1, "epochs are consecutive"
        if epoch >= entries_max:
            oldest = max(oldest, epoch - entries_max + 1)
        # A block begins at an epoch of 1 modulo BLOCK, so ``at`` finds it by a division.
        if epoch % BLOCK != 1 or not tail:
            recent = self.recent.set(applied.request_id, epoch)
            return History(oldest, blocks, tail + (applied,), self.old, recent)  # noqa: RUF005 (half the time)
        assert len(tail) == BLOCK or (not blocks and len(tail) < BLOCK), "only the first block may be incomplete"
        blocks, gone = (*blocks, tail), 0
        with self.old.mutate() as old:
            for one in tail:
                old[one.request_id] = one.epoch
            while gone < len(blocks) and blocks[gone][-1].epoch < oldest:
                for one in blocks[gone]:
                    if old.get(one.request_id) == one.epoch:  # it may be applied again since
                        del old[one.request_id]
                gone += 1
            kept = old.finish()
        return History(oldest, blocks[gone:], (applied,), kept, Map({applied.request_id: epoch}))


EMPTY_HISTORY: Final = History()


def history_of(oldest: Epoch, entries: Iterable[Applied]) -> History:
    """Return a history of these entries, which have consecutive epochs."""
    known = History(oldest)
    for one in entries:
        known = known.with_(one, one.epoch)
    return History(oldest, known.blocks, known.tail, known.old, known.recent)

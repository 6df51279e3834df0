"""Token maps in ring order, at the cost of their difference.

The plan of a movement needs all tokens in ascending order and a plain dictionary of their owners. Building them from a
persistent map of sixteen thousand tokens takes several milliseconds; updating those of the previous map takes a tenth.
So the results of the last few maps are cached.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
from immutables import Map
from numpy.typing import NDArray

from ringlog.kernel.columns.lazy_tuple import IdentityCache
from ringlog.kernel.values import NodeId, Token

Ordered = tuple[tuple[Token, ...], Mapping[Token, NodeId], Mapping[NodeId, int]]
"""The tokens in ascending order, their owners, and the number of tokens of each owner."""

CACHED_MAX: Final = 4

_cached: Final = IdentityCache[Map[Token, NodeId], Ordered](CACHED_MAX)
_after: Final = IdentityCache[Sequence[Token], tuple[tuple[Token, ...], dict[Token, NodeId], Ordered]](2)
"""Ordered tokens to a change (tokens gone, tokens added) and its result: a plan needs it, and its last step again."""

_ARRAY_FROM: Final = 1_024
"""Minimum number of tokens that are also kept as an array."""

_arrays: Final = IdentityCache[Sequence[Token], NDArray[np.int64]](2)
"""Ordered tokens to the same as an array, updated from that of the previous tokens."""


def in_order_of(owners: Mapping[Token, NodeId]) -> Ordered:
    """Return the ordered form of a token map; read-only."""
    if isinstance(owners, Map) and (found := _cached.get(owners)) is not None:
        return found
    plain = dict(owners.items())
    made = tuple(sorted(plain)), plain, Counter(plain.values())
    return _cached.put(owners, made) if isinstance(owners, Map) else made


def changed_map(owners: Map[Token, NodeId], gone: Iterable[Token], come: Mapping[Token, NodeId]) -> Map[Token, NodeId]:
    """Return the map without the tokens ``gone``, and with the tokens ``come``, which are new or get another owner."""
    changed = owners
    for token in gone:
        changed = changed.delete(token)
    changed = changed.update(come)
    if (known := _cached.get(owners)) is not None and changed is not owners:
        _cached.put(changed, with_tokens(*known, gone, come))
    return changed


def array_of(tokens: Sequence[Token], more: Iterable[Token] = ()) -> NDArray[np.int64]:
    """Return ascending ``tokens`` with ``more``, which are not among them, as an array; read-only."""
    known = _arrays.get(tokens)
    if known is None:
        known = _arrays.put(tokens, np.array(tokens, dtype=np.int64))
    own = np.array(sorted(more), dtype=np.int64)
    if not len(own):
        return known
    both = np.insert(known, np.searchsorted(known, own), own)
    assert (both[1:] > both[:-1]).all(), "tokens ascend, and added tokens are new"
    return both


def merged(tokens: Iterable[Token], others: Iterable[Token]) -> list[Token]:
    """Return ascending ``tokens`` with others that are not among them: a copy with insertions, without sorting."""
    after = list(tokens)
    for token in others:
        insort(after, token)
    return after


def with_tokens(
    tokens: Sequence[Token],
    owners: Mapping[Token, NodeId],
    counts: Mapping[NodeId, int],
    gone: Iterable[Token],
    come: Mapping[Token, NodeId],
) -> Ordered:
    """Return the ordered form of ``changed_map``: copies with insertions, without sorting."""
    gone, come = tuple(gone), dict(come)
    asked = _after.get(tokens)
    if asked is not None and asked[0] == gone and asked[1] == come:
        return asked[2]
    after, held, counted = list(tokens), dict(owners), dict(counts)
    left = []
    for token in gone:
        left.append(held.pop(token))
        del after[bisect_left(after, token)]
    for token, owner in come.items():
        if token not in held:
            insort(after, token)
        else:
            left.append(held[token])
        held[token] = owner
        counted[owner] = counted.get(owner, 0) + 1
    for owner in left:
        counted[owner] -= 1
        if not counted[owner]:
            del counted[owner]
    assert len(after) == len(held), "every token has one owner"
    assert sum(counted.values()) == len(held), "token counts of owners sum to the number of tokens"
    made = tuple(after), held, counted
    if len(tokens) >= _ARRAY_FROM and not gone:
        _arrays.put(made[0], array_of(tokens, [token for token in come if token not in owners]))
    _after.put(tokens, (gone, come, made))
    return made

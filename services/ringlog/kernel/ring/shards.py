"""The shard (core) of a node that owns a token: ScyllaDB's biased-token-round-robin.

A token is shifted to the unsigned range, its top ``ignore_msb`` bits are dropped, and the remaining range is divided
evenly among the shards. So with ``ignore_msb`` = 12 every shard owns 4096 slices of the ring.
"""

from __future__ import annotations

from ringlog.kernel.values import TOKEN_MAX, TOKEN_MIN, Token

SHARDS_MAX = 4096
IGNORE_MSB_MAX = 63

_HALF = 1 << 63
_WHOLE = 1 << 64


def shard_of(token: Token, shards: int, ignore_msb: int) -> int:
    """Return the shard, from 0, of ``shards`` (at least 1) that owns ``token``, ignoring ``ignore_msb`` (0-63) bits."""
    return (((token + _HALF) << ignore_msb) % _WHOLE * shards) >> 64


def first_token_of_shard(start: Token, end: Token, shard: int, shards: int, ignore_msb: int) -> Token:
    """Return the first token of the range ``(start, end]`` that ``shard`` owns; ``end`` itself if it owns none there.

    A range with ``start >= end`` wraps: it is searched from ``start`` to the greatest token, then from the least token.
    """
    if start < end:
        found = _first_between(start, end, shard, shards, ignore_msb)
        return end if found is None else found
    if start < TOKEN_MAX:
        found = _first_between(start, TOKEN_MAX, shard, shards, ignore_msb)
        if found is not None:
            return found
    found = _first_between(TOKEN_MIN - 1, end, shard, shards, ignore_msb)
    return end if found is None else found


def _first_between(start: Token, end: Token, shard: int, shards: int, ignore_msb: int) -> Token | None:
    """Return the least token in the non-wrapping range ``(start, end]`` that ``shard`` owns, or None."""
    candidate = start + 1
    if candidate > end:
        return None
    here = shard_of(candidate, shards, ignore_msb)
    if here != shard:
        candidate = _next_start(candidate, here, shard, shards, ignore_msb)
    if candidate > end:
        return None
    # With more shards than values in a slice, some shards own no token at all.
    return candidate if shard_of(candidate, shards, ignore_msb) == shard else None


def _next_start(token: Token, here: int, shard: int, shards: int, ignore_msb: int) -> Token:
    """Return the least token above ``token``, which is in shard ``here``, that starts a slice of ``shard``.

    It may exceed the greatest token: then the ring wraps before the next slice.
    """
    low_bits = 64 - ignore_msb
    slice_number = (token + _HALF) >> low_bits
    if shard < here:
        slice_number += 1
    # The least v with (v << ignore_msb) * shards >> 64 == shard, that is v >= shard * 2**low_bits / shards.
    within = -(-(shard << low_bits) // shards)
    found = (slice_number << low_bits) + within - _HALF
    assert found > token, "the found token is above the given token"
    return found

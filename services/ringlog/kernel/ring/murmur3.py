"""Tokens of partition keys: MurmurHash3 x64 128-bit as Cassandra and ScyllaDB compute it.

A key of one column is the raw serialised value. A key of several columns has, for each component, its length in 2 bytes
big-endian, its bytes and one zero byte.

The seed is 0 and the token is the first half of the hash, signed. One thing differs from the standard algorithm: the
bytes of the tail (the last ``length mod 16``) are sign-extended to 64 bits before they are mixed in. So a tail byte of
0x80 or more flips every bit above its own position. Whole 16-byte blocks are not affected.

The smallest signed value is not a token: a raw hash of -2**63 becomes 2**63-1. The empty key has token 0.

This scalar version is the definition; ``ringlog.kernel.ring.vectors`` is the fast one and is tested against it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ringlog.kernel.values import TOKEN_MAX, Token

MASK = (1 << 64) - 1
C1 = 0x87C37B91114253D5
C2 = 0x4CF5AD432745937F
FINAL_1 = 0xFF51AFD7ED558CCD
FINAL_2 = 0xC4CEB9FE1A85EC53
BLOCK = 16


def token_of(key: bytes) -> Token:
    """Return the token of a composed partition key (see ``compose``). Every byte string has one."""
    whole = len(key) // BLOCK * BLOCK
    h1 = h2 = 0
    for at in range(0, whole, BLOCK):
        k1 = int.from_bytes(key[at : at + 8], "little")
        k2 = int.from_bytes(key[at + 8 : at + 16], "little")
        h1 ^= _mix(k1, C1, 31, C2)
        h1 = ((_rotate(h1, 27) + h2) * 5 + 0x52DCE729) & MASK
        h2 ^= _mix(k2, C2, 33, C1)
        h2 = ((_rotate(h2, 31) + h1) * 5 + 0x38495AB5) & MASK
    h2 ^= _mix(_signed_tail(key[whole + 8 :]), C2, 33, C1)
    h1 ^= _mix(_signed_tail(key[whole : whole + 8]), C1, 31, C2)
    h1 ^= len(key)
    h2 ^= len(key)
    h1 = (h1 + h2) & MASK
    h2 = (h2 + h1) & MASK
    return as_token((_avalanche(h1) + _avalanche(h2)) & MASK)


def as_token(raw: int) -> Token:
    """Return the token of a raw unsigned 64-bit hash: signed, with the one illegal value replaced by the greatest
    token.
    """
    assert 0 <= raw <= MASK, "a hash has 64 bits"
    signed = raw - (1 << 64) if raw >> 63 else raw
    return TOKEN_MAX if signed == -(1 << 63) else signed


def _signed_tail(tail: bytes) -> int:
    """Return up to 8 tail bytes as one little-endian word, each byte sign-extended before it is XORed in."""
    assert len(tail) <= BLOCK // 2, "a tail fits into half a block"
    if tail.isascii():  # no byte has its top bit set
        return int.from_bytes(tail, "little")
    word = 0
    for place, byte in enumerate(tail):
        extended = byte | (MASK ^ 0xFF) if byte & 0x80 else byte
        word ^= (extended << (8 * place)) & MASK
    return word


def _mix(word: int, first: int, turn: int, second: int) -> int:
    return (_rotate((word * first) & MASK, turn) * second) & MASK


def _rotate(word: int, by: int) -> int:
    return ((word << by) | (word >> (64 - by))) & MASK


def _avalanche(word: int) -> int:
    word ^= word >> 33
    word = (word * FINAL_1) & MASK
    word ^= word >> 33
    word = (word * FINAL_2) & MASK
    return word ^ (word >> 33)


COMPONENT_BYTES_MAX = 65_535


def compose(components: Sequence[bytes]) -> bytes:
    """Return the key's bytes from the CQL-serialised values of its columns, in key order.

    Raise ``ValueError`` without a component, or if one of several is longer than 65,535 bytes.
    """
    if not components:
        raise ValueError("a partition key has at least one component")
    if len(components) == 1:
        return components[0]
    parts: list[bytes] = []
    for place, component in enumerate(components):
        if len(component) > COMPONENT_BYTES_MAX:
            raise ValueError(
                f"component {place} has {len(component)} bytes; at most {COMPONENT_BYTES_MAX} are possible"
            )
        parts += (len(component).to_bytes(2, "big"), component, b"\0")
    return b"".join(parts)

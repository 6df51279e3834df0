"""CDC stream ids: 16 bytes, big-endian, in ScyllaDB's layout.

==========  =====  ====================================================================================
bits        width  field
==========  =====  ====================================================================================
64-127      64     token, signed: the log row's position on the ring, without hashing
26-63       38     random, so that ids of different generations differ
4-25        22     index: the position of the owning range in its generation
0-3         4      version, now 1
==========  =====  ====================================================================================

Ids compare as unsigned bytes, which is not the order of signed tokens. An id of version 0 predates versions: its index
has no meaning. Ids of a later version are rejected.
"""

from __future__ import annotations

from ringlog.kernel.values import Token, Value

STREAM_ID_BYTES = 16
VERSION = 1
INDEX_BITS = 22
RANDOM_BITS = 38
RANGES_MAX = 1 << INDEX_BITS

assert 64 + RANDOM_BITS + INDEX_BITS + 4 == 8 * STREAM_ID_BYTES, "the fields fill the bytes of an id"
assert VERSION < 1 << 4, "the version fits into its bits"


class StreamId(Value):
    """The fields of a stream id."""

    token: Token
    random: int
    index: int
    version: int = VERSION


class StreamIdError(ValueError):
    """Fields or bytes that do not make a stream id; the message names the field and its rule."""


def encode(stream: StreamId) -> bytes:
    """Return the 16 bytes of a stream id of this version. Raise ``StreamIdError`` if a field does not fit its bits."""
    if not -(1 << 63) <= stream.token < 1 << 63:
        raise StreamIdError(f"token {stream.token} is not a signed 64-bit number")
    if not 0 <= stream.random < 1 << RANDOM_BITS:
        raise StreamIdError(f"random {stream.random} does not fit {RANDOM_BITS} bits")
    if not 0 <= stream.index < RANGES_MAX:
        raise StreamIdError(
            f"index {stream.index} does not fit {INDEX_BITS} bits: a generation has at most {RANGES_MAX} ranges"
        )
    if stream.version != VERSION:
        raise StreamIdError(
            f"version {stream.version} is not supported for new ids; this release creates version {VERSION}"
        )
    low = stream.random << (INDEX_BITS + 4) | stream.index << 4 | stream.version
    return stream.token.to_bytes(8, "big", signed=True) + low.to_bytes(8, "big")


def decode(data: bytes) -> StreamId:
    """Return the fields of a stream id of version 0 or 1. Raise ``StreamIdError`` for another length or a later
    version.
    """
    if len(data) != STREAM_ID_BYTES:
        raise StreamIdError(f"a stream id has {STREAM_ID_BYTES} bytes, not {len(data)}")
    low = int.from_bytes(data[8:], "big")
    version = low & 0xF
    if version > VERSION:
        raise StreamIdError(f"stream ids of version {version} are not known to this release, only up to {VERSION}")
    token = int.from_bytes(data[:8], "big", signed=True)
    return StreamId(token, low >> (INDEX_BITS + 4), low >> 4 & (RANGES_MAX - 1), version)

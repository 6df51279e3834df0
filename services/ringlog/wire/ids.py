"""Identifiers that authors draw: state ids, request ids, and ids that are a function of what they stand for.

State ids and fresh request ids are version-7 UUIDs (RFC 9562): 48 bits of milliseconds, 12 bits of the millisecond's
fraction, 62 random bits; text order is byte order is time order. A state id is **strictly above** the one that it
follows, whatever the clock does: where time has not moved on, the 60 time bits of the previous id are counted up by
one.
"""

from __future__ import annotations

from hashlib import blake2b

from ringlog.kernel.values import Micros
from ringlog.wire.avro.mapping import id_bytes, id_text
from ringlog.wire.errors import WireError

ENTROPY_BYTES = 8
"""How many random bytes a fresh id takes."""

_TIME_MAX, _RANDOM_MAX = 2**60 - 1, 2**62 - 1
_VERSION_7, _VARIANT = 7 << 76, 0x2 << 62


def new_request_id(now_us: Micros, entropy: bytes) -> str:
    """A fresh request id. ``entropy``: at least 8 random bytes."""
    return _text(_version_7(_time_bits(now_us), entropy))


def new_state_id(previous: str | None, now_us: Micros, entropy: bytes) -> str:
    """A state id strictly above ``previous``; ``WireError`` (``no_id_above``) if that is the greatest of all.

    ``entropy``: at least 8 random bytes. ``previous`` may be any UUID, also one of another version.
    """
    candidate = _version_7(_time_bits(now_us), entropy)
    if previous is not None:
        floor = int.from_bytes(id_bytes(previous), "big")
        time_bits = ((floor >> 80) << 12) | ((floor >> 64) & 0xFFF)
        if candidate <= floor:
            candidate = _version_7(min(time_bits + 1, _TIME_MAX), entropy)
        if candidate <= floor:
            # The one before has a greater version digit, which outweighs the fraction: the next millisecond is above.
            candidate = _version_7(min(((time_bits >> 12) + 1) << 12, _TIME_MAX), entropy)
        if candidate <= floor:
            raise WireError("no_id_above", previous, "a state id that leaves room above it")
    return _text(candidate)


def time_of(identifier: str) -> Micros:
    """The time in a version-7 UUID, in microseconds, to the millisecond; 0 of anything else."""
    if len(identifier) != 36 or identifier[14] != "7":
        return 0
    return int(identifier[:8] + identifier[9:13], 16) * 1000


def derived_request_id(*parts: str | int) -> str:
    """The request id of an agent's ask: the same for the same parts (operation, stage, ``since_epoch``, ...), else
    another.

    A version-8 UUID made of 122 bits of BLAKE2b over the parts, each with its length.
    """
    digest = blake2b(digest_size=16, person=b"ringlog-request")
    for part in parts:
        data = f"{type(part).__name__}:{part}".encode()
        digest.update(len(data).to_bytes(4, "big") + data)
    return _text(_stamped(int.from_bytes(digest.digest(), "big"), 8))


def _time_bits(now_us: Micros) -> int:
    """48 bits of milliseconds and 12 bits of fraction; a clock outside that range is cut to it."""
    millis, micros = divmod(max(now_us, 0), 1000)
    return min((millis << 12) | (micros * 4096 // 1000), _TIME_MAX)


def _version_7(time_bits: int, entropy: bytes) -> int:
    if len(entropy) < ENTROPY_BYTES:
        raise WireError("too_little_entropy", "entropy", f"at least {ENTROPY_BYTES} random bytes")
    random = int.from_bytes(entropy[:8], "big") & _RANDOM_MAX
    return (time_bits >> 12) << 80 | _VERSION_7 | (time_bits & 0xFFF) << 64 | _VARIANT | random


def _stamped(number: int, version: int) -> int:
    number = number & ~(0xF << 76) | version << 76
    return number & ~(0x3 << 62) | 0x2 << 62


def _text(number: int) -> str:
    return id_text(number.to_bytes(16, "big"))

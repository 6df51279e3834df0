"""Identifiers that authors create: state ids, request ids, and ids derived from other values.

State ids and new request ids are version-7 UUIDs: 48 bits of milliseconds, 12 bits for the fraction of the millisecond,
62 random bits. Text order, byte order and time order are the same.

Invariant: a state id is **strictly greater** than its predecessor, at any clock. If the time has not advanced, the 60
time bits of the predecessor are incremented.

Source: RFC 9562.
"""

from __future__ import annotations

from hashlib import blake2b

from ringlog.kernel.values import Micros
from ringlog.wire.avro.mapping import id_bytes, id_text
from ringlog.wire.errors import WireError

ENTROPY_BYTES = 8
"""Random bytes for a new id."""

_TIME_MAX, _RANDOM_MAX = 2**60 - 1, 2**62 - 1
_VERSION_7, _VARIANT = 7 << 76, 0x2 << 62


def new_request_id(now_us: Micros, entropy: bytes) -> str:
    """Return a new request id. ``entropy`` must contain at least 8 random bytes."""
    return _text(_version_7(_time_bits(now_us), entropy))


def new_state_id(previous: str | None, now_us: Micros, entropy: bytes) -> str:
    """Return a state id that is strictly greater than ``previous``, which may be a UUID of any version.

    Args:
        entropy: At least 8 random bytes.

    Raises:
        WireError: ``previous`` is the greatest id (``no_id_above``).
    """
    candidate = _version_7(_time_bits(now_us), entropy)
    if previous is not None:
        floor = int.from_bytes(id_bytes(previous), "big")
        time_bits = ((floor >> 80) << 12) | ((floor >> 64) & 0xFFF)
        if candidate <= floor:
            candidate = _version_7(min(time_bits + 1, _TIME_MAX), entropy)
        if candidate <= floor:
            # The predecessor has a greater version digit, which outranks the fraction. Continue with the next
            # millisecond.
            candidate = _version_7(min(((time_bits >> 12) + 1) << 12, _TIME_MAX), entropy)
        if candidate <= floor:
            raise WireError("no_id_above", previous, "must be a state id with a successor")
    return _text(candidate)


def time_of(identifier: str) -> Micros:
    """Return the time of a version-7 UUID in microseconds, rounded down to milliseconds; 0 for any other text."""
    if len(identifier) != 36 or identifier[14] != "7":
        return 0
    return int(identifier[:8] + identifier[9:13], 16) * 1000


def derived_request_id(*parts: str | int) -> str:
    """Return a request id for an agent's request, derived from ``parts`` (operation, stage, ``since_epoch``, …).

    Equal parts give the same id, so a repeated request is a duplicate. The id is a version-8 UUID with 122 bits of
    BLAKE2b over the parts, each with its type and length.
    """
    digest = blake2b(digest_size=16, person=b"ringlog-request")
    for part in parts:
        data = f"{type(part).__name__}:{part}".encode()
        digest.update(len(data).to_bytes(4, "big") + data)
    return _text(_stamped(int.from_bytes(digest.digest(), "big"), 8))


def _time_bits(now_us: Micros) -> int:
    """Return 48 bits of milliseconds and 12 bits of fraction. Times outside of this range are clamped."""
    millis, micros = divmod(max(now_us, 0), 1000)
    return min((millis << 12) | (micros * 4096 // 1000), _TIME_MAX)


def _version_7(time_bits: int, entropy: bytes) -> int:
    if len(entropy) < ENTROPY_BYTES:
        raise WireError("too_little_entropy", "entropy", f"must have at least {ENTROPY_BYTES} random bytes")
    random = int.from_bytes(entropy[:8], "big") & _RANDOM_MAX
    return (time_bits >> 12) << 80 | _VERSION_7 | (time_bits & 0xFFF) << 64 | _VARIANT | random


def _stamped(number: int, version: int) -> int:
    number = number & ~(0xF << 76) | version << 76
    return number & ~(0x3 << 62) | 0x2 << 62


def _text(number: int) -> str:
    return id_text(number.to_bytes(16, "big"))

"""Table of all decoders under fuzz: how to call each with any bytes, the errors that it may raise, and its seeds.

The ``run`` function of a target passes bytes to one decoder, and the result to the next step of production. It returns
for valid input and raises one of ``allowed`` for invalid input. Any other exception is a finding, including
``AssertionError`` for a wrong result, such as a value that does not encode to the same bytes.

``covers`` names the functions that a target tests. ``tests/fuzz/test_targets.py`` fails for a decoder without a target.
To cover a new decoder, add a ``Target`` to the module of its area.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

from ringlog.kernel.values import Value
from tests.fuzz.mutate import Mutator, blind

CORPUS = Path(__file__).parent / "corpus"
"""``corpus/<target>/*``: inputs that caused a finding, or that reach code beyond the seeds."""


class Target(Value):
    """One decoder under fuzz. ``covers`` contains dotted names below ``ringlog``, as defined in the sources."""

    name: str
    covers: tuple[str, ...]
    run: Callable[[bytes], object]
    allowed: tuple[type[Exception], ...]
    seeds: Callable[[], tuple[bytes, ...]]
    mutate: Mutator = blind


@cache
def targets() -> dict[str, Target]:
    """Return all targets by name."""
    from tests.fuzz import (
        targets_archive,
        targets_debezium,
        targets_files,
        targets_json,
        targets_sim,
        targets_user,
        targets_wire,
    )

    found: dict[str, Target] = {}
    rooms = (targets_wire, targets_json, targets_files, targets_sim, targets_debezium, targets_user, targets_archive)
    for target in (target for room in rooms for target in room.TARGETS):
        assert target.name not in found, target.name
        found[target.name] = target
    return found


def starts(target: Target) -> tuple[bytes, ...]:
    """Return the seeds of a target and its committed corpus, in a fixed order."""
    kept = sorted((CORPUS / target.name).glob("*"))
    return (*target.seeds(), *(path.read_bytes() for path in kept))


def attempt(target: Target, data: bytes) -> bool:
    """Return True if the decoder accepts the bytes, False if it raises an allowed error. Other errors propagate."""
    try:
        target.run(data)
    except target.allowed:
        return False
    return True

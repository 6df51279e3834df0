"""Every decoder, in one table: how to call it with any bytes, what it may raise, and where to start.

A target's ``run`` passes bytes to one decoder and on to whatever production does next with the result; it returns for
sound input and raises one of ``allowed`` for the rest. Anything else that it raises is a finding, and so is a broken
promise about what was decoded (``AssertionError``): that it encodes to the same bytes again, for example.

``covers`` names the functions it stands for. ``tests/fuzz/test_targets.py`` fails for a decoder that no target covers,
so whoever writes a new one is sent here: add a ``Target`` in the module of its room.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.fuzz.mutate import Mutator, blind

CORPUS = Path(__file__).parent / "corpus"
"""``corpus/<target>/*``: inputs that found something once, or reached what no seed reaches."""


@dataclass(frozen=True, slots=True)
class Target:
    """One decoder under fuzz. ``covers``: dotted names below ``ringlog``, as the sources define them."""

    name: str
    covers: tuple[str, ...]
    run: Callable[[bytes], object]
    allowed: tuple[type[Exception], ...]
    seeds: Callable[[], tuple[bytes, ...]]
    mutate: Mutator = blind


@cache
def targets() -> dict[str, Target]:
    """All targets by name."""
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
    """The seeds of a target and its committed corpus, in a fixed order."""
    kept = sorted((CORPUS / target.name).glob("*"))
    return (*target.seeds(), *(path.read_bytes() for path in kept))


def attempt(target: Target, data: bytes) -> bool:
    """True if the decoder took the bytes, False if it refused them as it may; raises for everything else."""
    try:
        target.run(data)
    except target.allowed:
        return False
    return True

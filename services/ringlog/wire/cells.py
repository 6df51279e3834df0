"""Registers and their cells: what the replicas of the reference node keep, and their clients write and read.

A register holds one cell, the last write wins: of two cells the one with the greater timestamp, of equal ones a
delete, else the greater value. ``newest`` is commutative, associative and idempotent, so cells may arrive in any order,
any number of times, over any way.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from ringlog.kernel.ring.murmur3 import token_of
from ringlog.kernel.values import Token

DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Names a register. ``token``: that of ``name``."""

    keyspace: str
    token: Token
    name: bytes


@dataclass(frozen=True, slots=True)
class RegisterCell:
    """What a register holds. ``timestamp``: the writer's; ``deleted``: a tombstone, whose value is empty."""

    timestamp: int
    value: bytes
    deleted: bool = False


def key_of(keyspace: str, name: bytes) -> Key:
    """The register of that name."""
    return Key(keyspace, token_of(name), name)


def newest(one: RegisterCell | None, other: RegisterCell) -> RegisterCell:
    """The cell that wins."""
    return other if one is None or rank(other) > rank(one) else one


def rank(cell: RegisterCell) -> tuple[int, bool, bytes]:
    """Of two cells the one of the greater rank wins; only equal cells have equal ranks."""
    return cell.timestamp, cell.deleted, cell.value


def digest_of(cell: RegisterCell | None) -> bytes:
    """16 bytes that tell cells apart; none for no cell."""
    if cell is None:
        return b""
    head = b"%d %d " % (cell.timestamp, cell.deleted)
    return hashlib.sha256(head + cell.value).digest()[:DIGEST_BYTES]

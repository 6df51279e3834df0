"""Small values every room shares: what an epoch, a token, an instant and an identifier are.

Identifiers are text. A UUID is kept in its canonical lower-case form, whose text order equals the order of its 16
bytes; state ids are version-7 UUIDs, so that order is also time order. (Version-1 UUIDs do not sort by time: never
compare those.)

Tokens are signed 64-bit integers. ``TOKEN_MIN - 1`` (the smallest signed value) means "before all" and is never a token
of a key or of a node. A range is ``(start, end]``; it wraps when ``start >= end``, and ``(t, t]`` is the whole ring.
"""

from __future__ import annotations

import re

Epoch = int
"""Number of applied entries; 0 is the empty state before founding."""

Token = int
"""Signed 64-bit position on the ring."""

Micros = int
"""Microseconds since 1970-01-01 UTC."""

NodeId = str
OperationId = str
GenerationId = str

TOKEN_MIN: Token = -(2**63) + 1
TOKEN_MAX: Token = 2**63 - 1
MICROS_MAX: Micros = 2**62

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,47}")


def is_uuid(text: str) -> bool:
    """True for a canonical lower-case UUID."""
    return _UUID.fullmatch(text) is not None


def is_name(text: str) -> bool:
    """True for a name of a cluster, node, datacenter, rack, role or writer: 1-100 of letters, digits, ``_ . -``."""
    return _NAME.fullmatch(text) is not None


def is_identifier(text: str) -> bool:
    """True for a name of the schema (keyspace, table, column): a letter, then up to 47 letters, digits, ``_``."""
    return _IDENTIFIER.fullmatch(text) is not None


def is_token(value: int) -> bool:
    """True for a legal token of a node or key."""
    return TOKEN_MIN <= value <= TOKEN_MAX

"""Record keys of encoded mutations."""

from __future__ import annotations

from ringlog.kernel.ring.murmur3 import compose
from ringlog.wire.errors import WireError
from ringlog.wire.records import Mutation, decode_mutation, mutation_key

OTHER = b"other"
"""A key that no mutation has."""


def record_key(value: bytes | Mutation | None) -> bytes:
    """Return the record key of a mutation; ``OTHER`` for records without one."""
    try:
        found = value if isinstance(value, Mutation) else decode_mutation(value or b"")
        return mutation_key(found.keyspace, found.table, compose([part or b"" for part in found.partition_key]))
    except (WireError, ValueError):
        return OTHER

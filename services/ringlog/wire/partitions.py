"""Where a record goes: keys and partitions of the topics whose order matters.

Rows of the CDC topic are placed by ``ringlog_cdc.routing``, many at once; the audit knows the rule for itself.
"""

from __future__ import annotations

from zlib import crc32


def mutation_key(keyspace: str, table: str, partition_key: bytes) -> bytes:
    """Key of a mutation: ``keyspace.table`` in UTF-8, a zero byte, the composed partition key (see ``kernel.ring``)."""
    return f"{keyspace}.{table}".encode() + b"\0" + partition_key


def mutation_partition(key: bytes, partitions: int) -> int:
    """Partition of a mutation: all writes of one base partition key lie in one, in the order they were produced."""
    return crc32(key) % partitions


def dead_letter_key(topic: str, partition: int, offset: int) -> bytes:
    """Key of a dead letter: the position that it came from, so that a repetition replaces it."""
    return f"{topic}/{partition}/{offset}".encode()

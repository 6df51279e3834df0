"""Where a record goes: keys and partitions of the topics whose order matters, defined once for producers and
auditors.
"""

from __future__ import annotations

from zlib import crc32


def mutation_key(keyspace: str, table: str, partition_key: bytes) -> bytes:
    """Key of a mutation: ``keyspace.table`` in UTF-8, a zero byte, the composed partition key (see ``kernel.ring``)."""
    return f"{keyspace}.{table}".encode() + b"\0" + partition_key


def mutation_partition(key: bytes, partitions: int) -> int:
    """Partition of a mutation: all writes of one base partition key lie in one, in the order they were produced."""
    return crc32(key) % partitions


def cdc_partition(stream_id: bytes, partitions: int) -> int:
    """Partition of a CDC row: a stream lies in exactly one."""
    return crc32(stream_id) % partitions


def dead_letter_key(topic: str, partition: int, offset: int) -> bytes:
    """Key of a dead letter: the position that it came from, so that a repetition replaces it."""
    return f"{topic}/{partition}/{offset}".encode()

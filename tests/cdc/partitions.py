"""A second definition of the partition of a CDC row, the oracle of ``ringlog_cdc.definition.routing_table``."""

from __future__ import annotations

from zlib import crc32


def cdc_partition(stream_id: bytes, partitions: int) -> int:
    """Return the partition that contains a stream."""
    return crc32(stream_id) % partitions

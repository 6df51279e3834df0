"""The CDC row of a piece of a write."""

from __future__ import annotations

from typing import Final, Protocol

from ringlog.kernel.rows.log_rows import INSERT, PARTITION_DELETE, ROW_DELETE, UPDATE
from ringlog.wire.records import CdcRow, Mutation
from ringlog_cdc.definition.split import Piece

OPERATION_CODES: Final[dict[str, int]] = {
    "INSERT": INSERT,
    "UPDATE": UPDATE,
    "ROW_DELETE": ROW_DELETE,
    "PARTITION_DELETE": PARTITION_DELETE,
}
"""Operation of a plain write to ``cdc$operation``. A range delete becomes two rows."""


class SourcePosition(Protocol):
    """Position of a write in the mutations topic."""

    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...


def plain_piece(mutation: Mutation) -> Piece:
    """Return the only piece of a plain write: one statement about one row, without collections."""
    return Piece(
        timestamp=mutation.timestamp,
        batch_seq_no=0,
        end_of_batch=True,
        operation=OPERATION_CODES[mutation.operation],
        ttl=mutation.ttl,
        clustering_key=mutation.clustering_key,
        cells=tuple(cell for cell in mutation.cells if cell.value is not None),
        deleted=tuple(cell.column for cell in mutation.cells if cell.value is None),
    )


def row_of(
    mutation: Mutation,
    topic: str,
    position: SourcePosition,
    epoch: int,
    piece: Piece,
    generation: int,
    stream: bytes,
    time: bytes,
) -> CdcRow:
    """Return the CDC row of a piece.

    Args:
        mutation: The write. Its partition key has no nulls.
        topic: Name of the mutations topic.
        position: Position of the write.
        epoch: Metadata epoch of the table version that reads the row.
        piece: The piece.
        generation: Start of its generation, microseconds.
        stream: Stream id.
        time: ``cdc$time``, 16 bytes.
    """
    return CdcRow(
        stream_id=stream,
        generation=generation,
        time=time,
        batch_seq_no=piece.batch_seq_no,
        operation=piece.operation,
        ttl=piece.ttl,
        end_of_batch=piece.end_of_batch,
        keyspace=mutation.keyspace,
        table=mutation.table,
        mutation_id=mutation.mutation_id,
        source_topic=topic,
        source_partition=position.partition,
        source_offset=position.offset,
        timestamp=piece.timestamp,
        partition_key=tuple(part for part in mutation.partition_key if part is not None),
        clustering_key=piece.clustering_key,
        cells=piece.cells,
        deleted=piece.deleted,
        deleted_elements=piece.deleted_elements,
        epoch=epoch,
    )

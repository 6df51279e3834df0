"""Encoding and validation of snapshots: a state as records of a topic, and back.

A snapshot is the state after the entry of a ``TakeSnapshot``. The canonical bytes of the state sections are
concatenated and cut into *chunks*. A *head* with all digests follows the chunks.

The digest of a state is computed from the digests of its sections (``kernel.encoding.encoder``), so a reader checks the
bytes before it decodes them. The decoder accepts only canonical bytes. A restored state therefore has exactly the
digest that the head names.

CDC generations are stored as differences between each other (``GENERATIONS``). The digest of that section covers the
canonical bytes, which the reader computes again.

The process that stored a snapshot may have folded incorrectly. Therefore another process, which folded the log itself,
stores its own digest of that epoch (a *confirmation*). A reader begins with a snapshot only under these conditions:

- A process in another role confirmed its digest, and the roles that agree outnumber those with another digest.

- Every chunk is present, and all bytes match their digests.

- It belongs to this log: the topic id is the same, and the ``TakeSnapshot`` that made the state is right before the
  position.

- The log confirms no other digest of this epoch (``ConfirmSnapshot``).

A reader rejects any other snapshot with a code, and tries an older one or the log's beginning. Snapshots only save
time; no correctness rule depends on them.

Source: DESIGN, snapshots; CEP-21.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from ringlog.kernel.commands.cluster.snapshots import TakeSnapshot
from ringlog.kernel.commands.cluster.truncation import WITNESSES_MIN, ConfirmSnapshot
from ringlog.kernel.encoding.decoder import StateUndecodable, decode_parts
from ringlog.kernel.encoding.encoder import combined_digest, digest_of_chunks, digests_of, encoded_parts, sha256_of
from ringlog.kernel.encoding.stored_generations import canonical_chunks, read_generations, stored_generations
from ringlog.kernel.history import STORED_MAX
from ringlog.kernel.model.outcome import Entry
from ringlog.kernel.model.state import ClusterState, Generation
from ringlog.kernel.values import Micros, replace
from ringlog.log.errors import (
    SnapshotDisputed,
    SnapshotForged,
    SnapshotIncomplete,
    SnapshotOfAnotherLog,
    SnapshotUnconfirmed,
    SnapshotUnknown,
)
from ringlog.log.folding import Start
from ringlog.log.port import LogRecord
from ringlog.wire.entries import decode_entry
from ringlog.wire.records import SnapshotChunk, SnapshotConfirmation, SnapshotPart, SnapshotRecord, StoredSnapshot

CHUNK_BYTES: Final = 1 << 20
"""Bytes of a chunk: half of the record limit of the topic."""

GENERATIONS: Final = "generations:columns"
"""Name of the section ``generations`` in the format of ``kernel.encoding.stored_generations``."""


def encode_snapshot(
    start: Start, topic_id: str, by: str, at: Micros, snapshot_id: str, chunk_bytes: int = CHUNK_BYTES
) -> tuple[StoredSnapshot, tuple[SnapshotChunk, ...]]:
    """Encode a state and its position as a head and chunks.

    The caller stores the chunks and then sets ``first`` of the head, the offset of the first chunk.
    """
    state = start.state
    # The packed section replaces the canonical one in the body. The digests still cover the canonical bytes, so the
    # state's digest does not depend on the storage format.
    is_packed = bool(state.generations)
    parts = encoded_parts(replace(state, generations=()) if is_packed else state)
    digests = digests_of(parts)
    of_parts = dict(digests)
    if is_packed:
        parts[GENERATIONS] = stored_generations(state.generations)
        of_parts[GENERATIONS] = digests["generations"] = digest_of_chunks(canonical_chunks(state.generations))
    body = b"".join(parts.values())
    pieces = [body[begin : begin + chunk_bytes] for begin in range(0, len(body), chunk_bytes)]
    head = StoredSnapshot(
        snapshot_id,
        state.cluster_id,
        topic_id,
        state.epoch,
        state.state_id,
        start.position,
        combined_digest(digests),
        tuple(SnapshotPart(name, len(data), of_parts[name]) for name, data in parts.items()),
        tuple(map(sha256_of, pieces)),
        -1,
        by,
        at,
    )
    return head, tuple(SnapshotChunk(snapshot_id, number, data) for number, data in enumerate(pieces))


def decode_snapshot(head: StoredSnapshot, chunks: Iterable[SnapshotChunk]) -> ClusterState:
    """Decode the state from a head and its chunks, which may come in any order.

    Raises SnapshotIncomplete, SnapshotForged, SnapshotUnknown.
    """
    parts = _parts(head, _joined(head, chunks))
    digests = digests_of(parts)
    try:
        generations = _unpacked(head, parts, digests)
        if combined_digest(digests) != head.digest:
            raise SnapshotForged(
                f"{describe_snapshot(head)}: the digest of its parts differs from the digest of the state"
            )
        state = decode_parts(parts)
    except StateUndecodable as error:
        raise SnapshotForged(f"{describe_snapshot(head)}: {error}") from error
    if generations is not None:
        state = replace(state, generations=generations)
    if (state.cluster_id, state.epoch, state.state_id) != (head.cluster_id, head.epoch, head.state_id):
        raise SnapshotForged(f"{describe_snapshot(head)}: contains epoch {state.epoch}, state {state.state_id}")
    return state


def _unpacked(head: StoredSnapshot, parts: dict[str, bytes], digests: dict[str, str]) -> tuple[Generation, ...] | None:
    """Remove packed generations from ``parts`` and return them, with their digest checked; None if there are none.

    Replaces the packed digest in ``digests`` by the digest of the canonical bytes.
    """
    stored = parts.pop(GENERATIONS, None)
    if stored is None:
        return None
    del digests[GENERATIONS]
    if "generations" in parts:
        raise SnapshotForged(f"{describe_snapshot(head)}: it contains the generations twice")
    generations = read_generations(stored)
    digests["generations"] = digest_of_chunks(canonical_chunks(generations))
    if digests["generations"] != next(part.digest for part in head.parts if part.name == GENERATIONS):
        raise SnapshotForged(f"{describe_snapshot(head)}: the digest of part {GENERATIONS} differs")
    return generations


def _joined(head: StoredSnapshot, chunks: Iterable[SnapshotChunk]) -> bytes:
    found: dict[int, bytes] = {}
    for chunk in chunks:
        if chunk.id == head.id and 0 <= chunk.number < len(head.chunks):
            if sha256_of(chunk.data) != head.chunks[chunk.number]:
                raise SnapshotForged(f"{describe_snapshot(head)}: chunk {chunk.number} differs from the stored chunk")
            found[chunk.number] = chunk.data
    for number in range(len(head.chunks)):
        if number not in found:
            raise SnapshotIncomplete(f"{describe_snapshot(head)}: chunk {number} of {len(head.chunks)} is missing")
    return b"".join(found[number] for number in range(len(head.chunks)))


def _parts(head: StoredSnapshot, body: bytes) -> dict[str, bytes]:
    parts: dict[str, bytes] = {}
    at = 0
    for part in head.parts:
        if part.name in parts or part.size < 0:
            raise SnapshotForged(f"{describe_snapshot(head)}: part {part.name} is not supported by this format")
        if ":" in part.name and part.name != GENERATIONS:
            raise SnapshotUnknown(
                f"{describe_snapshot(head)}: part {part.name} has a storage format that this release does not support"
            )
        parts[part.name] = body[at : at + part.size]
        at += part.size
        if part.name != GENERATIONS and sha256_of(parts[part.name]) != part.digest:
            raise SnapshotForged(f"{describe_snapshot(head)}: the digest of part {part.name} differs")
    if at != len(body):
        raise SnapshotForged(f"{describe_snapshot(head)}: its parts need {at} bytes, but {len(body)} are stored")
    return parts


def check_confirmed(head: StoredSnapshot, confirmations: Iterable[SnapshotConfirmation]) -> tuple[str, ...]:
    """Return the roles that have another state and are outvoted. Normally there are none.

    Raises:
        SnapshotUnconfirmed: No other role has the same state.
        SnapshotDisputed: The roles with this state do not outnumber those with another one.
    """
    # One vote per role: a role that confirmed twice counts with its last confirmation.
    said = {one.by: one for one in confirmations if (one.topic_id, one.epoch) == (head.topic_id, head.epoch)}
    others = sorted(role for role, one in said.items() if _what(one) != _what(head))
    agreed = ({head.by} | said.keys()).difference(others)
    if others and len(agreed) <= len(others):
        raise SnapshotDisputed(
            f"{describe_snapshot(head)}: {head.by} has digest {head.digest}, {others[0]} has {said[others[0]].digest}",
            "this is a defect or a memory error: report it; `ringlog log verify` shows which one is right",
        )
    if len(agreed) < WITNESSES_MIN:
        raise SnapshotUnconfirmed(f"{describe_snapshot(head)}: only {head.by} has confirmed it")
    return tuple(others)


def _what(said: StoredSnapshot | SnapshotConfirmation) -> tuple[str, str, int, str]:
    return said.cluster_id, said.state_id, said.position, said.digest


def check_log_position(head: StoredSnapshot, topic_id: str, before: LogRecord | None) -> None:
    """Check that a snapshot belongs to the log with this topic id. Raises SnapshotOfAnotherLog.

    Args:
        before: The record of the log right before the snapshot's position, if there is one.
    """
    if head.topic_id != topic_id:
        raise SnapshotOfAnotherLog(
            f"{describe_snapshot(head)} belongs to topic {head.topic_id}, but the log is topic {topic_id}"
        )
    entry = None if before is None else decode_entry(before.data)
    # Only the states of marks are confirmed in the log. A snapshot of another epoch could never be compared with it.
    is_marked = isinstance(entry, Entry) and isinstance(entry.command, TakeSnapshot) and entry.state_id == head.state_id
    if not is_marked:
        raise SnapshotOfAnotherLog(
            f"{describe_snapshot(head)}: the entry at offset {head.position - 1} of the log differs"
        )


def check_log_digest(head: StoredSnapshot, confirmed: ConfirmSnapshot) -> bool:
    """Return True if the log confirms this snapshot, and False if this entry is about another one.

    Raises SnapshotForged if the log confirms another state of the epoch.
    """
    if (confirmed.epoch, confirmed.state_id) != (head.epoch, head.state_id):
        return False
    if (confirmed.position, confirmed.digest) != (head.position, head.digest):
        raise SnapshotForged(f"{describe_snapshot(head)}: the log confirms the digest {confirmed.digest}")
    return True


def key_of(record: SnapshotRecord) -> str:
    """Return the key of a record in the snapshot topic."""
    match record:
        case StoredSnapshot():
            return f"{record.epoch}/head"
        case SnapshotConfirmation():
            return f"{record.epoch}/{record.by}"
        case SnapshotChunk():
            return f"{record.id}/{record.number}"


def obsolete_keys(records: Sequence[SnapshotRecord], begins: Collection[int] = ()) -> list[str]:
    """Return the keys that the topic no longer needs.

    The topic keeps the newest ``STORED_MAX`` confirmed snapshots, and as many unconfirmed ones. It also keeps confirmed
    snapshots at the offsets in ``begins``. Processes that must begin no later than a certain epoch, such as the
    change publisher, need them.

    Chunks without a head belong to an abandoned snapshot or to one that is being written. The next stored snapshot
    removes them.

    Args:
        records: All records of the topic.
        begins: Present and upcoming begin offsets of the log.
    """
    heads = {record.epoch: record for record in records if isinstance(record, StoredSnapshot)}
    said = [record for record in records if isinstance(record, SnapshotConfirmation)]
    kept: dict[bool, list[StoredSnapshot]] = {True: [], False: []}
    for head in sorted(heads.values(), key=lambda one: -one.epoch):
        kept[is_confirmed(head, said)].append(head)
    stay = [head for group in kept.values() for head in group[:STORED_MAX]]
    stay += [head for head in kept[True][STORED_MAX:] if head.position - 1 in begins]
    epochs, ids = {head.epoch for head in stay}, {head.id for head in stay}
    return sorted(
        {
            key_of(record)
            for record in records
            if (record.id not in ids if isinstance(record, SnapshotChunk) else record.epoch not in epochs)
        }
    )


def is_confirmed(head: StoredSnapshot, confirmations: Iterable[SnapshotConfirmation]) -> bool:
    """Return True if readers may begin with this snapshot."""
    try:
        check_confirmed(head, confirmations)
    except (SnapshotUnconfirmed, SnapshotDisputed):
        return False
    return True


def describe_snapshot(head: StoredSnapshot) -> str:
    """Return the name of the snapshot in messages."""
    return f"the snapshot of epoch {head.epoch}"

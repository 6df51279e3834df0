"""The plan chain on disk: ``<checkpoint>/plans/``, one file per entry, created if absent and never changed.

``<sequence>.json`` is an entry. ``<sequence>.done`` marks its rows as durable in their topics.
``contexts/<digest>.json`` is a context of parts.

Invariants:

* A file appears completely or not at all (``ringlog_cdc.stored_files``).
* An append that raises anything but ChainMoved may have succeeded. The caller must not continue with another plan.
  After a restart the chain shows the outcome.
* The last ``kept`` entries stay on disk. Older ones are not needed, since the fields of an entry are cumulative.
* The store serves one driver. The lock of the checkpoint (``ringlog_cdc.driver.session``) excludes a second one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ringlog.files import sync_folder
from ringlog_cdc.errors import CdcError, ChainBroken, ChainMoved, checkpoint_lost
from ringlog_cdc.plan.chain import StoredChain, canonical, context_name
from ringlog_cdc.plan.plan import GENESIS, PlanEntry, check_link, decode, encode
from ringlog_cdc.stored_files import create_if_absent, decode_file, encode_file, read_file, typed

KEPT_ENTRIES = 2_000
"""Entries that stay on disk."""
CLAIM = "claim.json"
"""File that ties a checkpoint to its cluster and writer."""


class PlanStore(StoredChain[None, str]):
    """The chain of one checkpoint. Not thread-safe: callers hold the writer's lock while they append."""

    def __init__(self, checkpoint: Path, kept: int = KEPT_ENTRIES) -> None:
        self._plans = checkpoint / "plans"
        self._contexts = self._plans / "contexts"
        self._contexts.mkdir(parents=True, exist_ok=True)
        self._kept = kept
        self._known: dict[str, dict[str, Any]] = {}
        entries = self._load()
        done = {int(path.stem) for path in self._plans.glob("*.done")}
        # A crash during pruning can leave the mark of a pruned entry. It has no meaning.
        super().__init__(entries, done & entries.keys())
        if done and max(done) > self.head.sequence:
            raise ChainBroken(f"plan {max(done)} was completed, but its file is missing")

    def _load(self) -> dict[int, PlanEntry]:
        """Read and check the stored entries."""
        entries: dict[int, PlanEntry] = {}
        before: PlanEntry | None = None
        for path in self._kept_files():
            entry = decode(path.read_bytes(), path)
            if path.stem != _name(entry.sequence):
                raise ChainBroken(f"{path.name} contains plan {entry.sequence}")
            if before is not None:
                check_link(before, entry)
            elif entry.sequence == 0:
                check_link(GENESIS, entry)
            entries[entry.sequence] = before = entry
        return entries

    def _kept_files(self) -> list[Path]:
        """Return the files of the newest entries without a gap. Older ones are remains of an interrupted pruning."""
        paths = sorted(self._plans.glob("*.json"))
        first = len(paths) - 1
        while first > 0 and int(paths[first - 1].stem) + 1 == int(paths[first].stem):
            first -= 1
        if first > 0 and len(paths) - first < self._kept:
            raise ChainBroken(f"plans between {paths[first - 1].stem} and {paths[first].stem} are missing")
        return paths[max(first, 0) :]

    def append(self, entry: PlanEntry) -> None:
        """Store the next entry. Raises ChainMoved if its sequence number is in use, ChainBroken if it does not fit."""
        check_link(self.head, entry)
        if not create_if_absent(self._plans / f"{_name(entry.sequence)}.json", encode(entry)):
            raise ChainMoved(entry.sequence)
        self._entries[entry.sequence] = entry
        self._prune(entry.sequence - self._kept)

    def _prune(self, limit: int) -> None:
        """Delete entries up to ``limit``, oldest first, and stop at one whose rows may not be durable."""
        for sequence in range(min(self._entries), limit + 1):
            if not self.is_settled(self._entries[sequence]):
                return
            (self._plans / f"{_name(sequence)}.json").unlink(missing_ok=True)
            (self._plans / f"{_name(sequence)}.done").unlink(missing_ok=True)
            self._done.discard(sequence)
            del self._entries[sequence]

    def mark_done(self, entry: PlanEntry) -> None:
        """Record that all rows of the entry are durable in their topics."""
        create_if_absent(self._plans / f"{_name(entry.sequence)}.done", b"")
        self._done.add(entry.sequence)

    # ------------------------------------------------------------------------------------------- contexts

    def put_context(self, context: Mapping[str, Any]) -> str:
        """Store a context unless it exists. Return its name."""
        data = canonical(context)
        name = context_name(data)
        if name not in self._known:
            create_if_absent(self._contexts / f"{name}.json", data)
            self._known[name] = dict(context)
        return name

    def context(self, name: str) -> dict[str, Any]:
        """Return the context stored under ``name``.

        Raises CdcError ``checkpoint_version``, and ChainBroken if it is missing or does not match its digest.
        """
        if name in self._known:
            return self._known[name]
        path = self._contexts / f"{name}.json"
        try:
            data = path.read_bytes()
        except FileNotFoundError as error:
            raise ChainBroken(f"context {name} is missing") from error
        context = decode_file("context", data, path, dict)
        if context_name(data) != name:
            raise ChainBroken(f"context {name} was changed")
        self._known[name] = context
        return context


def claim_checkpoint(checkpoint: Path, cluster_id: str, writer: str, cdc_partitions: int, registered: bool) -> bool:
    """Tie a checkpoint permanently to a cluster, a writer and the number of partitions of the CDC topic.

    With another number of partitions, a stream would continue in another partition and its rows would lose their order.

    Args:
        checkpoint: The checkpoint.
        cluster_id: Id of the cluster.
        writer: Name of the writer.
        cdc_partitions: Number of partitions of the CDC topic.
        registered: The metadata log knows this writer. A checkpoint without a claim then replaces a lost one. Its plans
            would be decided again, and rows written twice under other generations.

    Returns:
        True if the checkpoint is new.

    Raises:
        CdcError: ``checkpoint_lost``, ``checkpoint_of_another`` or ``partitions_changed``.
    """
    checkpoint.mkdir(parents=True, exist_ok=True)
    path = checkpoint / CLAIM
    claim = {"cdc_partitions": cdc_partitions, "cluster_id": cluster_id, "writer": writer}
    is_new = False
    if not path.exists():
        if registered:
            raise checkpoint_lost(writer)
        is_new = create_if_absent(path, encode_file("claim", claim))
    stored = read_file("claim", path, claim_of)
    check_claim(stored, cluster_id, writer)
    if stored["cdc_partitions"] != cdc_partitions:
        raise CdcError(
            "partitions_changed",
            (
                f"the CDC topic has {cdc_partitions} partitions, but had {stored['cdc_partitions']} when the job "
                "first started"
            ),
            "a stream never changes its partition: create a cluster under another name",
        )
    return is_new


def stored_claim(checkpoint: Path) -> dict[str, Any] | None:
    """Return the claim of a checkpoint, or None for a new one. Raises the errors of ``decode_file``."""
    path = checkpoint / CLAIM
    return read_file("claim", path, claim_of) if path.exists() else None


def check_claim(claim: Mapping[str, Any], cluster_id: str, writer: str) -> None:
    """Check that a claim is that of this cluster and writer. Raises CdcError ``checkpoint_of_another``."""
    if (claim["cluster_id"], claim["writer"]) != (cluster_id, writer):
        raise CdcError(
            "checkpoint_of_another",
            f"the checkpoint belongs to {json.dumps(dict(claim), sort_keys=True)}",
            "pass another --checkpoint, or the cluster and writer that the checkpoint belongs to",
        )


def claim_of(content: Any) -> dict[str, Any]:
    """Return the content of a claim. Raises TypeError or ValueError."""
    if content.keys() != (kinds := {"cdc_partitions": int, "cluster_id": str, "writer": str}).keys():
        raise ValueError("it has other fields")
    return {name: typed(content[name], kind) for name, kind in kinds.items()}


def give_up_claim(checkpoint: Path) -> None:
    """Remove a new claim. Nothing was done under it."""
    (checkpoint / CLAIM).unlink()
    sync_folder(checkpoint)


def _name(sequence: int) -> str:
    return f"{sequence:012d}"

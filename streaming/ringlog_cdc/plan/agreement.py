"""Consistency check of a checkpoint, before the writer registers. It runs even without input.

Spark's folder, the plans and the image states describe the same batches. If one of them was lost or restored from a
copy, the job would skip writes or decide them twice. So the check requires:

* Spark's newest batch starts and ends where its plans do (``check_place``), and no plan belongs to a later batch.
* Everything that Spark has committed is fully planned and done.
* If the last finished part keeps images, their states are present.

The metadata log is a further witness. Everything that it reports as decided was planned here, or was found in the
topics when this checkpoint replaced a lost one (``check_said``). A checkpoint that is behind is an older copy as a
whole, or another writer has processed the source in between. In both cases it would decide writes again that already
have rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ringlog.kernel.model.state import ClusterState, in_order
from ringlog_cdc.definition.image_tables import tables_with_images
from ringlog_cdc.errors import ChainBroken
from ringlog_cdc.images.files import BEGUN, FOLDER, ImageFiles
from ringlog_cdc.images.store import ImagesLost
from ringlog_cdc.plan.chain import PlanChain
from ringlog_cdc.plan.decisions import check_place
from ringlog_cdc.plan.recovered_rows import behind, settled_of
from ringlog_cdc.plan.source_partitioning import batch_ends
from ringlog_cdc.plan.store import PlanStore

TOGETHER = "spark/ and plans/ of the checkpoint do not belong together"


def check_agreement(checkpoint: Path, chain: PlanChain, topic: str) -> None:
    """Check that Spark's folder and the plans agree.

    Args:
        checkpoint: The checkpoint.
        chain: Its plans.
        topic: Name of the mutations topic.

    Raises:
        ChainBroken: They disagree.
    """
    batches = _batches(checkpoint / "spark" / "offsets")
    committed = _batches(checkpoint / "spark" / "commits")
    newest = max(batches, default=-1)
    latest = max(chain.head.batch, *committed, newest)
    if latest > newest:
        raise ChainBroken(
            f"batch {latest} is planned or committed, but Spark's offset log does not contain it: {TOGETHER}"
        )
    if newest < 0:
        return
    parts = chain.parts(newest)
    before = batch_ends(checkpoint, newest - 1, topic) if not parts and newest > 0 else {}
    check_place(newest, parts, chain.head, batch_ends(checkpoint, newest, topic), before)
    is_done = bool(parts) and parts[-1].last and all(chain.is_settled(part) or not part.ranges for part in parts)
    if newest in committed and not is_done:
        raise ChainBroken(f"Spark has committed batch {newest}, but its plans are not complete: {TOGETHER}")


def check_said(state: ClusterState, writer: str, source: str, chain: PlanChain, found: Mapping[int, int]) -> None:
    """Check that the checkpoint is not behind the metadata log. A checkpoint without plans cannot be.

    Plans are durable before the log reports them, so an unmodified checkpoint passes after any crash.

    Args:
        state: Cluster state.
        writer: Name of this writer.
        source: Name of the mutations topic.
        chain: Plans of the checkpoint.
        found: Source partition to the end offset of the decisions of others that the checkpoint noted, if it replaced a
            lost one.

    Raises:
        CdcError: The checkpoint misses decisions, or another writer has processed the source since.
    """
    if chain.head.sequence < 0:
        return
    planned, mine = dict(chain.head.positions), state.writers.get(writer)
    for _, other in in_order(state.writers):
        if other.source == source and mine is not None and other.registered > mine.registered:
            raise behind(f"CDC writer {other.name} has processed {source} after the last use of this checkpoint")
    for partition, offset in sorted(settled_of(state, source).items()):
        known = max(planned.get(partition, 0), found.get(partition, 0))
        if known < offset:
            raise behind(
                f"partition {partition} of {source} is processed up to {offset}; this checkpoint, an older copy, "
                f"ends at {known}"
            )


def check_images(files: ImageFiles, store: PlanStore) -> None:
    """Check that the states of the newest finished part are present, if its tables keep images.

    An unfinished part is checked by the run that executes it.

    Raises:
        ImagesLost: States are missing.
    """
    parts = store.parts(store.head.batch)
    if not parts or not store.is_settled(parts[-1]) or not tables_with_images(store.context(parts[-1].context)):
        return
    for item in parts[-1].ranges:
        if not (files.folder / BEGUN).exists() or not files.has(item.partition):
            raise ImagesLost(item.partition, f"{FOLDER}/ of the checkpoint is incomplete")


def _batches(folder: Path) -> set[int]:
    """Return the batch numbers that have a file in the folder."""
    return {int(path.name) for path in folder.iterdir() if path.name.isdigit()} if folder.is_dir() else set()

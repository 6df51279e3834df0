"""Do the parts of a checkpoint belong together? Looked at before the writer registers, so also where no input comes.

Spark's folder, the plans and the states that images are made of tell of the same batches. If one of them was lost, or
brought back from a copy, what the others say is no longer true, and a job would pass writes over or decide them twice.

- Spark's newest batch begins and ends where its plans do (``check_place``), and no plan is of a later one;
- what Spark has committed is planned to its end and carried out;
- where the last part that was carried out keeps images, their states are there.

The metadata log tells of them, too: of what it says is decided everything was planned here, or found in the topics when
this checkpoint took the place of a lost one (``check_said``). One that is behind is an older copy of itself as a whole,
or another writer has logged the source meanwhile; either way it would decide writes again that have their rows.
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
    """Raise ChainBroken unless Spark's folder and the plans agree. ``topic``: of the mutations."""
    batches = _batches(checkpoint / "spark" / "offsets")
    committed = _batches(checkpoint / "spark" / "commits")
    newest = max(batches, default=-1)
    latest = max(chain.head.batch, *committed, newest)
    if latest > newest:
        raise ChainBroken(f"batch {latest} was planned or committed, and is not in Spark's offset log: {TOGETHER}")
    if newest < 0:
        return
    parts = chain.parts(newest)
    before = batch_ends(checkpoint, newest - 1, topic) if not parts and newest > 0 else {}
    check_place(newest, parts, chain.head, batch_ends(checkpoint, newest, topic), before)
    is_done = bool(parts) and parts[-1].last and all(chain.is_settled(part) or not part.ranges for part in parts)
    if newest in committed and not is_done:
        raise ChainBroken(f"batch {newest} is committed by Spark, and its plans are not carried out: {TOGETHER}")


def check_said(state: ClusterState, writer: str, source: str, chain: PlanChain, found: Mapping[int, int]) -> None:
    """Raise CdcError unless the checkpoint has all that the metadata log says is decided of ``source``, and nobody else
    logged that since this ``writer`` did; one without plans has nothing to be behind. ``found``: source partition to
    the offset up to which it noted what others had decided, when it took the place of a lost one.

    Plans are durable before anything is said of them, so a checkpoint that was never changed passes wherever it died.
    """
    if chain.head.sequence < 0:
        return
    planned, mine = dict(chain.head.positions), state.writers.get(writer)
    for _, other in in_order(state.writers):
        if other.source == source and mine is not None and other.registered > mine.registered:
            raise behind(f"the CDC writer {other.name} has logged {source} since the checkpoint was used last")
    for partition, offset in sorted(settled_of(state, source).items()):
        known = max(planned.get(partition, 0), found.get(partition, 0))
        if known < offset:
            raise behind(
                f"partition {partition} of {source} is decided up to {offset}, and the checkpoint, an older copy of "
                f"itself, knows of {known}"
            )


def check_images(files: ImageFiles, store: PlanStore) -> None:
    """Raise ImagesLost unless the states of the newest part are there, if its tables keep images.

    Of a part that is not carried out yet nothing has to be there: the run that carries it out looks.
    """
    parts = store.parts(store.head.batch)
    if not parts or not store.is_settled(parts[-1]) or not tables_with_images(store.context(parts[-1].context)):
        return
    for item in parts[-1].ranges:
        if not (files.folder / BEGUN).exists() or not files.has(item.partition):
            raise ImagesLost(item.partition, f"{FOLDER}/ of the checkpoint is not whole")


def _batches(folder: Path) -> set[int]:
    return {int(path.name) for path in folder.iterdir() if path.name.isdigit()} if folder.is_dir() else set()

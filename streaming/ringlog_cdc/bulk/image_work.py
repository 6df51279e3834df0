"""Plan parts whose tables keep images: preparation on the driver, and execution in a task.

``<checkpoint>/images/begun.json`` records the offset where images began, for each source partition. It is written
before the first part that keeps images.

Invariants:

* The store of a partition may be missing at its recorded offset only. The file may be missing only if no earlier part
  is known.
* When no table keeps images, the folder is emptied. The following writes are not folded into states, so images that
  start later start with empty states.
* Other files in the folder come from an earlier attempt at the same part, whose states were just as empty at its start,
  or from a replaced driver. Each store records its owner, which distinguishes the two cases.
* A task sees one source partition in the order of its offsets. That is how Spark's Kafka source splits a batch, and it
  is checked. A task without records does not know its partition, so the driver advances that store itself.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from ringlog.kernel.values import Value, replace
from ringlog_cdc.definition.image_tables import images_end, tables_with_images
from ringlog_cdc.errors import CdcError, ChainBroken
from ringlog_cdc.images.files import BEGUN, FOLDER, ImageFiles
from ringlog_cdc.images.store import ImagesLost, ImageStore
from ringlog_cdc.plan.chain import StoredChain
from ringlog_cdc.plan.plan import OffsetRange, PlanEntry

Tell = Callable[..., None]
"""Callback for a progress line: its event and fields."""


class ImageWork(Value):
    """Tables and ranges of a part. Sent to the tasks.

    Attributes:
        files: The folder.
        owner: Epoch of the registration of the writer's incarnation.
        tables: (full name, id) of the tables that keep images.
        ranges: Ranges of the part.
        born: (source partition, offset where images began).
        kept_from: (source partition, first offset that may be replayed). See ``ImageStore.commit``.
        ends: (full name, id, time) of tables without images for writes appended from that time on. The first such write
            drops the table's states.
    """

    files: ImageFiles
    owner: int
    tables: tuple[tuple[str, str], ...]
    ranges: tuple[OffsetRange, ...]
    born: tuple[tuple[int, int], ...]
    kept_from: tuple[tuple[int, int], ...]
    ends: tuple[tuple[str, str, int], ...] = ()

    def opened(self, partition: int) -> tuple[ImageStore, OffsetRange]:
        """Open the store of a partition at the start of its range. The caller commits and closes it.

        Raises:
            ImagesLost: The store does not have the states before the range.
            CdcError: ``images_taken``: a newer writer owns the store.
        """
        (found,) = (item for item in self.ranges if item.partition == partition)
        store = self.files.open(partition)
        try:
            store.begin(found.start, found.end, self.owner)
            store.keep_only(self.tables)
        except BaseException:
            store.close()
            raise
        return store, found

    def rewound(self, item: OffsetRange) -> None:
        """Reset a store to the start of a range.

        Raises:
            ImagesLost: The store does not have the states before the range.
            CdcError: ``images_taken``: a newer writer owns the store.
        """
        store = self.files.open(item.partition)
        try:
            store.rewind(item.start, dict(self.born)[item.partition], self.owner)
        finally:
            store.close()

    def commit(self, store: ImageStore, found: OffsetRange, now: int) -> None:
        """Commit the states of a range.

        Args:
            store: The open store.
            found: The range.
            now: Append time of its last write, microseconds.
        """
        for name, table, since in self.ends:
            if since <= now:
                store.forget(name, table)
        store.commit(found.end, now, dict(self.kept_from).get(found.partition, found.start))


def carried(
    batches: Iterable[pa.RecordBatch], work: ImageWork, records_of: Callable[[pa.RecordBatch, ImageStore], Any]
) -> Iterator[Any]:
    """Run ``records_of`` on the batches of one task, with the states of its source partition, and commit them.

    Raises:
        ChainBroken: The records are not those of one range, in order.
    """
    store: ImageStore | None = None
    found: OffsetRange | None = None
    last = now = -1
    # States are many small objects that live as long as the part and form no cycles. Scanning them for garbage would
    # take as long as all other work.
    gc.disable()
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            partitions, offsets = batch.column("partition").to_numpy(), batch.column("offset").to_numpy()
            if store is None or found is None:
                store, found = work.opened(int(partitions[0]))
            if (partitions != found.partition).any() or not (offsets[1:] > offsets[:-1]).all() or offsets[0] <= last:
                raise ChainBroken("a task of the query reads several source partitions, or reads one out of order")
            if offsets[0] < found.start or offsets[-1] >= found.end:
                raise ChainBroken(f"records of partition {found.partition} are outside of {found}")
            last, now = int(offsets[-1]), int(batch.column("appended")[-1].as_py())
            store.expect(batch.nbytes)
            yield records_of(batch, store)
        if store is not None and found is not None:
            work.commit(store, found, now)
    finally:
        gc.enable()
        if store is not None:
            store.close()


# ---------------------------------------------------------------------------------------------------------- driver


class ImageFolder:
    """The driver's side of image states. No method is called while tasks run."""

    def __init__(self, files: ImageFiles, owner: int, anew: bool = False, tell: Tell | None = None) -> None:
        """Work on a folder as one incarnation of the writer.

        Args:
            files: The folder.
            owner: Epoch of the registration of the writer's incarnation.
            anew: Restart images with empty states if states were lost.
            tell: Callback with partition and offset when that happens.
        """
        self._files = files
        self._owner = owner
        self._anew = anew
        self._tell = tell
        self._settled: dict[int, int] = {}

    def part(self, chain: StoredChain[Any, Any], entry: PlanEntry, context: Mapping[str, Any]) -> ImageWork | None:
        """Prepare a stored part, decided with ``context``. See ``work``."""
        before = chain.before(entry)
        kept_before = None if before is None else bool(tables_with_images(chain.context(before.context)))
        tables, kept_from = tables_with_images(context), chain.replayed_from(entry.batch)
        return self.work(tables, entry.ranges, kept_from, kept_before, images_end(context))

    def work(
        self,
        tables: tuple[tuple[str, str], ...],
        ranges: Sequence[OffsetRange],
        kept_from: Mapping[int, int],
        kept_before: bool | None,
        ends: tuple[tuple[str, str, int], ...] = (),
    ) -> ImageWork | None:
        """Prepare the stores for a part.

        Args:
            tables: (full name, id) of the tables that keep images.
            ranges: Ranges of the part.
            kept_from: Source partition to the first offset that Spark may replay.
            kept_before: True if the previous part kept images. None: no previous part is known.
            ends: See ``ImageWork``.

        Returns:
            The work for the tasks, or None if no table keeps images.

        Raises:
            ImagesLost: States are missing, and ``anew`` is not set.
            CdcError: ``images_taken``: a newer writer owns a store.
        """
        if not tables:
            self._settled = {}
            self._check_owner()
            self._files.forget()
            return None
        born = self._born(ranges, kept_before)
        kept = tuple(sorted(kept_from.items()))
        work = ImageWork(self._files, self._owner, tables, tuple(ranges), tuple(sorted(born.items())), kept, ends)
        for item in ranges:
            # This driver left the store at the start of the range, so it needs no reset.
            if self._settled.get(item.partition) == item.start and self._files.has(item.partition):
                continue
            try:
                work.rewound(item)
            except ImagesLost as error:
                born[item.partition] = self._begin_anew(item, error)
                self._mark(born)
                work = replace(work, born=tuple(sorted(born.items())))
                work.rewound(item)
        return work

    def settle(self, work: ImageWork, seen: Collection[int]) -> None:
        """Advance the stores of ranges without records, after the tasks.

        Args:
            work: Work of the part.
            seen: Source partitions whose records tasks have processed.

        Raises:
            ImagesLost: A store is damaged.
            CdcError: ``images_elsewhere``: a task processed records, but its states are not in this folder.
        """
        for item in work.ranges:
            store = self._files.open(item.partition)
            position = store.position
            store.close()
            self._settled[item.partition] = item.end
            if position == item.end:
                continue
            if item.partition in seen:
                raise CdcError(
                    "images_elsewhere",
                    (
                        f"a task has stored states of partition {item.partition}, but the driver does not find them in "
                        f"{self._files}"
                    ),
                    "put the checkpoint in a folder that all executors see under the same path",
                )
            store, found = work.opened(item.partition)
            try:
                work.commit(store, found, 0)
            finally:
                store.close()

    def _born(self, ranges: Sequence[OffsetRange], kept_before: bool | None) -> dict[int, int]:
        """Return source partition to the offset where images began, for all known partitions and these ranges."""
        known: dict[int, int] = {}
        try:
            if kept_before is False:
                self._begin()
            else:
                known = self._files.begun()
        except FileNotFoundError:
            self._lost_mark(ranges, "missing", kept_before is None)
        except ChainBroken as error:
            self._lost_mark(ranges, f"unreadable: {error.message}", False)
        found = {item.partition: item.start for item in ranges} | known
        if found != known:
            self._check_owner()  # a newer writer may have restarted images without reaching these partitions
            self._mark(found)
        return found

    def _lost_mark(self, ranges: Sequence[OffsetRange], how: str, is_first: bool) -> None:
        """Handle a missing or unreadable file. Without an earlier part (``is_first``) it is simply new."""
        if not is_first:
            self._begin_anew(ranges[0], ImagesLost(ranges[0].partition, f"{FOLDER}/{BEGUN} is {how}"))
        self._begin()

    def _begin(self) -> None:
        """Replace the folder by an empty one."""
        self._settled = {}
        self._check_owner()
        self._files.begin()

    def _check_owner(self) -> None:
        """Raise CdcError ``images_taken`` if a newer writer owns any store."""
        for partition in self._files.partitions():
            with suppress(ImagesLost):
                store = self._files.open(partition)
                try:
                    store.check_owner(self._owner)
                finally:
                    store.close()

    def _begin_anew(self, item: OffsetRange, error: ImagesLost) -> int:
        """Drop the lost states of a partition.

        Return the offset where its images begin now. Raises ``error`` unless ``anew``.
        """
        if not self._anew:
            raise error
        if self._tell is not None:
            self._tell("images_anew", partition=item.partition, offset=item.start, why=error.message)
        self._files.drop(item.partition)
        return item.start

    def _mark(self, born: Mapping[int, int]) -> None:
        """Store where images began."""
        self._files.mark(born)

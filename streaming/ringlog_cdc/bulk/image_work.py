"""Parts of batches whose tables keep images: what the driver tells the tasks, and what a task does.

``<checkpoint>/images/begun.json`` says for each source partition at which offset images began there. It is written
before the first part that keeps them; there, and nowhere else, a store may be missing, and only if no part is before it
may that file be. When no table keeps images any more the folder is emptied: writes go by that nobody folds, so a job
that keeps images again begins with empty states. What lies there all the same is of an attempt at that part, whose
states are as empty at its begin, or of a driver that was replaced: stores say who owns them, and an emptied folder has
none.

A task sees one source partition in the order of its offsets, which is how Spark's Kafka source cuts a batch; it is
checked. A task without a record does not know its partition: the driver moves such a store on itself.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from ringlog_cdc.definition.image_tables import images_end, tables_with_images
from ringlog_cdc.errors import CdcError, ChainBroken
from ringlog_cdc.images.files import BEGUN, FOLDER, ImageFiles
from ringlog_cdc.images.store import ImagesLost, ImageStore
from ringlog_cdc.plan.chain import StoredChain
from ringlog_cdc.plan.plan import OffsetRange, PlanEntry

Tell = Callable[..., None]
"""Gets the event of a line of the progress and its fields."""


@dataclass(frozen=True, slots=True)
class ImageWork:
    """A part's tables and ranges. ``born``: partition to where images begin; ``kept_from``: see ``ImageStore.commit``.

    ``ends``: of the tables, those without images for writes appended from a time on, as (full name, id, time); their
    states end with such a write.

    ``owner``: epoch at which the writer's incarnation was registered.
    """

    files: ImageFiles
    owner: int
    tables: tuple[tuple[str, str], ...]
    ranges: tuple[OffsetRange, ...]
    born: tuple[tuple[int, int], ...]
    kept_from: tuple[tuple[int, int], ...]
    ends: tuple[tuple[str, str, int], ...] = ()

    def opened(self, partition: int) -> tuple[ImageStore, OffsetRange]:
        """The store of a partition, set to the begin of its range; the caller commits and closes it."""
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
        """Go back to the begin of a range. Raises ImagesLost, or CdcError ``images_taken``."""
        store = self.files.open(item.partition)
        try:
            store.rewind(item.start, dict(self.born)[item.partition], self.owner)
        finally:
            store.close()

    def commit(self, store: ImageStore, found: OffsetRange, now: int) -> None:
        """The states of a range count; its last write was appended at ``now``."""
        for name, table, since in self.ends:
            if since <= now:
                store.forget(name, table)
        store.commit(found.end, now, dict(self.kept_from).get(found.partition, found.start))


def carried(
    batches: Iterable[pa.RecordBatch], work: ImageWork, records_of: Callable[[pa.RecordBatch, ImageStore], Any]
) -> Iterator[Any]:
    """What ``records_of`` makes of the batches of one task, with the states of its source partition."""
    store: ImageStore | None = None
    found: OffsetRange | None = None
    last = now = -1
    # States are many small objects that all live as long as the part, and none of them is in a cycle: to look for some
    # among them takes as long as all else.
    gc.disable()
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            partitions, offsets = batch.column("partition").to_numpy(), batch.column("offset").to_numpy()
            if store is None or found is None:
                store, found = work.opened(int(partitions[0]))
            if (partitions != found.partition).any() or not (offsets[1:] > offsets[:-1]).all() or offsets[0] <= last:
                raise ChainBroken("a task of the query has several source partitions, or one without order")
            if offsets[0] < found.start or offsets[-1] >= found.end:
                raise ChainBroken(f"records of partition {found.partition} lie outside of {found}")
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
    """The driver's side. Nothing here is called while tasks run."""

    def __init__(self, files: ImageFiles, owner: int, anew: bool = False, tell: Tell | None = None) -> None:
        """``anew``: where states were lost, images begin anew; ``tell`` is called then, with partition and offset."""
        self._files = files
        self._owner = owner
        self._anew = anew
        self._tell = tell
        self._settled: dict[int, int] = {}

    def part(self, chain: StoredChain[Any, Any], entry: PlanEntry, context: Mapping[str, Any]) -> ImageWork | None:
        """``work`` for a stored part, which is decided with ``context``."""
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
        """What tasks must know of a part of these ranges, which have their states; None if no table keeps images.

        ``tables``: (full name, id) of those that do; ``ends``: see ``ImageWork``; ``kept_from``: the first offsets of
        what Spark may hand out again; ``kept_before``: did the part before this one
        keep images, None: no part before it is known. Raises ImagesLost, or CdcError ``images_taken``.
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
        """Move on the stores of ranges without records. ``seen``: partitions whose records tasks have seen.

        Raises ImagesLost, or CdcError ``images_elsewhere``.
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
                    f"a task has kept states of partition {item.partition}, and they are not in {self._files}",
                    "the checkpoint must be a folder that all executors see under the same path",
                )
            store, found = work.opened(item.partition)
            try:
                work.commit(store, found, 0)
            finally:
                store.close()

    def _born(self, ranges: Sequence[OffsetRange], kept_before: bool | None) -> dict[int, int]:
        """Partition to where images begin, of all that are known and of these."""
        known: dict[int, int] = {}
        try:
            if kept_before is False:
                self._begin()
            else:
                known = {int(partition): int(offset) for partition, offset in json.loads(self._files.begun()).items()}
        except FileNotFoundError:
            self._lost_mark(ranges, "missing", kept_before is None)
        except (ValueError, TypeError, AttributeError) as error:
            self._lost_mark(ranges, f"unreadable: {error}", False)
        found = {item.partition: item.start for item in ranges} | known
        if found != known:
            self._check_owner()  # a newer writer may have begun anew, and not come to these partitions yet
            self._mark(found)
        return found

    def _lost_mark(self, ranges: Sequence[OffsetRange], how: str, is_first: bool) -> None:
        if not is_first:
            self._begin_anew(ranges[0], ImagesLost(ranges[0].partition, f"{FOLDER}/{BEGUN} is {how}"))
        self._begin()

    def _begin(self) -> None:
        """An empty folder, whatever there is."""
        self._settled = {}
        self._check_owner()
        self._files.begin()

    def _check_owner(self) -> None:
        """Raise CdcError ``images_taken`` if a newer writer keeps states of any partition."""
        for partition in self._files.partitions():
            with suppress(ImagesLost):
                store = self._files.open(partition)
                try:
                    store.check_owner(self._owner)
                finally:
                    store.close()

    def _begin_anew(self, item: OffsetRange, error: ImagesLost) -> int:
        """Forget the states of a partition that were lost; returns where images begin now."""
        if not self._anew:
            raise error
        if self._tell is not None:
            self._tell("images_anew", partition=item.partition, offset=item.start, why=error.message)
        self._files.drop(item.partition)
        return item.start

    def _mark(self, born: Mapping[int, int]) -> None:
        self._files.mark(json.dumps({str(partition): offset for partition, offset in sorted(born.items())}))

"""The row states for images: ``ringlog_cdc.images`` on a simulated disk.

The store is the production one, with a database in memory. Committed data is on disk, and a dying process loses its
uncommitted data. Only the files of the folder are re-implemented. A store has one user at a time, like the file. A
process calls ``free`` to wait for it before opening one, because opening takes no time here.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ringlog_cdc.errors import CdcError
from ringlog_cdc.images.files import ImageFiles
from ringlog_cdc.images.store import ImageStore
from ringlog_sim.devices.world import PowerCut, Signal, SimHost
from ringlog_sim.replica import Step


class Base(sqlite3.Connection):
    """A database that is closed with its last reference. A store may continue to use the database of a
    deleted folder.
    """

    def __del__(self) -> None:
        self.close()


def _memory() -> Base:
    """Return an empty database. The garbage collector may drop the last reference in any thread."""
    return sqlite3.connect(":memory:", isolation_level=None, factory=Base, check_same_thread=False)


@dataclass(eq=False, slots=True)
class ImageDisk:
    """The folder of images: its mark, the database of each source partition, and the open stores."""

    mark: dict[int, int] | None = None
    bases: dict[int, sqlite3.Connection] = field(default_factory=dict)
    open_stores: dict[int, SimStore] = field(default_factory=dict)
    freed: Signal = field(default_factory=Signal)


class SimStore(ImageStore):
    """The production store on a database of the simulated disk."""

    def __init__(self, disk: ImageDisk, partition: int) -> None:
        self._disk = disk
        super().__init__(Path(), partition)

    def _open(self, _: Path) -> None:
        disk = self._disk
        assert self.partition not in disk.open_stores, "the previous process has closed the store"
        disk.open_stores[self.partition] = self
        if self.partition not in disk.bases:
            disk.bases[self.partition] = _memory()
        self._base = disk.bases[self.partition]

    def close(self) -> None:
        """Roll back uncommitted changes and release the store."""
        disk = self._disk
        if disk.open_stores.get(self.partition) is self:
            if self._base.in_transaction:
                self._base.execute("ROLLBACK")
            del disk.open_stores[self.partition]
            disk.freed.fire()


class Kept(Protocol):
    """A checkpoint with its images."""

    images: ImageDisk | None


class SimFiles(ImageFiles):
    """The files of images in the checkpoint ``kept`` on the disk of ``owner``, accessed from ``host``."""

    kept: Kept
    owner: SimHost
    host: SimHost

    def begun(self) -> dict[int, int]:
        """Return the mark. Raise FileNotFoundError if there is none."""
        disk = self.kept.images
        if disk is None or disk.mark is None:
            raise FileNotFoundError
        return dict(disk.mark)

    def mark(self, starts: Mapping[int, int]) -> None:
        """Store the mark. Raise PowerCut if the host goes down before the write."""
        self._may_fail()
        self._there().mark = dict(starts)

    def begin(self) -> None:
        """Create an empty folder."""
        self.forget()
        self._may_fail()
        self.kept.images = ImageDisk()

    def forget(self) -> None:
        """Delete the folder. A process with an open store continues with the deleted data."""
        if self.kept.images is not None:
            self._may_fail()
            self.kept.images = None

    def partitions(self) -> list[int]:
        """Return the source partitions with states."""
        return sorted(self.kept.images.bases) if self.kept.images is not None else []

    def has(self, partition: int) -> bool:
        """Return True if a source partition has states."""
        return self.kept.images is not None and partition in self.kept.images.bases

    def drop(self, partition: int) -> None:
        """Delete the states of a source partition."""
        self._there().bases.pop(partition, None)

    def open(self, partition: int) -> ImageStore:
        """Open the states of a source partition that no other process uses."""
        return SimStore(self._there(), partition)

    def free(self, partitions: Iterable[int]) -> Step:
        """Wait until no process uses these partitions."""
        wanted = {*partitions}
        while (disk := self.kept.images) is not None and not wanted.isdisjoint(disk.open_stores):
            yield disk.freed

    def _there(self) -> ImageDisk:
        if self.kept.images is None or self.owner.disk.get("checkpoint") is not self.kept:
            raise CdcError("images_elsewhere", "the folder was deleted")
        return self.kept.images

    def _may_fail(self) -> None:
        """Raise PowerCut if the host is set to go down before its next write."""
        if self.host.tears:
            self.host.tears = False
            raise PowerCut

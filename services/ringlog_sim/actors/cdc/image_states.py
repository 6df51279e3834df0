"""Where the states of rows lie that images are made of: ``ringlog_cdc.images`` on a simulated disk.

The store is the production one, in a database in memory: what is committed is on disk, and a process that dies gives
up what was not. Of the folder only the files are retold. A store has one user at a time, like the file; a process
waits for it with ``free`` before it opens one, since opening itself takes no time here.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ringlog_cdc.errors import CdcError
from ringlog_cdc.images.files import ImageFiles
from ringlog_cdc.images.store import ImageStore
from ringlog_sim.devices.world import PowerCut, Signal, SimHost
from ringlog_sim.replica import Step


class Base(sqlite3.Connection):
    """A database that is gone with the last who knows of it: a folder may be forgotten while a store goes on in it."""

    def __del__(self) -> None:
        self.close()


def _memory() -> Base:
    """An empty database. The last who knows of it may be the collector of garbage, in whatever thread that runs."""
    return sqlite3.connect(":memory:", isolation_level=None, factory=Base, check_same_thread=False)


@dataclass(eq=False, slots=True)
class ImageDisk:
    """The folder of images: its mark, source partition to database, and who uses one."""

    mark: str | None = None
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
        assert self.partition not in disk.open_stores, "a process that opens it has waited for it"
        disk.open_stores[self.partition] = self
        if self.partition not in disk.bases:
            disk.bases[self.partition] = _memory()
        self._base = disk.bases[self.partition]

    def close(self) -> None:
        """Give up what was begun and not committed, and let others in."""
        disk = self._disk
        if disk.open_stores.get(self.partition) is self:
            if self._base.in_transaction:
                self._base.execute("ROLLBACK")
            del disk.open_stores[self.partition]
            disk.freed.fire()


class Kept(Protocol):
    """A checkpoint, as far as its images go."""

    images: ImageDisk | None


@dataclass(frozen=True, slots=True)
class SimFiles(ImageFiles):
    """The files of images in the checkpoint ``kept``, which lies on the disk of ``owner``, as a process on ``host``
    sees them.
    """

    kept: Kept
    owner: SimHost
    host: SimHost

    def begun(self) -> bytes:
        """The mark. Raises FileNotFoundError."""
        disk = self.kept.images
        if disk is None or disk.mark is None:
            raise FileNotFoundError
        return disk.mark.encode()

    def mark(self, text: str) -> None:
        """Store the mark; raises PowerCut where the host goes down before that."""
        self._may_fail()
        self._there().mark = text

    def begin(self) -> None:
        """An empty folder."""
        self.forget()
        self._may_fail()
        self.kept.images = ImageDisk()

    def forget(self) -> None:
        """No folder; who has a store of it open goes on with what nobody sees any more."""
        if self.kept.images is not None:
            self._may_fail()
            self.kept.images = None

    def partitions(self) -> list[int]:
        """The source partitions of which there are states."""
        return sorted(self.kept.images.bases) if self.kept.images is not None else []

    def has(self, partition: int) -> bool:
        """True if there are states of a source partition."""
        return self.kept.images is not None and partition in self.kept.images.bases

    def drop(self, partition: int) -> None:
        """Delete the states of a source partition."""
        self._there().bases.pop(partition, None)

    def open(self, partition: int) -> ImageStore:
        """The states of a source partition, which nobody uses."""
        return SimStore(self._there(), partition)

    def free(self, partitions: Iterable[int]) -> Step:
        """Wait until nobody uses these partitions."""
        wanted = {*partitions}
        while (disk := self.kept.images) is not None and not wanted.isdisjoint(disk.open_stores):
            yield disk.freed

    def _there(self) -> ImageDisk:
        if self.kept.images is None or self.owner.disk.get("checkpoint") is not self.kept:
            raise CdcError("images_elsewhere", "the folder was deleted")
        return self.kept.images

    def _may_fail(self) -> None:
        """A host whose next write to a disk is its last act goes down before it."""
        if self.host.tears:
            self.host.tears = False
            raise PowerCut

"""One suite for all stores of row states: in memory, in files and on a simulated disk, and the folders of the
last two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ringlog_cdc.definition.image_states import FOR_EVER, NO_COMMON, common_key, partition_prefix, row_key
from ringlog_cdc.definition.images import States
from ringlog_cdc.errors import CdcError
from ringlog_cdc.images.files import ImageFiles
from ringlog_cdc.images.store import ImagesLost, ImageStore
from ringlog_sim.actors.cdc.checkpoint import NAME as CHECKPOINT
from ringlog_sim.actors.cdc.checkpoint import Folder
from ringlog_sim.actors.cdc.image_states import SimFiles
from ringlog_sim.devices.world import SimWorld
from tests.cdc.images.memory import MemoryStates
from tests.cdc.images.tables import image_table
from tests.client.cdc.test_table import TABLE as FLIGHTS

NAME = "ks.t"
TABLE = image_table(FLIGHTS.columns, FLIGHTS.clustering_key, partition=("p",))
ROW = (FOR_EVER, 0, (5, b"", None), ("v",), (b"\1x",), 5, None, None)
LATER = (FOR_EVER, 0, (7, b"", None), ("v",), (b"\1y",), 7, None, None)


def files(path: Path) -> ImageFiles:
    return ImageFiles(path / "images")


def simulated(_: Path) -> ImageFiles:
    world = SimWorld(1)
    host = world.host("spark")
    kept = host.disk[CHECKPOINT] = Folder()
    return SimFiles(Path(), kept, host, host)


FOLDERS = [files, simulated]


@dataclass
class Part:
    """A context manager for a part of partition 0 from ``begin`` to ``end``; without ``commits`` the part is
    abandoned.
    """

    folder: ImageFiles
    begin: int
    end: int
    owner: int = 1
    commits: bool = True

    def __enter__(self) -> ImageStore:
        self.store = self.folder.open(0)
        try:
            self.store.rewind(self.begin, 0, self.owner)
            self.store.begin(self.begin, self.end, self.owner)
            self.store.keep_only([(NAME, TABLE.id)])
        except CdcError:
            self.store.close()
            raise
        return self.store

    def __exit__(self, error: object, *_: object) -> None:
        if error is None and self.commits:
            self.store.commit(self.end, 0, 0)
        self.store.close()


@pytest.fixture(params=FOLDERS, ids=lambda make: make.__name__)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> ImageFiles:
    made: ImageFiles = request.param(tmp_path)
    made.begin()
    return made


@pytest.fixture(params=[None, *FOLDERS], ids=lambda make: make.__name__ if make else "memory")
def states(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[States]:
    make: Callable[[Path], ImageFiles] | None = request.param
    if make is None:
        yield MemoryStates()
        return
    made = make(tmp_path)
    made.begin()
    with Part(made, 0, 9) as store:
        yield store


def key_of(states: States, partition: bytes, row: bytes, name: str = NAME) -> bytes:
    return row_key(partition_prefix(states.number(name, TABLE), partition), (row,))


def test_each_table_has_its_number(states: States) -> None:
    found = [states.number(name, TABLE) for name in ("ks.t", "ks.u", "ks.t")]
    assert found[0] == found[2] != found[1]


def test_the_last_put_state_is_read(states: States) -> None:
    key, other = key_of(states, b"p", b"1"), key_of(states, b"p", b"2")
    assert states.get(key) is None
    states.put(key, ROW)
    assert (states.get(key), states.get(other)) == (ROW, None)
    states.put(key, LATER)
    states.fetch([key, other])
    assert (states.get(key), states.get(other)) == (LATER, None)
    states.put(key, None)
    states.fetch([key])
    assert states.get(key) is None


def test_keys_of_a_partition_are_sorted(states: States) -> None:
    number = states.number(NAME, TABLE)
    keys = [key_of(states, b"p", bytes([row])) for row in (2, 255, 0, 1)]
    others = [key_of(states, b"q", b"1"), key_of(states, b"o", b"1"), key_of(states, b"p", b"1", "ks.u")]
    for key in (*keys, *others):
        states.put(key, ROW)
    prefix = partition_prefix(number, b"p")
    assert list(states.under(prefix)) == sorted(keys)
    states.put(keys[0], None)
    states.put(key_of(states, b"p", b"\3"), LATER)
    assert list(states.under(prefix)) == sorted([*keys[1:], key_of(states, b"p", b"\3")])
    assert [states.get(key) for key in states.under(prefix)].count(ROW) == 3


def test_shared_columns_are_known_per_table(states: States) -> None:
    prefix, other = (partition_prefix(states.number(name, TABLE), b"p") for name in (NAME, "ks.u"))
    states.put(row_key(prefix, (b"",)), ROW)
    assert not states.has_common(prefix)
    states.put(common_key(prefix), NO_COMMON)
    assert states.has_common(partition_prefix(states.number(NAME, TABLE), b"q"))
    assert not states.has_common(other)
    assert states.get(common_key(prefix)) == NO_COMMON


def test_a_part_is_atomic(folder: ImageFiles) -> None:
    with Part(folder, 0, 5) as store:
        key = key_of(store, b"p", b"1")
        store.put(key, ROW)
    with Part(folder, 5, 9, commits=False) as store:
        store.put(key, LATER)
        assert list(store.under(partition_prefix(store.number(NAME, TABLE), b"p"))) == [key]
    with Part(folder, 5, 9) as store:
        assert (store.get(key), store.position) == (ROW, 5)
        store.put(key, LATER)
    with closing(folder.open(0)) as store:
        assert (store.get(key), store.position) == (LATER, 9)


def test_a_repeated_part_begins_with_its_first_states(folder: ImageFiles) -> None:
    for begin, end, value in ((0, 5, ROW), (5, 9, LATER), (9, 12, None)):
        with Part(folder, begin, end) as store:
            key = key_of(store, b"p", b"1")
            store.put(key, value)
    with Part(folder, 5, 9) as store:
        assert store.get(key) == ROW


def test_lost_states_are_detected(folder: ImageFiles) -> None:
    with pytest.raises(ImagesLost), Part(folder, 3, 5):
        pass
    with Part(folder, 0, 5, owner=4):
        pass
    with pytest.raises(ImagesLost), Part(folder, 6, 9, owner=4):
        pass
    with pytest.raises(CdcError, match="images_taken"), Part(folder, 5, 9, owner=3):
        pass


@pytest.mark.parametrize("make", FOLDERS, ids=lambda make: make.__name__)
def test_a_folder_has_its_mark_and_a_store_per_partition(make: Callable[[Path], ImageFiles], tmp_path: Path) -> None:
    folder = make(tmp_path)

    def content() -> Any:
        return folder.partitions(), [folder.has(partition) for partition in range(3)]

    folder.forget()
    with pytest.raises(FileNotFoundError):
        folder.begun()
    folder.begin()
    with pytest.raises(FileNotFoundError):
        folder.begun()
    assert content() == ([], [False] * 3)
    folder.mark({0: 7})
    folder.mark({0: 8, 10: 1})
    for partition in (2, 0):
        folder.open(partition).close()
    assert (folder.begun(), content()) == ({0: 8, 10: 1}, ([0, 2], [True, False, True]))
    folder.drop(2)
    folder.drop(1)
    assert (folder.begun(), content()) == ({0: 8, 10: 1}, ([0], [True, False, False]))
    folder.begin()
    assert content() == ([], [False] * 3)
    folder.mark({0: 9})
    folder.forget()
    with pytest.raises(FileNotFoundError):
        folder.begun()
    with pytest.raises(CdcError, match="images_elsewhere"):
        folder.open(0)

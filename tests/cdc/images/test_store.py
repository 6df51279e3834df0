"""Row states on disk: crashes and repetitions of a part do not change its output, and lost states are detected."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from ringlog.wire.records import Mutation
from ringlog_cdc.bulk.image_work import ImageFolder, ImageWork, carried
from ringlog_cdc.definition.image_tables import ImageTable
from ringlog_cdc.definition.images import imaged
from ringlog_cdc.definition.split import Piece, split
from ringlog_cdc.errors import CdcError, ChainBroken
from ringlog_cdc.images.files import BEGUN, ImageFiles
from ringlog_cdc.images.store import ImagesLost, ImageStore
from ringlog_cdc.plan.plan import OffsetRange
from tests.cdc.images.memory import MemoryStates
from tests.cdc.images.tables import image_table
from tests.client.cdc.test_table import TABLE
from tests.kernel.rows import histories
from tests.kernel.rows.histories import SECOND, draw, mutation_of

NAME = "ks.t"
IMAGES = image_table(TABLE.columns, TABLE.clustering_key, partition=("p",))


def outputs(states: MemoryStates | ImageStore, writes: list[Mutation], first: int) -> list[tuple[Piece, ...]]:
    """Return the output for writes from offset ``first`` on; offset n is appended at n seconds."""
    found = []
    for number, mutation in enumerate(writes, first):
        pieces = split(mutation, histories.SHAPE)
        out = imaged(states, NAME, IMAGES, mutation.partition_key[0] or b"", pieces, number * SECOND, False)
        for state in out.states.items():
            states.put(*state)
        found.append(out.pieces)
    return found


def history(chance: Random) -> list[Mutation]:
    return [mutation_of([draw(chance) for _ in range(chance.randint(1, 3))]) for _ in range(chance.randint(5, 40))]


@pytest.mark.parametrize("seed", range(15))
def test_a_part_may_be_repeated_or_cut_short(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the parts in order; random parts are aborted, and random completed parts are repeated with all
    later parts.
    """
    monkeypatch.setattr("ringlog_cdc.images.store.CHANGES_MAX", 3)
    chance = Random(seed)
    writes = history(chance)
    expected = outputs(MemoryStates(), writes, 0)
    cuts = sorted({0, len(writes), *(chance.randrange(len(writes)) for _ in range(4))})
    parts = list(pairwise(cuts))
    at = lowest = steps = 0
    done = -1
    while at < len(parts):
        start, end = parts[at]
        lowest = max(lowest, at - 2)
        kept_from = parts[lowest][0]
        with closing(ImageStore(tmp_path, 0)) as store:
            if done not in (start, end) or chance.random() < 0.5:
                store.rewind(start, 0, owner=1)
            store.begin(start, end, owner=1)
            store.keep_only([(NAME, IMAGES.id)])
            upto = end if chance.random() < 0.6 else chance.randint(start, end)
            assert outputs(store, writes[start:upto], start) == expected[start:upto]
            if upto == end:
                store.commit(end, end * SECOND, kept_from)
                at, done = at + 1, end
        steps += 1
        if upto == end and steps < 30 and chance.random() < 0.4:
            at = max(at - chance.randint(1, 2), lowest)
    with closing(ImageStore(tmp_path, 0)) as store:
        assert store.position == len(writes)
    assert not (tmp_path / "1.db").exists()


def commit(folder: Path, start: int, end: int, owner: int = 1, table: ImageTable = IMAGES, **options: int) -> None:
    """Commit a part that puts one state; its key is the part's begin."""
    with closing(ImageStore(folder, 0)) as store:
        store.rewind(start, options.get("born", 0), owner)
        store.begin(start, end, owner)
        store.keep_only([(NAME, table.id)])
        number = store.number(NAME, table).to_bytes(4, "big")
        store.put(number + start.to_bytes(4, "big"), (options.get("forgotten", 2**60), start))
        store.commit(end, options.get("now", 0), options.get("kept_from", start))


def test_old_or_lost_states_are_detected(tmp_path: Path) -> None:
    with pytest.raises(ImagesLost, match="no stored row states; they start at offset 0, and the part starts at 5"):
        commit(tmp_path, 5, 9)
    commit(tmp_path, 0, 5)
    with pytest.raises(ImagesLost, match="end at offset 5, before the start 7 of the part"):
        commit(tmp_path, 7, 9)
    commit(tmp_path, 5, 9)
    with pytest.raises(ImagesLost, match="cannot be reverted"):
        commit(tmp_path, 0, 5)
    with pytest.raises(ImagesLost, match="cannot be reverted"):
        commit(tmp_path, 6, 9)
    commit(tmp_path, 9, 12, kept_from=5)
    commit(tmp_path, 5, 9)


def test_a_start_stores_logged_states_before_it_serves_them(tmp_path: Path) -> None:
    """After a failed fsync the log may exist only in memory, and a second fsync would report success."""
    left = tmp_path / "left"
    left.mkdir()
    with closing(ImageStore(tmp_path, 0)) as store:
        store.rewind(0, 0, owner=1)
        store.begin(0, 5, owner=1)
        store.keep_only([(NAME, IMAGES.id)])
        store.commit(5, 0, 0)
        for name in ("0.db", "0.db-wal"):
            shutil.copy(tmp_path / name, left)
    with closing(ImageStore(left, 0)):
        assert (left / "0.db-wal").stat().st_size == 0
        shutil.copy(left / "0.db", tmp_path / "1.db")
    with closing(ImageStore(tmp_path, 1)) as alone:
        assert alone.position == 5


def test_a_task_of_an_older_incarnation_is_refused(tmp_path: Path) -> None:
    commit(tmp_path, 0, 5, owner=7)
    with pytest.raises(CdcError, match="images_taken"):
        commit(tmp_path, 5, 9, owner=6)
    commit(tmp_path, 5, 9, owner=8)


def test_a_task_restarts_at_the_begin_of_its_part_at_the_earliest(tmp_path: Path) -> None:
    with closing(ImageStore(tmp_path, 0)) as store, pytest.raises(ImagesLost, match="the driver has some"):
        store.begin(0, 5, 1)
    for start, end in ((0, 5), (5, 9)):
        commit(tmp_path, start, end, kept_from=0)
    with closing(ImageStore(tmp_path, 0)) as store, pytest.raises(CdcError, match="images_taken"):
        store.begin(0, 5, 1)
    with closing(ImageStore(tmp_path, 0)) as store:
        store.begin(5, 9, 1)
        store.commit(9, 0, 0)
    with closing(ImageStore(tmp_path, 0)) as store:
        assert store.position == 9


def keys(folder: Path) -> list[bytes]:
    with closing(ImageStore(folder, 0)) as store:
        return [key for (key,) in store._base.execute("SELECT key FROM states ORDER BY key")]


def test_pruned_states_are_deleted_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringlog_cdc.images.store.SWEPT_LEAST", 2)
    for start in range(6):
        commit(tmp_path, start, start + 1, now=0, forgotten=9 if start % 2 else 2**60)
    counts = []
    for start in range(6, 14):
        commit(tmp_path, start, start + 1, now=9, kept_from=start)
        counts.append(sum(1 for key in keys(tmp_path) if key[-1] < 6))
    assert counts[0] > 3 == counts[-1]
    assert {key[-1] for key in keys(tmp_path)} >= {0, 2, 4, 6, 13}
    assert not {key[-1] for key in keys(tmp_path)} & {1, 3, 5}


def test_a_recreated_or_paused_table_starts_without_states(tmp_path: Path) -> None:
    fields = {"preimage": "full", "postimage": True, "columns": [], "partition_key": (), "clustering_key": ()}
    other = ImageTable(fields | {"id": "another", "respelled": 0}, 0)
    commit(tmp_path, 0, 1)
    commit(tmp_path, 1, 2, table=other)
    commit(tmp_path, 2, 3)
    found = keys(tmp_path)
    assert len({key[:4] for key in found}) == len(found), "both start without states"


# ------------------------------------------------------------------------------------------------------- the task


def work(folder: Path, *ranges: tuple[int, int, int]) -> ImageWork:
    made = ImageFolder(ImageFiles(folder / "images"), 1).work(
        ((NAME, "i"),), [OffsetRange(*item) for item in ranges], {}, kept_before=None
    )
    assert made is not None
    return made


def batch(partitions: list[int], offsets: list[int]) -> pa.RecordBatch:
    columns = [pa.array(partitions, pa.int32()), pa.array(offsets, pa.int64()), pa.array(offsets, pa.int64())]
    return pa.RecordBatch.from_arrays(columns, names=["partition", "offset", "appended"])


def seen_by(found: pa.RecordBatch, store: ImageStore) -> list[int]:
    return [store.partition, *found.column("offset").to_pylist()]


@pytest.mark.parametrize(
    "batches",
    [
        [batch([0, 1], [0, 1])],
        [batch([0], [0]), batch([1], [1])],
        [batch([0, 0], [1, 0])],
        [batch([0], [1]), batch([0], [1])],
        [batch([0], [9])],
    ],
)
def test_a_task_of_two_partitions_or_out_of_order_stops(batches: list[pa.RecordBatch], tmp_path: Path) -> None:
    with pytest.raises(ChainBroken):
        list(carried(iter(batches), work(tmp_path, (0, 0, 5), (1, 0, 5)), seen_by))
    with closing(ImageStore(tmp_path / "images", 0)) as store:
        assert store.position == 0


def test_the_driver_advances_partitions_without_records(tmp_path: Path) -> None:
    mine = work(tmp_path, (0, 0, 5), (3, 2, 4))
    assert list(carried(iter([batch([], []), batch([0], [1]), batch([0], [4])]), mine, seen_by)) == [[0, 1], [0, 4]]
    ImageFolder(ImageFiles(tmp_path / "images"), 1).settle(mine, {0})
    for partition, end in ((0, 5), (3, 4)):
        with closing(ImageStore(tmp_path / "images", partition)) as store:
            assert store.position == end


def test_states_in_another_folder_are_detected(tmp_path: Path) -> None:
    mine = work(tmp_path, (0, 0, 5), (1, 0, 5))
    with pytest.raises(CdcError, match="images_elsewhere"):
        ImageFolder(ImageFiles(tmp_path / "images"), 1).settle(mine, {1})
    with pytest.raises(CdcError, match="images_elsewhere"):
        ImageStore(tmp_path / "nowhere", 0)


def test_an_unfinished_task_stores_nothing(tmp_path: Path) -> None:
    mine = work(tmp_path, (0, 0, 5))
    running: Iterator[list[int]] = carried(iter([batch([0], [1]), batch([0], [4])]), mine, seen_by)
    next(running)
    running.close()  # type: ignore[attr-defined]
    with closing(ImageStore(tmp_path / "images", 0)) as store:
        assert store.position == 0


# ----------------------------------------------------------------------------------------------------- the driver


def test_images_cover_the_first_to_the_last_part_with_them(tmp_path: Path) -> None:
    driver = ImageFolder(ImageFiles(tmp_path / "images"), 1)
    tables = ((NAME, "i"),)
    made = driver.work(tables, [OffsetRange(0, 7, 9)], {0: 3}, kept_before=None)
    assert made is not None
    assert (made.born, made.kept_from, made.tables) == (((0, 7),), ((0, 3),), ((NAME, "i"),))
    driver.settle(made, ())
    again = driver.work(tables, [OffsetRange(0, 9, 12), OffsetRange(1, 5, 6)], {}, kept_before=True)
    assert again is not None
    assert again.born == ((0, 7), (1, 5))
    assert driver.work((), [OffsetRange(0, 12, 13)], {}, kept_before=True) is None
    assert not (tmp_path / "images").exists()


def test_a_replaced_driver_leaves_no_valid_states(tmp_path: Path) -> None:
    def driver(owner: int) -> ImageFolder:
        return ImageFolder(ImageFiles(tmp_path / "images"), owner)

    replaced, successor, tables = driver(1), driver(2), ((NAME, "i"),)
    made = successor.work(tables, [OffsetRange(0, 0, 1)], {}, kept_before=None)
    assert made is not None
    successor.settle(made, ())
    assert successor.work((), [OffsetRange(0, 1, 3)], {}, kept_before=True) is None
    late = replaced.work(tables, [OffsetRange(0, 0, 1)], {}, kept_before=None)
    assert late is not None, "the paused driver does not notice that it was replaced"
    replaced.settle(late, ())
    for _ in range(2):
        made = successor.work(tables, [OffsetRange(0, 3, 5), OffsetRange(1, 2, 4)], {}, kept_before=False)
        assert made is not None
        assert made.born == ((0, 3), (1, 2))
        successor.settle(made, ())
    with pytest.raises(CdcError, match="images_taken"):
        replaced.work(tables, [OffsetRange(0, 0, 1)], {}, kept_before=False)


def test_a_replaced_driver_begins_no_partition_before_its_successor(tmp_path: Path) -> None:
    """Its begin would count as the successor's begin, although the successor continues at another offset."""

    def driver(owner: int) -> ImageFolder:
        return ImageFolder(ImageFiles(tmp_path / "images"), owner)

    replaced, successor, tables = driver(1), driver(2), ((NAME, "i"),)
    assert replaced.work(tables, [OffsetRange(0, 2, 3), OffsetRange(1, 8, 9)], {}, kept_before=None) is not None
    assert successor.work((), [OffsetRange(1, 9, 12)], {}, kept_before=True) is None
    assert successor.work(tables, [OffsetRange(1, 12, 13)], {}, kept_before=False) is not None
    with pytest.raises(CdcError, match="images_taken"):
        replaced.work(tables, [OffsetRange(0, 2, 3), OffsetRange(1, 8, 9)], {}, kept_before=True)
    made = successor.work(tables, [OffsetRange(0, 5, 6)], {}, kept_before=True)
    assert made is not None
    assert made.born == ((0, 5), (1, 12))


def lose_mark(folder: Path) -> None:
    (folder / BEGUN).unlink()


def lose_store(folder: Path) -> None:
    (folder / "0.db").unlink()


def spoil_mark(folder: Path) -> None:
    (folder / BEGUN).write_text("[7]")


def spoil_store(folder: Path) -> None:
    (folder / "0.db").write_bytes(b"no database " * 100)


def lose_all(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


@pytest.mark.parametrize("lose", [lose_mark, lose_store, lose_all, spoil_mark, spoil_store])
def test_lost_states_stop_the_job_without_reset(lose: Callable[[Path], None], tmp_path: Path) -> None:
    driver, tables = ImageFolder(ImageFiles(tmp_path / "images"), 1), ((NAME, "i"),)
    made = driver.work(tables, [OffsetRange(0, 0, 5)], {}, kept_before=None)
    assert made is not None
    driver.settle(made, ())
    lose(tmp_path / "images")

    def go_on(driver: ImageFolder) -> None:
        made = driver.work(tables, [OffsetRange(0, 5, 9)], {}, kept_before=True)
        assert made is not None
        driver.settle(made, ())

    with pytest.raises(ImagesLost):
        go_on(driver)
    told: list[tuple[str, int, int]] = []

    def tell(event: str, partition: int, offset: int, why: str) -> None:
        told.append((event, partition, offset))

    go_on(ImageFolder(ImageFiles(tmp_path / "images"), 2, anew=True, tell=tell))
    assert ImageFiles(tmp_path / "images").begun() == {0: 5}
    assert told == [("images_anew", 0, 5)]


def test_only_lost_partitions_restart(tmp_path: Path) -> None:
    driver, tables = ImageFolder(ImageFiles(tmp_path / "images"), 1, anew=True), ((NAME, "i"),)
    for start in (0, 5):
        made = driver.work(
            tables,
            [OffsetRange(0, start, start + 5), OffsetRange(1, start, start + 5)],
            {},
            None if start == 0 else True,
        )
        assert made is not None
        driver.settle(made, ())
        (tmp_path / "images" / "1.db").unlink()
    assert ImageFiles(tmp_path / "images").begun() == {0: 0, 1: 5}

"""The journal: what was acknowledged is there after a crash at any byte; damage is told, never cut off."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlog.node.frames import MAGIC, JournalDamaged, frame, scan
from ringlog.node.image import Image, fold, records_of
from ringlog.node.journal import IMAGE, JOURNAL, Journal, recover, write_image
from ringlog.wire.cells import Cell, Key
from ringlog.wire.data import JournalRecord, StreamMark, pack

KEYS = [Key("ks", token, b"k%d" % token) for token in range(4)]
CELLS = st.builds(Cell, st.integers(0, 5), st.binary(max_size=8), st.booleans())
OPERATIONS = st.sampled_from(["op1", "op2"])
MARKS = st.builds(StreamMark, OPERATIONS, st.just("n1"), st.just("simple:3"), st.sampled_from(KEYS))
RECORDS = st.builds(
    JournalRecord,
    epoch=st.integers(0, 9),
    start=st.integers(0, 3),
    dropped=st.lists(st.sampled_from(KEYS), max_size=2).map(tuple),
    cells=st.lists(st.tuples(st.sampled_from(KEYS), CELLS), max_size=3).map(tuple),
    marks=st.lists(MARKS, max_size=1).map(tuple),
    ended=st.lists(OPERATIONS, max_size=1).map(tuple),
)


def folded(records: list[JournalRecord]) -> Image:
    image = Image()
    for record in records:
        image = fold(image, record)
    return image


def plain(records: list[JournalRecord]) -> dict[Key, Cell]:
    """The cells by the letter, with nothing of the code under test."""
    held: dict[Key, Cell] = {}
    for record in records:
        for key in record.dropped:
            held.pop(key, None)
        for key, cell in record.cells:
            have = held.get(key)
            if have is None or (cell.timestamp, cell.deleted, cell.value) > (have.timestamp, have.deleted, have.value):
                held[key] = cell
    return held


def appended(journal: Journal, records: list[JournalRecord]) -> None:
    """Each record on the disk before the next one is asked for."""
    for record in records:
        done = threading.Event()
        journal.append(record, done.set)
        assert done.wait(30), journal.failure


def batches(records: list[JournalRecord], sizes: list[int]) -> tuple[bytes, list[int]]:
    """A journal's bytes as groups of commits write them, and where each group ends."""
    data, ends, rest = MAGIC, [len(MAGIC)], list(records)
    for size in [*sizes, len(records)]:
        synced = len(data)
        some, rest = rest[:size], rest[size:]
        data += b"".join(frame(pack(record), synced) for record in some)
        ends.append(len(data))
    return data, ends


@settings(max_examples=15)
@given(st.lists(RECORDS, max_size=5))
def test_the_image_is_the_fold_of_the_records(records: list[JournalRecord]) -> None:
    image = folded(records)
    assert dict(image.cells) == plain(records)
    assert folded(list(records_of(image))) == image


@settings(max_examples=12)
@given(st.lists(RECORDS, min_size=1, max_size=6), st.lists(st.integers(1, 3), max_size=3))
def test_a_crash_at_every_byte_keeps_what_was_synced(records: list[JournalRecord], sizes: list[int]) -> None:
    data, ends = batches(records, sizes)
    whole = [pack(record) for record in records]
    for cut in range(len(data) + 1):
        found = scan(data[:cut], "j", may_be_torn=True)
        assert list(found.payloads) == whole[: len(found.payloads)], "a beginning of what was written"
        assert found.end <= cut
        assert not any(found.end < end <= cut for end in ends if end > len(MAGIC)), "what was synced is there"


@settings(max_examples=12)
@given(st.lists(RECORDS, min_size=2, max_size=5), st.data())
def test_a_changed_byte_is_damage_unless_it_lies_in_the_last_group(
    records: list[JournalRecord], data: st.DataObject
) -> None:
    written, ends = batches(records, [1] * len(records))
    for place in range(len(MAGIC), len(written)):
        broken = bytearray(written)
        broken[place] ^= 1 << data.draw(st.integers(0, 7))
        if place < sorted(set(ends))[-2]:
            with pytest.raises(JournalDamaged, match="damaged"):
                scan(bytes(broken), "j", may_be_torn=True)
        else:
            found = scan(bytes(broken), "j", may_be_torn=True)
            assert len(found.payloads) == len(records) - 1
        with pytest.raises(JournalDamaged):
            scan(bytes(broken), "j", may_be_torn=False)


def test_parts_of_a_lost_batch_in_any_order_are_a_torn_end() -> None:
    first, second = (frame(b"x" * 40, len(MAGIC)) for _ in range(2))
    lost = MAGIC + bytes(len(first)) + second
    assert scan(lost, "j", may_be_torn=True) == scan(MAGIC, "j", may_be_torn=True)


@settings(max_examples=8)
@given(st.lists(RECORDS, min_size=1, max_size=6))
def test_after_a_crash_everything_that_was_told_is_there(records: list[JournalRecord]) -> None:
    with TemporaryDirectory() as name:
        folder, copy = Path(name) / "cells", Path(name) / "copy"
        journal = Journal(folder)
        told: list[JournalRecord] = []
        for record in records:
            appended(journal, [record])
            told.append(record)
            shutil.copytree(folder, copy)  # the disk, as a crash leaves it
            assert recover(copy)[0] == folded(told)
            shutil.rmtree(copy)
        journal.close()


def test_many_appends_share_a_sync_and_are_told_in_order(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    told: list[int] = []
    last = threading.Event()
    for number in range(200):
        cell = Cell(number, b"v" * 50)
        journal.append(JournalRecord(cells=((KEYS[number % 4], cell),)), lambda number=number: told.append(number))
    journal.append(JournalRecord(epoch=7), last.set)
    assert last.wait(30)
    journal.close()
    assert told == list(range(200))
    image = recover(tmp_path)[0]
    assert image.epoch == 7
    assert [image.cells[key].timestamp for key in KEYS] == [196, 197, 198, 199]


def test_compaction_keeps_everything_and_lets_old_files_go(tmp_path: Path) -> None:
    journal = Journal(tmp_path, compact_bytes=4_000)
    records = [JournalRecord(epoch=n, cells=((KEYS[n % 4], Cell(n, b"v" * 100)),)) for n in range(1, 200)]
    appended(journal, records)
    journal.close()
    assert list(tmp_path.glob(f"*{IMAGE}")), "it was compacted"
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 12_000
    assert recover(tmp_path)[0] == folded(records)
    again = Journal(tmp_path, compact_bytes=4_000)
    assert again.image == folded(records)
    appended(again, [JournalRecord(epoch=500)])
    again.close()
    assert recover(tmp_path)[0].epoch == 500


def test_a_crash_at_every_step_of_a_compaction(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "cells")
    records = [JournalRecord(epoch=3, cells=((KEYS[0], Cell(1, b"a")),)), JournalRecord(dropped=(KEYS[1],))]
    appended(journal, records)
    journal.close()
    image = folded(records)

    def crashed(name: str) -> Path:
        return Path(shutil.copytree(tmp_path / "cells", tmp_path / name))

    half = crashed("half an image under its first name")
    (half / "cells-00000001.new").write_bytes(MAGIC + b"\xd7")
    begun = crashed("the next journal begun, no image")
    (begun / f"cells-00000002{JOURNAL}").write_bytes(MAGIC)
    torn = crashed("the next journal half begun")
    (torn / f"cells-00000002{JOURNAL}").write_bytes(MAGIC[:3])
    covered = crashed("the image there, what it covers too")
    kept = (covered / f"cells-00000001{JOURNAL}").read_bytes()
    write_image(covered, image, 1)
    (covered / f"cells-00000001{JOURNAL}").write_bytes(kept)
    for folder in (half, begun, torn, covered):
        assert recover(folder)[0] == image, folder.name
        assert recover(folder)[0] == image, "and again"


def test_what_is_missing_or_damaged_is_told(tmp_path: Path) -> None:
    journal = Journal(tmp_path, compact_bytes=500)
    appended(journal, [JournalRecord(epoch=n, cells=((KEYS[0], Cell(n, b"v" * 100)),)) for n in range(1, 30)])
    journal.close()
    (image,) = tmp_path.glob(f"*{IMAGE}")
    damaged = bytearray(image.read_bytes())
    damaged[-1] ^= 1
    whole = image.read_bytes()
    image.write_bytes(damaged)
    with pytest.raises(JournalDamaged, match=r"image is damaged"):
        recover(tmp_path)
    image.write_bytes(whole[:-40])
    with pytest.raises(JournalDamaged):
        recover(tmp_path)
    image.unlink()
    with pytest.raises(JournalDamaged, match="missing"):
        recover(tmp_path)
    unknown = tmp_path / "other"
    unknown.mkdir()
    (unknown / f"cells-00000001{JOURNAL}").write_bytes(MAGIC + frame(b"no record", 0))
    with pytest.raises(JournalDamaged, match="no record of this release"):
        recover(unknown)
    (unknown / f"cells-00000001{JOURNAL}").write_bytes(b"something else altogether")
    with pytest.raises(JournalDamaged, match="does not begin"):
        recover(unknown)


def test_an_error_of_the_disk_ends_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path)
    told: list[str] = []

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ringlog.node.journal.os.fdatasync", full)
    journal.append(JournalRecord(epoch=1), lambda: told.append("told"))
    journal.close()
    assert isinstance(journal.failure, OSError)
    assert told == []

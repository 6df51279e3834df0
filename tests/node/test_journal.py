"""The journal: acknowledged records survive a crash at any byte; damage is reported, never truncated."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlog.node.registers.frames import HEAD_BYTES, JournalDamaged, Sealer, scan
from ringlog.node.registers.image import Image, ImageBuilder, fold, records_of
from ringlog.node.registers.journal import COMPACT_BYTES, IMAGE, JOURNAL, Journal, Pause, recover, write_image
from ringlog.node.registers.packed import encode_record
from ringlog.wire.data import JournalRecord, Key, RegisterCell, StreamMark, key_of

KEYS = [Key("ks", token, b"k%d" % token) for token in range(4)]
CELLS = st.builds(RegisterCell, st.integers(0, 5), st.binary(max_size=8), st.booleans())
OPERATIONS = st.sampled_from(["op1", "op2"])
MARKS = st.builds(StreamMark, OPERATIONS, st.just("n1"), st.just("simple:3"), st.sampled_from(KEYS))
SPANS = st.tuples(st.sampled_from(["ks", "other"]), st.integers(0, 2), st.integers(2, 4))
RECORDS = st.builds(
    JournalRecord,
    epoch=st.integers(0, 9),
    start=st.integers(0, 3),
    dropped=st.lists(st.sampled_from(KEYS), max_size=2).map(tuple),
    cells=st.lists(st.tuples(st.sampled_from(KEYS), CELLS), max_size=3).map(tuple),
    marks=st.lists(MARKS, max_size=1).map(tuple),
    ended=st.lists(OPERATIONS, max_size=1).map(tuple),
    gone=st.lists(SPANS, max_size=2).map(tuple),
)


def folded(records: list[JournalRecord]) -> Image:
    image = Image()
    for record in records:
        image = fold(image, record)
    return image


def plain(records: list[JournalRecord]) -> dict[Key, RegisterCell]:
    """Compute the cells without the code under test."""
    held: dict[Key, RegisterCell] = {}
    for record in records:
        for key in record.dropped:
            held.pop(key, None)
        for keyspace, first, last in record.gone:
            held = {key: held[key] for key in held if key.keyspace != keyspace or not first <= key.token <= last}
        for key, cell in record.cells:
            have = held.get(key)
            if have is None or (cell.timestamp, cell.deleted, cell.value) > (have.timestamp, have.deleted, have.value):
                held[key] = cell
    return held


class Kept:
    """A journal, and the fold of its durable records."""

    def __init__(self, folder: Path, compact_bytes: int = COMPACT_BYTES) -> None:
        self.journal = Journal(folder, lambda: self.image, compact_bytes)
        self.image = self.journal.found()
        self.told: list[int] = []

    def append(self, record: JournalRecord) -> threading.Event:
        """Append a record and return an event that is set when it is durable."""
        done = threading.Event()

        def on_disk() -> None:
            self.image = fold(self.image, record)
            self.told.append(record.start)
            done.set()

        self.journal.append(record, on_disk)
        return done

    def close(self) -> None:
        self.journal.close()


def appended(kept: Kept, records: list[JournalRecord]) -> None:
    """Append each record after the previous one is durable."""
    for record in records:
        assert kept.append(record).wait(60), kept.journal.failure


SEALER = Sealer(bytes(16))
EMPTY = SEALER.head()


def batches(records: list[JournalRecord], sizes: list[int]) -> tuple[bytes, list[int]]:
    """Return a journal's bytes as written by group commits, and the end of each group."""
    data, ends, rest = EMPTY, [HEAD_BYTES], list(records)
    for size in [*sizes, len(records)]:
        synced = len(data)
        some, rest = rest[:size], rest[size:]
        for record in some:
            data += SEALER.frame(encode_record(record), synced, len(data))
        ends.append(len(data))
    return data, ends


@settings(max_examples=15)
@given(st.lists(RECORDS, max_size=5))
def test_the_image_is_the_fold_of_the_records(records: list[JournalRecord]) -> None:
    image = folded(records)
    assert dict(image.cells) == plain(records)
    again = ImageBuilder(Image())
    for record in records_of(image):
        again.add(record)
    assert again.image() == image


@settings(max_examples=12)
@given(st.lists(RECORDS, min_size=1, max_size=6), st.lists(st.integers(1, 3), max_size=3))
def test_a_crash_at_every_byte_keeps_synced_records(records: list[JournalRecord], sizes: list[int]) -> None:
    data, ends = batches(records, sizes)
    whole = [encode_record(record) for record in records]
    for cut in range(HEAD_BYTES, len(data) + 1):
        found = scan(data[:cut], "j", may_be_torn=True)
        assert list(found.payloads) == whole[: len(found.payloads)], "the result is a prefix of the records"
        assert found.end <= cut
        assert not any(found.end < end <= cut for end in ends if end > HEAD_BYTES), "synced records are present"


@settings(max_examples=12)
@given(st.lists(RECORDS, min_size=2, max_size=5), st.data())
def test_a_changed_byte_is_damage_unless_in_the_last_group(records: list[JournalRecord], data: st.DataObject) -> None:
    written, ends = batches(records, [1] * len(records))
    for place in range(HEAD_BYTES, len(written)):
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


def test_fragments_of_a_lost_batch_are_a_torn_end() -> None:
    first = SEALER.frame(b"x" * 40, HEAD_BYTES, HEAD_BYTES)
    second = SEALER.frame(b"x" * 40, HEAD_BYTES, HEAD_BYTES + len(first))
    lost = EMPTY + bytes(len(first)) + second
    assert scan(lost, "j", may_be_torn=True) == scan(EMPTY, "j", may_be_torn=True)


def test_a_frame_belongs_to_its_file_and_to_its_place() -> None:
    data = EMPTY + SEALER.frame(b"x" * 40, 7, HEAD_BYTES)
    assert SEALER.proof(data, HEAD_BYTES) == 7
    assert Sealer.new().proof(data, HEAD_BYTES) is None
    assert SEALER.proof(b"-" + data, HEAD_BYTES + 1) is None
    assert Sealer.new().head() != Sealer.new().head()


def test_a_file_without_its_head_is_damage() -> None:
    whole = SEALER.head(born=HEAD_BYTES) + b"torn"
    assert scan(whole, "j", may_be_torn=True).end == HEAD_BYTES
    for place in range(HEAD_BYTES):
        broken = bytearray(whole)
        broken[place] ^= 1
        with pytest.raises(JournalDamaged, match="has no header"):
            scan(bytes(broken), "j", may_be_torn=True)


def test_content_synced_before_the_rename_is_never_a_torn_end() -> None:
    one = SEALER.frame(b"x" * 40, 0, HEAD_BYTES)
    born = SEALER.head(born=HEAD_BYTES + len(one))
    assert scan(born + one, "j", may_be_torn=True).payloads == (b"x" * 40,)
    for cut in range(len(one)):
        with pytest.raises(JournalDamaged):
            scan(born + one[:cut], "j", may_be_torn=True)


def put(journal: Kept, name: bytes, value: bytes) -> None:
    appended(journal, [JournalRecord(cells=((key_of("ks", name), RegisterCell(1, value)),))])


@pytest.mark.parametrize("what", ["journal", "own journal", "sprayed", "random"])
def test_a_torn_write_of_any_value_is_a_torn_end(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "cells"
    journal = Kept(folder)
    for number in range(60):
        put(journal, b"k%d" % number, b"y" * 1_000)
    path = folder / f"cells-00000001{JOURNAL}"
    if what == "own journal":
        value = path.read_bytes()
    elif what == "journal":
        other = Kept(tmp_path / "other")
        for number in range(300):
            put(other, b"k%d" % number, b"y" * 1_000)
        other.close()
        value = (tmp_path / "other" / f"cells-00000001{JOURNAL}").read_bytes()
    elif what == "sprayed":  # Frames that claim another synced position, made without the key of the file.
        value = b"".join(SEALER.frame(b"", synced, 0) for synced in range(0, 2**24, 2**11))
    else:
        value = os.urandom(300_000)
    put(journal, b"blob", value)
    journal.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])  # The last write was cut, so no client got its acknowledgement.
    image = recover(folder)[0]
    assert len(image.cells) == 60
    broken = bytearray(whole)
    broken[HEAD_BYTES + 500] ^= 1
    path.write_bytes(broken)
    with pytest.raises(JournalDamaged, match="is damaged at byte"):
        recover(folder)


def test_the_last_journal_is_synced_before_its_content_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Kept(tmp_path)
    put(journal, b"k", b"acknowledged")

    def failing(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("ringlog.node.registers.journal.os.fdatasync", failing)
    journal.append(JournalRecord(cells=((key_of("ks", b"never"), RegisterCell(1, b"told")),)))
    journal.close()
    monkeypatch.undo()
    path = tmp_path / f"cells-00000001{JOURNAL}"
    left = path.stat().st_ino  # Its content may be only in memory, and a sync would report success anyway.
    synced: list[int] = []
    sync = os.fsync

    def watched(file: int) -> None:
        sync(file)
        synced.append(os.fstat(file).st_ino)

    monkeypatch.setattr("ringlog.node.registers.journal.os.fsync", watched)
    image = recover(tmp_path)[0]
    fresh = path.stat().st_ino
    assert fresh != left
    assert synced == [fresh, tmp_path.stat().st_ino]
    assert image.cells[key_of("ks", b"k")] == RegisterCell(1, b"acknowledged")


def test_a_failed_rewrite_leaves_the_journal_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Kept(tmp_path)
    put(journal, b"k", b"acknowledged")
    journal.close()
    before = (tmp_path / f"cells-00000001{JOURNAL}").read_bytes()

    def failing(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ringlog.node.registers.journal.os.fsync", failing)
    with pytest.raises(OSError, match="No space left"):
        Kept(tmp_path)
    monkeypatch.undo()
    assert (tmp_path / f"cells-00000001{JOURNAL}").read_bytes() == before
    assert len(recover(tmp_path)[0].cells) == 1


@settings(max_examples=8)
@given(st.lists(RECORDS, min_size=1, max_size=6))
def test_a_crash_keeps_all_acknowledged_records(records: list[JournalRecord]) -> None:
    with TemporaryDirectory() as name:
        folder, copy = Path(name) / "cells", Path(name) / "copy"
        journal = Kept(folder)
        told: list[JournalRecord] = []
        for record in records:
            appended(journal, [record])
            told.append(record)
            shutil.copytree(folder, copy)  # Copy the disk as a crash leaves it.
            assert recover(copy)[0] == folded(told)
            shutil.rmtree(copy)
        journal.close()


def test_appends_share_a_sync_and_are_acknowledged_in_order(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    for number in range(1, 201):
        kept.append(JournalRecord(start=number, cells=((KEYS[number % 4], RegisterCell(number, b"v" * 50)),)))
    assert kept.append(JournalRecord(epoch=7)).wait(60)
    kept.close()
    assert kept.told == [*range(1, 201), 0]
    image = recover(tmp_path)[0]
    assert image == kept.image
    assert image.epoch == 7
    assert [image.cells[key].timestamp for key in KEYS] == [200, 197, 198, 199]


def test_compaction_keeps_all_cells_and_removes_old_files(tmp_path: Path) -> None:
    journal = Kept(tmp_path, compact_bytes=4_000)
    records = [JournalRecord(epoch=n, cells=((KEYS[n % 4], RegisterCell(n, b"v" * 100)),)) for n in range(1, 200)]
    appended(journal, records)
    journal.close()
    assert list(tmp_path.glob(f"*{IMAGE}")), "the journal was compacted"
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 12_000
    assert recover(tmp_path)[0] == folded(records)
    again = Kept(tmp_path, compact_bytes=4_000)
    assert again.image == folded(records)
    appended(again, [JournalRecord(epoch=500)])
    again.close()
    assert recover(tmp_path)[0].epoch == 500


def test_image_bytes_are_a_small_multiple_of_appended_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def noted(folder: Path, image: Image, covered: int, pause: Pause) -> int:
        sizes.append(write_image(folder, image, covered, pause))
        return sizes[-1]

    monkeypatch.setattr("ringlog.node.registers.journal.write_image", noted)
    kept = Kept(tmp_path, compact_bytes=1_000)
    records = [JournalRecord(cells=((key_of("ks", b"k%d" % n), RegisterCell(n, b"v" * 100)),)) for n in range(600)]
    appended(kept, records)
    kept.close()
    assert len(sizes) > 2
    assert sum(sizes) < 4 * sum(len(encode_record(record)) for record in records)
    assert len(recover(tmp_path)[0].cells) == 600


def test_a_crash_at_every_step_of_a_compaction(tmp_path: Path) -> None:
    journal = Kept(tmp_path / "cells")
    records = [JournalRecord(epoch=3, cells=((KEYS[0], RegisterCell(1, b"a")),)), JournalRecord(dropped=(KEYS[1],))]
    appended(journal, records)
    journal.close()
    image = folded(records)

    def crashed(name: str) -> Path:
        return Path(shutil.copytree(tmp_path / "cells", tmp_path / name))

    half = crashed("half an image under its first name")
    (half / "cells-00000001.new").write_bytes(EMPTY + b"\xd7")
    begun = crashed("the next journal begun, no image")
    (begun / f"cells-00000002{JOURNAL}").write_bytes(EMPTY)
    torn = crashed("the next journal half begun")
    (torn / "cells-00000002.new").write_bytes(EMPTY[:3])
    covered = crashed("the image there, what it covers too")
    kept = (covered / f"cells-00000001{JOURNAL}").read_bytes()
    write_image(covered, image, 1)
    (covered / f"cells-00000001{JOURNAL}").write_bytes(kept)
    for folder in (half, begun, torn, covered):
        assert recover(folder)[0] == image, folder.name
        assert recover(folder)[0] == image, "recovery repeats with the same result"


def test_missing_or_damaged_files_are_reported(tmp_path: Path) -> None:
    journal = Kept(tmp_path, compact_bytes=500)
    appended(journal, [JournalRecord(epoch=n, cells=((KEYS[0], RegisterCell(n, b"v" * 100)),)) for n in range(1, 30)])
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
    no_record = EMPTY + SEALER.frame(b"no record", 0, HEAD_BYTES)
    (unknown / f"cells-00000001{JOURNAL}").write_bytes(no_record)
    with pytest.raises(JournalDamaged, match="a record that this release cannot read"):
        recover(unknown)
    (unknown / f"cells-00000001{JOURNAL}").write_bytes(b"something else altogether")
    with pytest.raises(JournalDamaged, match="has no header"):
        recover(unknown)
    (unknown / f"cells-00000001{JOURNAL}").write_bytes(EMPTY)
    (unknown / f"cells-00000002{JOURNAL}").write_bytes(b"")
    with pytest.raises(JournalDamaged, match="has no header"):
        recover(unknown)


def test_a_disk_error_stops_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept(tmp_path)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ringlog.node.registers.journal.os.fdatasync", full)
    kept.append(JournalRecord(epoch=1))
    kept.close()
    assert isinstance(kept.journal.failure, OSError)
    assert kept.told == []

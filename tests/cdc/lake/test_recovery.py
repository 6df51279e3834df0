"""Recovery of a lost checkpoint: the new plan parts omit exactly the output that exists already."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlog.kernel.rows.log_rows import UPDATE
from ringlog.wire.records import DeadLetter, dead_letter_key, decode_cdc_row, encode_cdc_row, encode_dead_letter
from ringlog_cdc.bulk.outgoing_columns import LETTER, OUT
from ringlog_cdc.bulk.tally import Tally, TallyParam
from ringlog_cdc.definition.reasons import KNOWN, NUMBERS, ROUTED
from ringlog_cdc.driver.recovery import FILE, FOLDER, Index, without
from ringlog_cdc.errors import ChainBroken
from ringlog_cdc.plan.plan import OffsetRange
from ringlog_cdc.plan.recovered_rows import LETTERS, KnownRows, known_of
from ringlog_cdc.stored_files import encode_file
from ringlog_cdc.topics.frames import chunks
from tests.cdc.lake.test_lake import row

Identity = tuple[int, int, int, int]


def output_of(outs: Iterable[tuple[bool, Identity]]) -> pa.RecordBatch:
    """Return the output for records: rows or letters, with the identity of the row or of the letter's mutation."""
    found = list(outs)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([LETTER if letter else 5 for letter, _ in found], pa.int32()),
            pa.array([dead_letter_key("c.mutations", name[0], name[1]) for _, name in found], pa.binary()),
            pa.array([_value(letter, name) for letter, name in found], pa.binary()),
        ],
        names=list(OUT),
    )


def _value(letter: bool, name: Identity) -> bytes:
    if letter:
        return encode_dead_letter(DeadLetter("unreadable", "", "c.mutations", name[0], name[1], 0, None, None, "w", 1))
    return encode_cdc_row(row(source_partition=name[0], source_offset=name[1], timestamp=name[2], batch_seq_no=name[3]))


class Counts:
    """An accumulator."""

    def __init__(self) -> None:
        self.value = Tally()

    def add(self, tally: Tally) -> None:
        TallyParam().addInPlace(self.value, tally)


def nonzero(counts: Counter[int]) -> dict[int, int]:
    return {number: count for number, count in counts.items() if count}


IDENTITIES = st.tuples(st.integers(0, 2), st.integers(0, 5), st.integers(10, 12), st.integers(0, 2))


@given(
    outs=st.lists(st.tuples(st.booleans(), IDENTITIES), max_size=30),
    rows=st.frozensets(IDENTITIES),
    lasts=st.frozensets(IDENTITIES, max_size=5),
    letters=st.frozensets(st.tuples(st.integers(0, 2), st.integers(0, 5))),
)
def test_only_existing_output_is_omitted(
    outs: list[tuple[bool, Identity]],
    rows: frozenset[Identity],
    lasts: frozenset[Identity],
    letters: frozenset[tuple[int, int]],
) -> None:
    rows |= lasts
    whole = frozenset(name[:3] for name in lasts)
    there: Any = SimpleNamespace(value=KnownRows(rows, whole, letters))
    counts = Counts()
    decided = {known[:2] for known in whole}
    left = [
        (letter, name)
        for letter, name in outs
        if name[:2] not in letters and (name[:2] not in decided if letter else not {name, name[:3]} & {*rows, *whole})
    ]
    (after,) = without(lambda batches: batches, there, counts)([output_of(outs)])
    assert after.equals(output_of(left))
    gone = Counter(letter for letter, _ in outs) - Counter(letter for letter, _ in left)
    mutations = {name[:2] for letter, name in outs if not letter and (letter, name) not in left}
    assert nonzero(counts.value.reasons) == {
        reason: count
        for reason, count in (
            (KNOWN, len(mutations) + gone[True]),
            (ROUTED, -gone[False]),
            (NUMBERS["unreadable"], -gone[True]),
        )
        if count
    }
    assert nonzero(counts.value.generations) == ({1_000: -gone[False]} if gone[False] else {})


KINDS = st.tuples(st.integers(0, 2), st.integers(1, 3), st.integers(0, 2))


@given(before=KINDS, now=KINDS, share=st.floats(0, 0.99), cut=st.integers(0, 7))
def test_a_partial_write(before: tuple[int, int, int], now: tuple[int, int, int], share: float, cut: int) -> None:
    """``before`` and ``now`` count preimages, logged rows and postimages of the first and the repeated write."""
    old = [operation for operation, count in zip((0, 2, 9), before, strict=True) for _ in range(count)]
    new = [
        operation for operation, count in zip((0, 2, 9), (now[0], before[1], now[2]), strict=True) for _ in range(count)
    ]
    there = old[: int(share * len(old))]
    known = known_of([(1, 7, 10, number, operation, False, False) for number, operation in enumerate(there)])
    made = [
        encode_cdc_row(
            row(
                source_partition=1,
                source_offset=7,
                timestamp=10,
                batch_seq_no=number,
                operation=operation,
                end_of_batch=number == len(new) - 1,
            )
        )
        for number, operation in enumerate(new)
    ]
    batches = [_rows(made[:cut]), _rows(made[cut:])]
    after = without(lambda batches: batches, SimpleNamespace(value=known), Counts())(batches)
    values = [value for batch in after for value in batch.column("value").to_pylist()]
    rows = [decode_cdc_row(value) for value in values]
    assert [one.batch_seq_no for one in rows] == [*range(len(there), len(there) + len(rows))]
    assert [one.end_of_batch for one in rows] == [False] * (len(rows) - 1) + [True]
    logged = [*there, *(one.operation for one in rows)].count(2)
    copied = rows[-1].operation == 2 and logged > before[1]
    assert logged - copied == before[1]
    if new == old:
        assert values == made[len(there) :]


def _rows(values: list[bytes]) -> pa.RecordBatch:
    columns = [pa.array([5] * len(values), pa.int32()), pa.array([b""] * len(values), pa.binary())]
    return pa.RecordBatch.from_arrays([*columns, pa.array(values, pa.binary())], names=list(OUT))


def index_of(checkpoint: Path, chunks_of: Iterable[list[tuple[Identity, bool]]]) -> Index:
    """Return an index of these entries, added in chunks."""
    index = Index(checkpoint)
    (checkpoint / FOLDER).mkdir()
    for noted in chunks_of:
        table = pa.table(
            {
                "partition": pa.array([name[0] for name, _ in noted], pa.int32()),
                "offset": pa.array([name[1] for name, _ in noted], pa.int64()),
                "timestamp": pa.array([name[2] for name, _ in noted], pa.int64()),
                "number": pa.array([name[3] for name, _ in noted], pa.int32()),
                "operation": pa.array([0 if letter else UPDATE for _, letter in noted], pa.int32()),
                "last": pa.array([not letter and name[3] == 0 for name, letter in noted], pa.bool_()),
                "letter": pa.array([letter for _, letter in noted], pa.bool_()),
                "place": pa.array([LETTERS if letter else 5 for _, letter in noted], pa.int32()),
            }
        )
        index.note(table)
    index.finish()
    return Index(checkpoint)


def test_an_index_returns_entries_within_its_bounds(tmp_path: Path) -> None:
    rows = [((0, offset, 100, 0), False) for offset in range(50)] + [((1, 7, 100, 0), False), ((1, 7, 100, 1), False)]
    index = index_of(tmp_path, [rows[:20], rows[20:], [((1, 9, 0, 0), True)]])
    assert index.is_made
    assert index.bounds == {0: 50, 1: 10}
    known = index.look((OffsetRange(0, 48, 60), OffsetRange(1, 0, 8)))
    there = frozenset({(0, 48, 100, 0), (0, 49, 100, 0), (1, 7, 100, 0), (1, 7, 100, 1)})
    lasts = {(0, 5): 49, (1, 5): 7, (1, LETTERS): 9}
    assert known == KnownRows(there, frozenset(name[:3] for name in there), frozenset(), lasts=lasts)
    assert index.look((OffsetRange(1, 8, 10),)) == KnownRows(frozenset(), frozenset(), frozenset({(1, 9)}), lasts=lasts)
    assert not index.concerns((OffsetRange(0, 50, 60), OffsetRange(1, 10, 11)))
    assert index.concerns((OffsetRange(0, 49, 60),))


def test_an_empty_index_concerns_no_part(tmp_path: Path) -> None:
    index = index_of(tmp_path, [])
    assert index.is_made
    assert not index.concerns((OffsetRange(0, 0, 10),))


def test_a_lost_index_is_detected(tmp_path: Path) -> None:
    index_of(tmp_path, [[((0, 1, 1, 0), False)]])
    for path in (tmp_path / FOLDER).iterdir():
        path.unlink()
    with pytest.raises(ChainBroken, match="is missing"):
        Index(tmp_path).look((OffsetRange(0, 0, 5),))


BOUNDS = {"bounds": {"0": 1}, "settled": {}, "lasts": [[0, 1, 0]]}


@pytest.mark.parametrize(
    "change",
    [
        *({"bounds": bound} for bound in ([], {"a": 1}, {"00": 1}, {"0": "1"}, {"0": True})),
        *({"lasts": lasts} for lasts in ([[0, 1]], [[0, 1, "0"]], [[0, 1, 0], [0, 1, 0]])),
        {"more": 1},
    ],
)
def test_invalid_bounds_are_refused(change: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(encode_file("recovery", BOUNDS))
    assert Index(tmp_path).lasts == {(0, 1): 0}
    (tmp_path / FILE).write_bytes(encode_file("recovery", BOUNDS | change))
    with pytest.raises(ChainBroken, match=FILE):
        Index(tmp_path)


def test_a_topic_is_read_in_steps_without_a_gap() -> None:
    steps = list(chunks({0: 5, 1: 0}, {0: 25, 1: 3, 2: 1}, 30))
    assert steps == [({0: 5, 1: 0, 2: 0}, {0: 15, 1: 3, 2: 1}), ({0: 15, 1: 3, 2: 1}, {0: 25, 1: 3, 2: 1})]
    assert list(chunks({0: 5}, {0: 5}, 30)) == []

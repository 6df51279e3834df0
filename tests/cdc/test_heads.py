"""Heads of CDC rows read by columns: equal to the definition, or left to it."""

from __future__ import annotations

from random import Random

import pytest

from ringlog.client.cdc.errors import UnreadableRecord
from ringlog.client.cdc.topics import CdcRecord
from ringlog.kernel.values import replace
from ringlog.wire.errors import WireError
from ringlog.wire.records import CdcRow, Cell, DeletedElements, decode_cdc_row, encode_cdc_row
from ringlog_cdc_reader.heads import NAMES_MAX, head_of, heads, known_headers
from ringlog_cdc_reader.ranges import headed, is_known
from tests.client.cdc.changes import row

NUMBERS = (0, 1, -1, 63, 64, 8_191, 8_192, 2**31 - 1, -(2**31))
LONGS = (*NUMBERS, 2**40, -(2**40), 2**63 - 1, -(2**63))


def random_row(chance: Random) -> CdcRow:
    """Return a random row."""
    return CdcRow(
        stream_id=chance.randbytes(16),
        generation=chance.choice(LONGS),
        time=chance.randbytes(16),
        batch_seq_no=chance.choice(NUMBERS),
        operation=chance.choice(NUMBERS),
        ttl=chance.choice((None, *LONGS)),
        end_of_batch=chance.random() < 0.5,
        keyspace=chance.choice(("ks", "k" * 70, "", "schlüssel")),
        table=chance.choice(("t", "other", "")),
        mutation_id=chance.choice((None, "04c29680-833b-11ee-8000-000000000001")),
        source_topic=chance.choice(("a.mutations", "b.mutations")),
        source_partition=chance.choice(NUMBERS),
        source_offset=chance.choice(LONGS),
        timestamp=chance.choice(LONGS),
        partition_key=tuple(chance.randbytes(chance.randint(0, 9)) for _ in range(chance.randint(0, 3))),
        clustering_key=(None, b"x")[: chance.randint(0, 2)],
        cells=(Cell("c", None), Cell("d", b"1"))[: chance.randint(0, 2)],
        deleted=("e",)[: chance.randint(0, 1)],
        deleted_elements=(DeletedElements("f", (b"k",)),)[: chance.randint(0, 1)],
    )


def test_a_head_matches_the_decoded_row_or_is_missing() -> None:
    chance = Random(1)
    rows = [random_row(chance) for _ in range(2_000)]
    values = [encode_cdc_row(found) for found in rows]
    found = heads(values, [7] * len(values))
    assert found == [
        None if not item.keyspace.isascii() else head_of(item, 7, value)
        for item, value in zip(rows, values, strict=True)
    ]
    assert sum(head is not None for head in found) > 1_000
    assert all(head is None or head.row(0) == item for head, item in zip(found, rows, strict=True))


def test_damaged_records_have_no_head_or_the_defined_one() -> None:
    chance = Random(2)
    good = [encode_cdc_row(random_row(chance)) for _ in range(50)]
    damaged = []
    for _ in range(3_000):
        value = bytearray(chance.choice(good))
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(len(value))
            value[at] = chance.randrange(256)
        damaged.append(bytes(value[: chance.randint(0, len(value))] if chance.random() < 0.3 else value))
    agreed = 0
    for value, head in zip(damaged, heads(damaged, [7] * len(damaged)), strict=True):
        try:
            wanted = head_of(decode_cdc_row(value), 7, value)
        except WireError:
            continue  # a reader may read the head before the damage, but not the row
        if head is not None:
            assert head == wanted
            agreed += 1
    assert agreed > 100


def test_names_beyond_the_limit_are_left_to_the_definition() -> None:
    values = [encode_cdc_row(replace(row(2), table=f"t{number}")) for number in range(NAMES_MAX + 5)]
    found = heads(values, [7] * len(values))
    assert [head is None for head in found] == [number >= NAMES_MAX for number in range(NAMES_MAX + 5)]
    records = [CdcRecord(3, number, value) for number, value in enumerate(values)]
    assert [head.table for _, _, head in headed(records) if head] == [f"t{number}" for number in range(NAMES_MAX + 5)]


def test_missing_records_keep_their_place_and_invalid_rows_are_named() -> None:
    value = encode_cdc_row(row(2))
    found = list(headed([CdcRecord(0, 4, value), CdcRecord(0, 9, None), CdcRecord(1, 2, value)]))
    assert [(partition, offset, head is None) for partition, offset, head in found] == [
        (0, 4, False),
        (0, 9, True),
        (1, 2, False),
    ]
    with pytest.raises(UnreadableRecord, match="0/7"):
        list(headed([CdcRecord(0, 7, b"")]))
    assert heads([], []) == []


def test_a_record_of_a_later_release_is_recognised() -> None:
    value = encode_cdc_row(row(2))
    assert value[:10] in known_headers()
    assert is_known(CdcRecord(0, 0, value))
    assert not is_known(CdcRecord(0, 0, value[:2] + bytes(8) + value[10:]))
    assert is_known(CdcRecord(0, 0, None))

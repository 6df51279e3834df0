"""CDC rows as Arrow batches by columns: equal to the definition for all rows."""

from __future__ import annotations

import io
import json
from collections import Counter
from random import Random
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlog.client.cdc.errors import UnreadableRecord
from ringlog.kernel.cql.types import TIME_MAX_NS, TYPES
from ringlog.kernel.cql.types import TYPES as SCALARS
from ringlog.kernel.generations.statements import is_value
from ringlog.kernel.ring.murmur3 import compose
from ringlog.kernel.values import Column, replace
from ringlog.wire.records import CdcRow, Cell, DeletedElements, encode_cdc_row
from ringlog_cdc.columnar.key_types import well_typed
from ringlog_cdc_reader import vectors
from ringlog_cdc_reader.columns import LogColumns
from ringlog_cdc_reader.heads import RowHead, head_of
from ringlog_cdc_reader.vectors import batch_of
from tests.cdc.golden_rows import FILE, content
from tests.client.cdc.changes import TABLE, row

SIZES = {"boolean": 1, "tinyint": 1, "smallint": 2, "int": 4, "float": 4, "date": 4, "uuid": 16, "timeuuid": 16}
MORE = {f"x_{kind}": kind for kind in sorted(SCALARS)} | {"s": "set<text>"}
COLUMNS = LogColumns(replace(TABLE, columns=(*TABLE.columns, *(Column(name, kind) for name, kind in MORE.items()))))


def random_value(chance: Random, kind: str) -> bytes | None:
    """Return bytes for a column: mostly a value of its type, sometimes none or an invalid value."""
    draw = chance.random()
    if draw < 0.1:
        return None
    if draw < 0.13:
        return chance.randbytes(chance.choice((0, 3, 17)))
    if kind in ("text", "ascii"):
        return chance.choice(("", "x", "some text that is longer than a word", "y" * 200)).encode()
    if kind == "text" and draw < 0.2:
        return "größe".encode()
    if kind == "boolean":
        return bytes([chance.randrange(2)])
    if kind in ("float", "double"):
        return chance.choice((b"\x40\x09\x21\xfb", b"\0\0\0\0", b"\xff\x80\0\0")) + bytes(4 * (kind == "double"))
    if kind == "varint":
        return chance.choice((b"\x01", b"\xff", b"\x7f" + chance.randbytes(9)))
    return chance.randbytes(SIZES.get(kind, 8))


def drawn(chance: Random) -> CdcRow:
    kinds = {column.name: column.type for column in COLUMNS.table.columns if "<" not in column.type}
    names = [name for name in kinds if name not in ("p", "c")]
    chosen = chance.sample(names, chance.randint(0, 6))
    cells = [Cell(name, random_value(chance, kinds[name])) for name in chosen]
    cells += [Cell("unknown", b"1")] * (chance.random() < 0.05)
    if cells and chance.random() < 0.05:
        cells.append(Cell(cells[0].column, b"again"))
    return row(
        chance.randint(-4, 9),
        key=chance.choice(((), (1,), (-5,), (1, 2))),
        ttl=chance.choice((None, 0, 60, 2**40)),
        batch_seq_no=chance.choice((0, 1, 2**31 - 1)),
        end_of_batch=chance.random() < 0.5,
        cells=tuple(cells),
        deleted=tuple(chance.sample([*names, "unknown", "p"], chance.randint(0, 2))),
        deleted_elements=(DeletedElements("m", (b"k",)),) if chance.random() < 0.03 else (),
    )


def headed(rows: list[CdcRow]) -> list[RowHead]:
    return [head_of(found, number, encode_cdc_row(found)) for number, found in enumerate(rows)]


def test_columns_by_vectors_match_the_definition() -> None:
    calls: Counter[str] = Counter()
    by_definition = COLUMNS.batch

    class Watched(LogColumns):
        def batch(self, rows: Any) -> pa.RecordBatch:
            calls["slow"] += len(rows)
            return by_definition(rows)

    watched = Watched(COLUMNS.table)
    chance, total = Random(3), 0
    for _ in range(60):
        rows = [drawn(chance) for _ in range(chance.choice((1, 2, 40)))]
        total += len(rows)
        assert batch_of(watched, headed(rows), 0).equals(by_definition(rows))
    assert 0 < calls["slow"] < total / 2


def test_every_type_is_decoded_by_vectors_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = (
        Cell("x_ascii", b"abc"),
        Cell("x_text", "größe".encode()),
        Cell("x_blob", b"\0\xff"),
        Cell("x_boolean", b"\1"),
        Cell("x_tinyint", b"\xff"),
        Cell("x_smallint", b"\x80\0"),
        Cell("x_int", b"\x7f\xff\xff\xff"),
        Cell("x_bigint", b"\x80" + bytes(7)),
        Cell("x_timestamp", (2**62).to_bytes(8, "big")),
        Cell("x_double", b"\xbf\xf0" + bytes(6)),
        Cell("x_float", b"\x3f\x80\0\0"),
        Cell("x_uuid", bytes(range(16))),
        Cell("x_date", (2**31 + 3).to_bytes(4, "big")),
        Cell("s", b"\0\0\0\1\0\0\0\1a"),
    )
    rows = [row(2, cells=cells), row(1, cells=(Cell("x_timestamp", (-(2**62)).to_bytes(8, "big", signed=True)),))]
    wanted = COLUMNS.batch(rows)
    monkeypatch.setattr(LogColumns, "batch", None)
    found = batch_of(COLUMNS, headed(rows), 0)
    assert found.equals(wanted)
    assert found.column("x_timestamp").cast(pa.int64()).to_pylist() == [2**63 - 1, -(2**63) + 1]


def test_an_invalid_text_uses_the_definition_for_all_rows() -> None:
    rows = [row(2, cells=(Cell("w", b"fine"),)), row(2, cells=(Cell("w", b"\xff"),))]
    found = batch_of(COLUMNS, headed(rows), 0)
    assert found.column("w").to_pylist() == ["fine", None]
    assert found.column("cdc$undecoded").to_pylist() == [None, [("w", b"\xff")]]


def test_a_record_damaged_after_its_head_is_named() -> None:
    head = headed([row(2, values={"v": 5})])[0]
    for value in (head.value[:-1], head.value + b"!", head.value[:-2] + b"\2\0"):
        with pytest.raises(UnreadableRecord, match="3/9"):
            batch_of(COLUMNS, [head._replace(value=value, offset=9)], 3)
    assert vectors.NUMBERS.keys() < SCALARS.keys()


# The golden rows match the code, and an independent decoder (fastavro alone) reads the documented fields.


GOLDEN = json.loads(FILE.read_text())
CASES = {case["what"]: case for case in GOLDEN["cases"]}


def test_the_golden_file_is_current() -> None:
    assert content() == GOLDEN, "generate it again: python -m tests.cdc.golden_rows"


def read(value: bytes) -> Any:
    """Decode a single object: marker, schema fingerprint (little-endian), body."""
    assert value[:2] == b"\xc3\x01"
    schema = GOLDEN["schemas"][value[2:10][::-1].hex()]
    body = io.BytesIO(value[10:])
    found = fastavro.schemaless_reader(body, fastavro.parse_schema(schema, _write_hint=False), None)
    assert body.read() == b""
    return found


def shown(value: Any) -> Any:
    """Convert bytes to hex, as in the file."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {name: shown(one) for name, one in value.items()}
    return [shown(one) for one in value] if isinstance(value, list) else value


def time_of(timeuuid: str) -> int:
    """Return the microseconds since 1970 of a version-1 UUID in hex."""
    ticks = int(timeuuid[13:16] + timeuuid[8:12] + timeuuid[:8], 16)
    return (ticks - 0x01B21DD213814000) // 10


@pytest.mark.parametrize("what", CASES)
def test_an_independent_decoder_agrees(what: str) -> None:
    case = CASES[what]
    for record in case["records"]:
        assert shown(read(bytes.fromhex(record["value"]))) == record["says"]
    rows = [record["says"] for record in case["records"] if record["topic"] == "cdc"]
    if not rows:
        (letter,) = (record["says"] for record in case["records"])
        assert letter["value"] == case["mutation"]
        return
    write = read(bytes.fromhex(case["mutation"]))
    for number, (told, record) in enumerate(zip(rows, case["records"], strict=True)):
        assert record["key"] == told["stream_id"]
        assert time_of(told["time"]) == told["timestamp"]
        assert (told["keyspace"], told["table"]) == (write["keyspace"], write["table"])
        follows = number > 0 and rows[number - 1]["timestamp"] == told["timestamp"]
        assert told["batch_seq_no"] == (rows[number - 1]["batch_seq_no"] + 1 if follows else 0)
        last = number + 1 == len(rows) or rows[number + 1]["timestamp"] != told["timestamp"]
        assert told["end_of_batch"] == last
        names = [cell["column"] for cell in told["cells"]] + told["deleted"]
        assert len({*names}) == len(names) or told["deleted"] == ["m"], "a replaced collection is in both"


def test_the_file_has_every_kind_of_row() -> None:
    rows = [record["says"] for case in CASES.values() for record in case["records"] if record["topic"] == "cdc"]
    assert {told["operation"] for told in rows} == {0, 1, 2, 3, 4, 5, 7, 9}


# Types of key components on arrays, against the kernel's reader of each type.


NAMES = (*sorted(TYPES), "frozen<list<int>>")
BYTES = st.one_of(
    st.binary(max_size=17),
    st.sampled_from([4, 8, 16]).flatmap(lambda size: st.binary(min_size=size, max_size=size)),
    st.text(max_size=4).map(str.encode),
    st.integers(-(2**70), 2**70).map(lambda n: n.to_bytes((n.bit_length() + 8) // 8, "big", signed=True)),
    st.sampled_from([b"\x00", b"\x01", b"\x02", b"\x00\x7f", b"\x00\x80", b"\xff\x80", b"\xff\x7f", b"\xed\xa0\x80"]),
    st.sampled_from([TIME_MAX_NS, TIME_MAX_NS + 1]).map(lambda n: n.to_bytes(8, "big")),
    st.just(bytes(6) + b"\x11" + bytes(9)),
)


def array_answers(types: tuple[str, ...], keys: list[tuple[bytes, ...]]) -> list[bool]:
    """Return the answers of the arrays, with other bytes around the keys."""
    composed = [compose(list(key)) for key in keys]
    ends = 3 + np.cumsum([len(key) for key in composed], dtype=np.int64)
    data = np.frombuffer(b"\xff\x00\xff" + b"".join(composed) + b"\xff" * 16, dtype=np.uint8)
    found = well_typed(types, data, ends - np.array([len(key) for key in composed], dtype=np.int64), ends)
    return found.tolist()


KEY_TYPES_SIZES = {"boolean": 1, "tinyint": 1, "smallint": 2, "int": 4, "float": 4, "date": 4, "uuid": 16}
GOOD = {
    "varint": b"\x05",
    "timeuuid": bytes(6) + b"\x11" + bytes(9),
    "frozen<list<int>>": bytes(4),
    **{name: bytes(size) for name, size in KEY_TYPES_SIZES.items()},
    **dict.fromkeys(("bigint", "double", "timestamp", "time"), bytes(8)),
}


@settings(deadline=None, max_examples=200)
@given(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map(tuple), st.data())
def test_arrays_agree_with_the_type_readers(types: tuple[str, ...], data: st.DataObject) -> None:
    keys = data.draw(st.lists(st.tuples(*(BYTES for _ in types)), min_size=1, max_size=8))
    assert array_answers(types, keys) == [all(map(is_value, types, key)) for key in keys]


@pytest.mark.parametrize("name", NAMES)
def test_every_type_but_blob_accepts_and_refuses_values(name: str) -> None:
    assert array_answers((name,), [(GOOD.get(name, b"text"),)]) == [True]
    assert array_answers((name,), [(b"\xff\xff\xff",)]) == [name == "blob"]

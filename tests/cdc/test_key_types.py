"""Types of key components on arrays: what the kernel's reader of each type says, component by component."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlog.kernel.generations.statements import TableShape
from ringlog.kernel.generations.statements import well_typed as one_by_one
from ringlog.kernel.ring.partition_key import compose
from ringlog.kernel.schema.types import TIME_MAX_NS, TYPES
from ringlog_cdc.key_types import well_typed

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


def judged(types: tuple[str, ...], keys: list[tuple[bytes, ...]]) -> list[bool]:
    """The answer of the arrays, with other bytes around the keys."""
    composed = [compose(list(key)) for key in keys]
    ends = 3 + np.cumsum([len(key) for key in composed], dtype=np.int64)
    data = np.frombuffer(b"\xff\x00\xff" + b"".join(composed) + b"\xff" * 8, dtype=np.uint8)
    found = well_typed(types, data, ends - np.array([len(key) for key in composed], dtype=np.int64), ends)
    return found.tolist()


SIZES = {"boolean": 1, "tinyint": 1, "smallint": 2, "int": 4, "float": 4, "date": 4, "uuid": 16}
GOOD = {
    "varint": b"\x05",
    "timeuuid": bytes(6) + b"\x11" + bytes(9),
    "frozen<list<int>>": bytes(4),
    **{name: bytes(size) for name, size in SIZES.items()},
    **dict.fromkeys(("bigint", "double", "timestamp", "time"), bytes(8)),
}


@settings(deadline=None, max_examples=200)
@given(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map(tuple), st.data())
def test_arrays_agree_with_the_readers_of_the_types(types: tuple[str, ...], data: st.DataObject) -> None:
    keys = data.draw(st.lists(st.tuples(*(BYTES for _ in types)), min_size=1, max_size=8))
    shape = TableShape(len(types), 0, True, types)
    assert judged(types, keys) == [one_by_one(shape, key) for key in keys]


@pytest.mark.parametrize("name", NAMES)
def test_every_type_refuses_and_takes_something_but_blob(name: str) -> None:
    assert judged((name,), [(GOOD.get(name, b"text"),)]) == [True]
    assert judged((name,), [(b"\xff\xff\xff",)]) == [name == "blob"]

"""The audit's quick reading of records: what it finds is what decoding finds, whatever the bytes."""

from __future__ import annotations

from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlog.audit.heads import CDC_TAILS, MUTATION_TAILS, RecordHead, components_at
from ringlog.audit.verify import ROW_FIELDS
from ringlog.audit.writes import HEAD_FIELDS
from ringlog.wire.codec import decode
from ringlog.wire.errors import WireError
from ringlog.wire.records import CDC_ROW, MUTATION, encode_mutation
from ringlog.wire.single_object import HEADER_BYTES
from ringlog_schemas import current
from tests.node.test_peek import mutations


def parsed(full_name: str) -> Any:
    return fastavro.parse_schema(dict(current()[full_name].json), _write_hint=False)


HEAD = RecordHead(parsed(MUTATION), MUTATION_TAILS, HEAD_FIELDS)


@given(mutations)
def test_head_and_clustering_key_are_those_of_the_decoder(mutation: Any) -> None:
    value = encode_mutation(mutation)
    fields, tail = HEAD.read(value, HEADER_BYTES)
    _, record = decode(value)
    assert dict(zip(HEAD_FIELDS, fields, strict=True)) == {name: record[name] for name in HEAD_FIELDS}
    assert components_at(value, tail)[0] == record["clustering_key"]


@given(mutations, st.data())
def test_damaged_bytes_are_never_read_as_something_else(mutation: Any, data: st.DataObject) -> None:
    value = bytearray(encode_mutation(mutation))
    value[data.draw(st.integers(HEADER_BYTES, len(value) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        _, record = decode(bytes(value))
    except WireError:
        return
    try:
        fields, _ = HEAD.read(bytes(value), HEADER_BYTES)
    except (IndexError, ValueError):
        return
    assert dict(zip(HEAD_FIELDS, fields, strict=True)) == {name: record[name] for name in HEAD_FIELDS}


def test_todays_schemas_are_read_quickly_and_others_are_left_to_the_decoder() -> None:
    assert HEAD.usable
    assert RecordHead(parsed(CDC_ROW), CDC_TAILS, ROW_FIELDS).usable
    assert not RecordHead(parsed(CDC_ROW), MUTATION_TAILS, ROW_FIELDS).usable
    assert not RecordHead(parsed(MUTATION), MUTATION_TAILS, ("no_such_field",)).usable


def test_arrays_of_several_blocks_are_left_to_the_decoder() -> None:
    one = b"\x02\x02\x02k\x00"
    assert components_at(one, 0) == ([b"k"], len(one))
    for several in (b"\x02\x00\x02\x00\x00", b"\x01\x02\x00\x00"):
        with pytest.raises(ValueError, match="array"):
            components_at(several, 0)

"""Partial decoding of a mutation never differs from the full decoder."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlog.kernel.values import replace
from ringlog.node.rows.partial_decode import plain
from ringlog.wire.errors import WireError
from ringlog.wire.records import (
    Bounds,
    Cell,
    DeletedElements,
    Mutation,
    MutationStatement,
    decode_mutation,
    encode_mutation,
)
from tests.node.world import partial_key

ids = st.none() | st.uuids().map(str)
parts = st.lists(st.none() | st.binary(max_size=200), max_size=3).map(tuple)
mutations = st.builds(
    Mutation,
    mutation_id=ids,
    cluster_id=ids,
    keyspace=st.text(max_size=70),
    table=st.text(max_size=5),
    timestamp=st.integers(-(2**63), 2**63 - 1),
    ttl=st.none() | st.integers(0, 2**40),
    operation=st.sampled_from(["INSERT", "UPDATE", "ROW_DELETE", "PARTITION_DELETE", "UNKNOWN"]),
    partition_key=parts,
    clustering_key=parts,
    cells=st.lists(st.builds(Cell, st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2).map(tuple),
)


def without_id(mutation: Mutation) -> Mutation:
    return replace(mutation, mutation_id=None)


@given(mutations)
def test_the_head_equals_the_decoded_record(mutation: Mutation) -> None:
    expected = None
    if mutation.partition_key and None not in mutation.partition_key:
        expected = (f"{mutation.keyspace}.{mutation.table}", mutation.partition_key)
    assert partial_key(encode_mutation(mutation)) == expected


@given(mutations)
def test_a_plain_write_is_read_without_its_id(mutation: Mutation) -> None:
    assert plain(encode_mutation(mutation)) == (None if mutation.ttl is not None else without_id(mutation))


PLAIN = Mutation(None, None, "shop", "orders", 7, None, "UPDATE", (b"c",), (b"1",), (Cell("note", b"x"),))


@pytest.mark.parametrize(
    "other",
    [
        replace(PLAIN, deleted_elements=(DeletedElements("tags", (b"a",)),)),
        replace(PLAIN, replaced=("tags",)),
        replace(PLAIN, operation="RANGE_DELETE", bounds=Bounds((b"1",), True, (b"2",), False)),
        replace(PLAIN, operation="RANGE_DELETE"),
        replace(PLAIN, more=(MutationStatement("UPDATE", (b"2",)),)),
        replace(PLAIN, ttl=0),
    ],
)
def test_a_write_with_more_fields_needs_the_decoder(other: Mutation) -> None:
    assert plain(encode_mutation(PLAIN)) == without_id(PLAIN)
    assert plain(encode_mutation(other)) is None


def test_a_name_of_invalid_text_needs_the_decoder() -> None:
    value = encode_mutation(PLAIN).replace(b"note", b"not\xff")
    assert plain(value) is None
    with pytest.raises(WireError):
        decode_mutation(value)


@given(mutations, st.data())
def test_damaged_bytes_return_the_decoder_result_or_none(mutation: Mutation, data: st.DataObject) -> None:
    value = bytearray(encode_mutation(mutation))
    at = data.draw(st.integers(0, len(value) - 1))
    value[at] ^= 1 << data.draw(st.integers(0, 7))
    cut = bytes(value[: data.draw(st.integers(0, len(value)))])
    for damaged in (bytes(value), cut):
        found, whole = partial_key(damaged), plain(damaged)
        try:
            decoded = decode_mutation(damaged)
        except WireError:
            assert whole is None
            continue
        assert whole in (None, without_id(decoded))
        assert found in (None, (f"{decoded.keyspace}.{decoded.table}", decoded.partition_key))

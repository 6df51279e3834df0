"""The head of a mutation without decoding it: never another answer than the decoder's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ringlog.node.peek import peek
from ringlog.wire.errors import WireError
from ringlog.wire.records import Cell, Mutation, decode_mutation, encode_mutation

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


@given(mutations)
def test_the_head_is_what_decoding_says(mutation: Mutation) -> None:
    expected = None
    if mutation.partition_key and None not in mutation.partition_key:
        expected = (f"{mutation.keyspace}.{mutation.table}", mutation.partition_key)
    assert peek(encode_mutation(mutation)) == expected


@given(mutations, st.data())
def test_damaged_bytes_give_the_decoders_answer_or_none(mutation: Mutation, data: st.DataObject) -> None:
    value = bytearray(encode_mutation(mutation))
    at = data.draw(st.integers(0, len(value) - 1))
    value[at] ^= 1 << data.draw(st.integers(0, 7))
    cut = bytes(value[: data.draw(st.integers(0, len(value)))])
    for damaged in (bytes(value), cut):
        found = peek(damaged)
        try:
            decoded = decode_mutation(damaged)
        except WireError:
            continue
        assert found in (None, (f"{decoded.keyspace}.{decoded.table}", decoded.partition_key))

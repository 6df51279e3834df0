"""For each record of the catalogue, avro and fastavro agree, and invalid bytes raise only ``WireError``."""

from io import BytesIO

import pytest
from avro.io import BinaryDecoder, BinaryEncoder, DatumReader, DatumWriter
from avro.schema import make_avsc_object
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlog.kernel.model.outcome import Undecodable
from ringlog.kernel.registry import COMMANDS, VERSIONS
from ringlog.wire.avro.codec import decode, encode, layout
from ringlog.wire.commands import decode_command
from ringlog.wire.commands import mapper as command_mapper
from ringlog.wire.entries import decode_entry
from ringlog.wire.errors import WireError
from ringlog.wire.records import RECORDS
from ringlog.wire.records import mapper as record_mapper
from ringlog_schemas import catalog
from tests.wire.strategies import records

NAMES = sorted(catalog())
MAPPED = [f"ringlog.commands.{kind}" for kind in sorted(COMMANDS)] + sorted(RECORDS)
AVRO = {name: make_avsc_object(dict(catalog()[name])) for name in NAMES}


def avro_encode(name, record):
    out = BytesIO()
    DatumWriter(AVRO[name]).write(record, BinaryEncoder(out))
    return out.getvalue()


def avro_decode(name, body):
    return DatumReader(AVRO[name]).read(BinaryDecoder(BytesIO(body)))


def blocks(count):
    """Encode an Avro number."""
    number = (count << 1) ^ (count >> 63)
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_avro_and_fastavro_write_and_read_the_same(name, data):
    record = data.draw(records(name))
    body = layout(name).encode(record)
    assert body == avro_encode(name, record)
    assert layout(name).decode(body, canonical=True) == avro_decode(name, body) == record
    layout(name).check(body)
    assert decode(encode(name, record)) == (name, record)


@pytest.mark.parametrize("name", MAPPED)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_record_values_round_trip(name, data):
    record = data.draw(records(name))
    mapper = command_mapper(name.rsplit(".", 1)[1]) if name not in RECORDS else record_mapper(name)
    value = mapper.from_record(record)
    assert mapper.write(value) == layout(name).encode(record)
    assert hash(value) == hash(mapper.from_record(record))
    assert mapper.read(layout(name).encode(record)) == value


@pytest.mark.parametrize("name", MAPPED)
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_only_canonical_bodies_are_decoded(name, data):
    """The direct reader returns the same value as the reader that builds a dictionary first."""
    mapper = command_mapper(name.rsplit(".", 1)[1]) if name not in RECORDS else record_mapper(name)
    body = mangled(data, layout(name).encode(data.draw(records(name))))
    by_schema = outcome(lambda: layout(name).decode(body, canonical=True))
    assert mapper.read(body) == (None if isinstance(by_schema, WireError) else mapper.from_record(by_schema))


def outcome(read):
    """Return the decoded value or the error. Any other exception fails the test."""
    try:
        return read()
    except WireError as error:
        return error


def mangled(data, body):
    """Return the body with one random change."""
    how = data.draw(st.sampled_from(["cut", "flip", "splice", "append"]))
    at = data.draw(st.integers(0, max(0, len(body) - 1)))
    if how == "cut" or not body:
        return body[:at]
    if how == "flip":
        return body[:at] + bytes([body[at] ^ 1 << data.draw(st.integers(0, 7))]) + body[at + 1 :]
    if how == "splice":
        number = data.draw(st.sampled_from([-1, -(2**63), 2**40, 2**62, 2**63 - 1, 2**31, -(2**40)]))
        return body[:at] + blocks(number) + body[at + 1 :]
    return body + data.draw(st.binary(min_size=1, max_size=8))


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_invalid_bytes_raise_only_wire_errors(name, data):
    """A value decoded from damaged bytes equals that of the Avro reference reader."""
    wire = encode(name, data.draw(records(name)))
    body = mangled(data, wire[10:]) if data.draw(st.booleans()) else data.draw(st.binary(max_size=80))
    found = outcome(lambda: decode(wire[:10] + body, name)[1])
    canonical = outcome(lambda: layout(name).decode(body, canonical=True))
    if isinstance(found, WireError):
        assert found.code
        assert found.field
        assert found.rule
        assert isinstance(canonical, WireError)
    else:
        assert found == avro_decode(name, body)
        assert (canonical == found) is (layout(name).encode(found) == body)


@given(st.binary(max_size=120))
@settings(max_examples=300, deadline=None)
def test_random_bytes_are_not_a_single_object(data):
    with pytest.raises(WireError):
        decode(data)


@pytest.mark.parametrize("kind", sorted(COMMANDS))
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_a_payload_is_read_or_undecodable(kind, data):
    payload = layout(f"ringlog.commands.{kind}").encode(data.draw(records(f"ringlog.commands.{kind}")))
    assert isinstance(decode_command(kind, VERSIONS[kind], payload), COMMANDS[kind])
    damaged = mangled(data, payload)
    found = decode_command(kind, VERSIONS[kind], damaged)
    if isinstance(found, Undecodable):
        assert found.detail
    else:
        assert command_mapper(kind).write(found) == damaged


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_an_entry_is_read_or_unreadable(data):
    wire = encode("ringlog.log.LogEntry", data.draw(records("ringlog.log.LogEntry")))
    assert decode_entry(wire).cluster_id
    decode_entry(mangled(data, wire))
    decode_entry(data.draw(st.binary(max_size=60)))


# Encodings other than the canonical one

MUTATION = "ringlog.mutations.Mutation"
HEAD = b"\x00\x00" + b"\x02k" + b"\x02t" + b"\x02" + b"\x00" + b"\x00"
"""No ids, keyspace k, table t, timestamp 1, no ttl, INSERT."""

CELL = b"\x02c\x02\x02v"
NOTHING_MORE = bytes(7)
"""No deleted elements, replaced collections, bounds or further statements."""


def mutation(cells, keys=b"\x00\x00"):
    return HEAD + keys + cells + NOTHING_MORE


@pytest.mark.parametrize(
    "cells",
    [
        b"\x02" + CELL + b"\x02" + CELL + b"\x00",
        b"\x03" + blocks(2 * len(CELL)) + CELL + CELL + b"\x00",
        b"\x04" + CELL + CELL + b"\x80\x00",
        b"\x84\x80\x00" + CELL + CELL + b"\x00",
    ],
    ids=["two-blocks", "block-with-size", "long-zero", "long-count"],
)
def test_other_libraries_encodings_of_records_are_read(cells):
    whole = layout(MUTATION).decode(mutation(b"\x04" + CELL + CELL + b"\x00"), canonical=True)
    assert layout(MUTATION).decode(mutation(cells), canonical=False) == whole
    with pytest.raises(WireError, match="not_canonical"):
        layout(MUTATION).decode(mutation(cells), canonical=True)


@pytest.mark.parametrize(
    "body",
    [
        mutation(blocks(2**40) + CELL),
        mutation(blocks(-(2**63)) + CELL + b"\x00"),
        mutation(b"\x01" + blocks(2**62) + CELL + b"\x00"),
        mutation(b"\x01\x02" + CELL + b"\x00"),
        mutation(b"\x02\x02c\x02" + blocks(2**62) + b"v\x00"),
        mutation(b"\x02\x02c\x02" + blocks(-1) + b"v\x00"),
        mutation(b"\x02\x02c\x01\x02v\x00"),
        mutation(b"\x02\x02\xff\x02\x02v\x00"),
        mutation(b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00"),
        mutation(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f"),
        HEAD[:-1] + b"\x0a" + b"\x00\x00\x00",
        HEAD[:-1] + b"\x01" + b"\x00\x00\x00",
        mutation(b"\x00") + b"\x00",
        b"",
    ],
)
def test_bombs_and_invalid_bodies_are_rejected(body):
    with pytest.raises(WireError):
        layout(MUTATION).decode(body, canonical=False)


@pytest.mark.parametrize("number", [2**31, -(2**31) - 1])
def test_an_int_has_32_bits(number):
    name = "ringlog.requests.Request"
    record = {"request_id": bytes(16), "since_epoch": 1, "submitter": "s", "kind": "Noop", "version": 1, "payload": b""}
    record["answer_applied"] = False
    body = layout(name).encode(record)
    with pytest.raises(WireError, match="32 bits"):
        layout(name).encode({**record, "version": number})
    at = len(body) - 3
    with pytest.raises(WireError, match="32 bits"):
        layout(name).decode(body[:at] + blocks(number) + body[at + 1 :], canonical=False)

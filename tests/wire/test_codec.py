"""Single objects: the fingerprint in the header selects the schema of the reader."""

from __future__ import annotations

import copy
import io
import json
import pickle

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlog.kernel.changes import EPOCHS, HEAD, ChangeRecord, EpochChange
from ringlog.wire.avro.binary import RecordCodec
from ringlog.wire.avro.codec import decode, encode, header, layout, learn, split
from ringlog.wire.changes import CHANGES, decode_change, encode_change, encode_change_record, mapper
from ringlog.wire.errors import WireError
from ringlog.wire.records import (
    CdcRow,
    Cell,
    DeadLetter,
    Mutation,
    Result,
    decode_cdc_row,
    decode_dead_letter,
    decode_mutation,
    decode_result,
    encode_cdc_row,
    encode_dead_letter,
    encode_mutation,
    encode_request,
    encode_result,
)
from ringlog.wire.requests import decode_request, decode_requests
from ringlog_schemas import catalog, current, fingerprint_of
from tests.wire.strategies import records

UUID = "0190a5dc-ac96-774b-bcce-b302099a8057"
MUTATION = Mutation(
    UUID, None, "flights", "by_plane", 17, None, "INSERT", (b"N1",), (b"a", None), (Cell("x", b"1"), Cell("y", None))
)
ROW = CdcRow(
    bytes(16), 5, bytes(range(16)), 0, 2, 60, True, "ks", "t", None, "c.mutations", 3, 99, 17, (b"N1",), (), (), ("z",)
)
LETTER = DeadLetter("null_partition_key", "no key", "c.mutations", 3, 99, 17, None, b"\xff", "w1", 12)
RESULT = Result(UUID, "ab", "rejected", 4, "bad_field", "name: too long", 2, "v1", 3)


@pytest.mark.parametrize(
    ("write", "read", "value"),
    [
        (encode_mutation, decode_mutation, MUTATION),
        (encode_cdc_row, decode_cdc_row, ROW),
        (encode_dead_letter, decode_dead_letter, LETTER),
        (encode_result, decode_result, RESULT),
    ],
)
def test_values_round_trip(write, read, value):
    assert read(write(value)) == value


def test_the_header_is_marker_and_little_endian_fingerprint():
    data = encode_mutation(MUTATION)
    fingerprint = current()["ringlog.mutations.Mutation"].fingerprint
    assert data[:10] == b"\xc3\x01" + fingerprint.to_bytes(8, "little") == header(fingerprint)
    assert split(data) == (fingerprint, data[10:])


def test_another_record_is_refused_by_name():
    with pytest.raises(WireError, match=r"wrong_record: ringlog\.mutations\.Mutation"):
        decode_request(encode_mutation(MUTATION))


def test_an_unknown_fingerprint_is_named():
    with pytest.raises(WireError, match="unknown_fingerprint: 00000000deadbeef"):
        decode(header(0xDEADBEEF) + b"\x00")


def test_an_unknown_record_is_named():
    with pytest.raises(WireError, match=r"unknown_record: ringlog\.x\.Y"):
        encode("ringlog.x.Y", {})


@pytest.mark.parametrize(
    "value",
    [
        Mutation("no uuid", None, "k", "t", 1, None, "INSERT", (), (), ()),
        Mutation(UUID.upper(), None, "k", "t", 1, None, "INSERT", (), (), ()),
        Mutation(None, None, "k", "t", 1, None, "UPSERT", (), (), ()),
        Mutation(None, None, "k", "t", 2**63, None, "INSERT", (), (), ()),
        Mutation(None, None, "k\ud800", "t", 1, None, "INSERT", (), (), ()),
        Mutation(None, None, "k", "t", 1, None, "INSERT", ("text",), (), ()),
        Mutation(None, None, "k", "t", "1", None, "INSERT", (), (), ()),
        Mutation(None, None, "k", "t", 1, None, "INSERT", None, (), ()),
    ],
)
def test_invalid_values_are_not_encoded(value):
    with pytest.raises(WireError):
        encode_mutation(value)


@pytest.mark.parametrize("record", [{}, {"role": "r"}, {"more": 1}])
def test_missing_and_unknown_fields_are_refused(record):
    with pytest.raises(WireError, match="not_encodable"):
        encode("ringlog.agents.AgentStatus", record)


def later_mutation():
    """Return a hypothetical later version with one symbol and one field more, and one default field less."""
    schema = copy.deepcopy(dict(catalog()["ringlog.mutations.Mutation"]))
    schema["fields"] = [field for field in schema["fields"] if field["name"] != "ttl"]
    schema["fields"].append({"name": "verdict", "type": "string", "default": "", "doc": "Accepted by."})
    next(f for f in schema["fields"] if f["name"] == "operation")["type"]["symbols"].append("LATER")
    return schema


def test_a_later_record_is_read_with_its_schema():
    schema = later_mutation()
    record = {
        "mutation_id": None,
        "cluster_id": None,
        "keyspace": "k",
        "table": "t",
        "timestamp": 1,
        "operation": "LATER",
        "partition_key": [b"x"],
        "clustering_key": [],
        "cells": [],
        "deleted_elements": [],
        "replaced": [],
        "bounds": None,
        "more": [],
        "epoch": None,
        "table_id": None,
        "table_version": None,
        "verdict": "n1",
    }
    data = header(fingerprint_of(schema)) + RecordCodec(schema).encode(record)
    with pytest.raises(WireError, match="unknown_fingerprint"):
        decode_mutation(data)
    assert learn(json.dumps(schema)) == fingerprint_of(schema)
    assert decode_mutation(data) == Mutation(None, None, "k", "t", 1, None, "UNKNOWN", (b"x",), (), ())
    with pytest.raises(WireError, match="trailing_bytes"):
        decode_mutation(data + b"\x00")


@pytest.mark.parametrize("text", ["", "[]", "1", '"string"', "{}", '{"type": "record", "name": "X"}'])
def test_invalid_schemas_are_not_learned(text):
    with pytest.raises(WireError, match="bad_schema"):
        learn(text)


def test_learning_a_known_schema_changes_nothing():
    known = catalog()["ringlog.requests.Request"]
    learn(json.dumps(dict(known)))
    assert layout("ringlog.requests.Request").schema == known


@pytest.mark.parametrize("asked", [{}, {"answer_applied": False}, {"answer_applied": True}])
def test_a_request_of_another_language_asks_for_a_result_only_if_it_says_so(asked):
    known, out = dict(catalog()["ringlog.requests.Request"]), io.BytesIO()
    about = {"request_id": bytes(16), "since_epoch": 1, "submitter": "go", "kind": "Noop", "version": 1, "payload": b""}
    fastavro.schemaless_writer(out, fastavro.parse_schema(known), about | asked)
    (request,) = decode_requests(header(fingerprint_of(known)) + out.getvalue())
    assert request.answer_applied is asked.get("answer_applied", False)
    assert decode_request(encode_request(request)) == request


def test_the_error_survives_a_process_boundary():
    error = pickle.loads(pickle.dumps(WireError("code", "field", "rule")))
    assert (error.code, error.field, error.rule, str(error)) == ("code", "field", "rule", "code: field: rule")


# Change records of all kinds are encoded by field name.


def test_every_change_has_a_schema_and_every_schema_a_class():
    assert sorted(CHANGES) == sorted(name for name, schema in current().items() if schema.family == "changes")


@pytest.mark.parametrize("name", sorted(CHANGES))
@given(data=st.data())
def test_changes_round_trip(name, data):
    value = mapper(name).from_record(data.draw(records(name)))
    assert isinstance(value, CHANGES[name])
    assert decode_change(encode_change(value)) == value


def test_a_record_is_topic_key_and_value():
    value = EpochChange(3, "c", "s", 17)
    assert encode_change_record(ChangeRecord(EPOCHS, HEAD, value)) == ("epochs", b"head", encode_change(value))
    assert encode_change_record(ChangeRecord("nodes", "ü", None)) == ("nodes", "ü".encode(), None)


def test_other_records_are_not_changes():
    status = {"role": "r", "instance": "i", "term": 1, "epoch": 2, "state": "active", "at": 3}
    status |= {"refused": [], "why": "", "release": "1"}
    with pytest.raises(WireError, match="wrong_record"):
        decode_change(encode("ringlog.agents.AgentStatus", status))

"""Check the golden bytes with fastavro and hashlib only: ``python check.py SCHEMAS_FOLDER GOLDEN_FOLDER``.

This program imports nothing of Ringlog. Translate it to test an encoder and a decoder in another language.
"""

import hashlib
import io
import json
import sys
from pathlib import Path

import fastavro
from fastavro.schema import fingerprint, to_parsing_canonical_form

SCHEMAS = {}
"""Fingerprint as 16 hex digits, most significant first, to schema: the content of the topic ``schemas``."""
NAMES = {}
"""(Full name, version) to fingerprint. Only commands have a version: the attribute ``ringlog.version``."""


def load(folder):
    """Read the schemas. A program in production reads them from the topic ``<cluster>.schemas``."""
    for path in Path(folder).glob("*/*.avsc"):
        schema = json.loads(path.read_text(encoding="utf-8"))
        little = bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))
        key = little[::-1].hex()
        SCHEMAS[key] = fastavro.parse_schema(schema)
        NAMES[f"{schema['namespace']}.{schema['name']}", schema.get("ringlog.version")] = key


def decode(data):
    """Return (fingerprint, record) of a single object."""
    assert data[:2] == b"\xc3\x01", "not a single object"
    key = data[2:10][::-1].hex()
    return key, decode_body(SCHEMAS[key], data[10:])


def decode_body(schema, body):
    """Return the record of plain Avro binary."""
    source = io.BytesIO(body)
    record = fastavro.schemaless_reader(source, schema, None)
    assert source.read() == b"", "bytes follow the record"
    return record


def encode(key, record):
    """Return a single object."""
    return b"\xc3\x01" + bytes.fromhex(key)[::-1] + encode_body(SCHEMAS[key], record)


def encode_body(schema, record):
    """Return plain Avro binary."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, record, strict=True)
    return out.getvalue()


def hashed(kind, version, payload):
    """Return the bytes whose SHA-256 is the digest of a command."""
    name, number = kind.encode(), str(version).encode()
    body = b"S%d:%b" % (len(name), name) + b"I%d:%b" % (len(number), number) + b"B%d:%b" % (len(payload), payload)
    return b"L%d:%b" % (len(body), body)


def as_json(value):
    """Return a decoded value as the files have it: bytes as hex."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {name: as_json(one) for name, one in value.items()}
    return [as_json(one) for one in value] if isinstance(value, list) else value


def from_json(value, schema, types):
    """Return a value of the files with the types of its schema."""
    if isinstance(schema, list):
        return None if value is None else from_json(value, schema[1], types)  # every union is null and one type
    schema = types.get(schema, schema) if isinstance(schema, str) else schema
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind in ("record", "fixed"):
        types[schema["name"]] = schema
    if kind == "record":
        return {one["name"]: from_json(value[one["name"]], one["type"], types) for one in schema["fields"]}
    if kind == "array":
        return [from_json(one, schema["items"], types) for one in value]
    return bytes.fromhex(value) if kind in ("bytes", "fixed") else value


def check_record(case):
    """Decode a record, encode it again, and return it."""
    data = bytes.fromhex(case["record"])
    key, record = decode(data)
    assert key == case["fingerprint"] == NAMES[case["schema"], None]
    assert as_json(record) == case["says"]
    assert encode(key, from_json(case["says"], SCHEMAS[key], {})) == data
    return record


def check_request(case):
    """Check a command, its digest, its request, its entry in the log and its results."""
    kind, version, payload = case["kind"], case["version"], bytes.fromhex(case["payload"])
    if case["fields"] is not None:
        schema = SCHEMAS[NAMES[f"ringlog.commands.{kind}", version]]
        assert encode_body(schema, from_json(case["fields"], schema, {})) == payload
        assert as_json(decode_body(schema, payload)) == case["fields"]
    assert hashed(kind, version, payload).hex() == case["hashed"]
    assert hashlib.sha256(hashed(kind, version, payload)).hexdigest() == case["digest"]
    request = check_record(case["request"])
    assert (request["kind"], request["version"], request["payload"]) == (kind, version, payload)
    if case["entry"] is not None:
        entry = check_record(case["entry"])
        assert entry["request_id"] == request["request_id"]
        assert (entry["kind"], entry["version"], entry["command"]) == (kind, version, payload)
    for result in map(check_record, case["results"]):
        assert (result["request_id"], result["digest"]) == (request["request_id"], case["digest"])


def check_applied(cases, changes):
    """Check that an applied entry is recognised by its state id in the topic ``epochs``."""
    epochs = {case["says"]["state_id"].replace("-", ""): case["says"]["epoch"] for case in changes}
    for case in cases:
        if case["entry"] is not None:
            assert epochs[case["entry"]["says"]["state_id"]] == case["epoch"]


def main(schemas, golden):
    """Check both files and print the number of checked records."""
    load(schemas)
    requests = json.loads((Path(golden) / "requests.json").read_text(encoding="utf-8"))
    changes = json.loads((Path(golden) / "changes.json").read_text(encoding="utf-8"))["cases"]
    for case in requests["cases"]:
        check_request(case)
    batch = check_record(requests["batch"])
    for one in batch["requests"]:
        decode(one)
    written = [case for case in changes if case["record"] is not None]
    for case in written:
        check_record(case)
    check_applied(requests["cases"], [case for case in written if case["topic"] == "epochs"])
    print(f"{len(requests['cases'])} requests and {len(changes)} change records are as expected")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Golden bytes: what version 1 wrote stays readable, and what is written today is what was written then.

``tests/testdata/golden/<family>.txt`` has a line for each record of frozen version 1: full name and the hex of its
sample as a single object. A line is never changed; the lines of new records are added with ``RINGLOG_WRITE_GOLDEN=1``.
"""

import os
from pathlib import Path

import pytest

from ringlog.wire.codec import decode, layout
from ringlog.wire.single_object import header
from ringlog_schemas import current, frozen
from tests.wire.strategies import named_types, sample

GOLDEN = Path(__file__).parents[1] / "testdata" / "golden"
V1 = frozen(1)
SAMPLES = {name: sample(schema.json, named_types(schema.json), 1) for name, schema in V1.items()}


def golden(family):
    path = GOLDEN / f"{family}.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    known = dict(line.split() for line in lines)
    if os.environ.get("RINGLOG_WRITE_GOLDEN"):
        for name, schema in V1.items():
            if schema.family == family and name not in known:
                known[name] = (header(schema.fingerprint) + layout(name).encode(SAMPLES[name])).hex()
        path.write_text("".join(f"{name} {text}\n" for name, text in sorted(known.items())))
    return known


@pytest.mark.parametrize("family", sorted({schema.family for schema in V1.values()}))
def test_every_record_has_golden_bytes(family):
    assert sorted(golden(family)) == sorted(name for name, schema in V1.items() if schema.family == family)


@pytest.mark.parametrize("name", sorted(V1))
def test_golden_bytes_are_read(name):
    data = bytes.fromhex(golden(V1[name].family)[name])
    found = decode(data, name)[1]
    known = {field["name"] for field in current()[name].json["fields"]}
    assert holds(found, {field: value for field, value in SAMPLES[name].items() if field in known})


def holds(found, written):
    """True if what was written is there; a later version may have more fields, also inside."""
    if isinstance(written, dict):
        return all(holds(found[field], value) for field, value in written.items())
    if isinstance(written, list):
        return len(found) == len(written) and all(map(holds, found, written))
    return found == written


@pytest.mark.parametrize("name", sorted(V1))
def test_an_unchanged_schema_writes_the_golden_bytes(name):
    data = bytes.fromhex(golden(V1[name].family)[name])
    assert data[:10] == header(V1[name].fingerprint)
    if current()[name].fingerprint == V1[name].fingerprint:
        assert layout(name).encode(SAMPLES[name]) == data[10:]

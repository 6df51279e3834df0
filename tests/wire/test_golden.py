"""Golden bytes: an unchanged schema encodes its sample to the same bytes, and they decode again.

``tests/testdata/golden/<family>.txt`` has a line for each record of the catalogue, with the full name and the hex of
its sample as a single object. ``RINGLOG_WRITE_GOLDEN=1`` writes the lines of new records and changed schemas.
"""

import os
from pathlib import Path

import pytest

from ringlog.wire.avro.codec import decode, header, layout
from ringlog_schemas import current
from tests.wire.strategies import named_types, sample

GOLDEN = Path(__file__).parents[1] / "testdata" / "golden"
SCHEMAS = current()
SAMPLES = {name: sample(schema.json, named_types(schema.json), 1) for name, schema in SCHEMAS.items()}
FAMILIES = sorted({schema.family for schema in SCHEMAS.values()})


def written(name):
    return (header(SCHEMAS[name].fingerprint) + layout(name).encode(SAMPLES[name])).hex()


def golden(family):
    path = GOLDEN / f"{family}.txt"
    names = sorted(name for name, schema in SCHEMAS.items() if schema.family == family)
    if os.environ.get("RINGLOG_WRITE_GOLDEN"):
        path.write_text("".join(f"{name} {written(name)}\n" for name in names))
    return dict(line.split() for line in path.read_text().splitlines())


@pytest.mark.parametrize("family", FAMILIES)
def test_every_record_has_golden_bytes(family):
    known = golden(family)
    assert known == {name: written(name) for name, schema in SCHEMAS.items() if schema.family == family}
    for name, text in known.items():
        assert decode(bytes.fromhex(text), name)[1] == SAMPLES[name]

"""The catalogue: files are complete, names are unique, fingerprints equal those of Avro for Java, versions are
compatible.
"""

from __future__ import annotations

import copy
import json
from importlib.resources import files
from pathlib import Path

import pytest
from avro.schema import make_avsc_object
from fastavro import parse_schema
from fastavro.schema import to_parsing_canonical_form

from ringlog.kernel.registry import COMMANDS
from ringlog.wire.avro.avsc import RECORD_CLASSES, file_of, main, text_of
from ringlog_schemas import VERSION, by_fingerprint, catalog, current, fingerprint_of, published
from ringlog_schemas.catalogue import CatalogueSchema
from ringlog_schemas.compatibility import problems, successor_problems
from ringlog_schemas.docs import page
from tests.wire.strategies import named_types

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "testdata" / "golden"
NAMES = sorted(catalog())


def every_type(schema):
    """Yield each part of a schema, including itself."""
    yield schema
    if isinstance(schema, list):
        for branch in schema:
            yield from every_type(branch)
    elif isinstance(schema, dict):
        for field in schema.get("fields", ()):
            yield from every_type(field["type"])
        if "items" in schema:
            yield from every_type(schema["items"])


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_complete_in_itself(name):
    text = json.dumps(catalog()[name])
    assert make_avsc_object(json.loads(text)).fullname == name
    assert parse_schema(json.loads(text))["name"] == name


def test_a_shared_type_is_the_same_in_all_files():
    seen = {}
    for name, schema in catalog().items():
        types = named_types(schema)
        for inner, definition in types.items():
            plain = spelled_out(definition, types)
            assert seen.setdefault(inner, plain) == plain, f"{inner} in {name} differs"
    assert "ringlog.Uuid" in seen
    assert "ringlog.commands.CreateTable" in seen


def spelled_out(part, types):
    """Return a type with its named types expanded. Only the file of a command contains its version."""
    if isinstance(part, str):
        return spelled_out(types[part], types) if part in types else part
    if isinstance(part, list):
        return [spelled_out(one, types) for one in part]
    kept = {key: value for key, value in part.items() if key != VERSION}
    for key in {"type", "items"} & kept.keys():
        kept[key] = spelled_out(kept[key], types)
    return kept | {"fields": [spelled_out(field, types) for field in kept.get("fields", ())]}


@pytest.mark.parametrize("name", NAMES)
def test_everything_is_documented(name):
    for part in every_type(catalog()[name]):
        if isinstance(part, dict) and part["type"] != "array":
            assert part["doc"], part["name"]
            assert all(field["doc"].endswith(".") for field in part.get("fields", ())), part["name"]


@pytest.mark.parametrize("name", NAMES)
def test_an_int_is_a_direct_field_of_the_record(name):
    """Ranges of ``int`` are checked only in direct fields, and fastavro encodes an ``int`` of any size."""
    schema = catalog()[name]
    direct = sum(field["type"] == "int" for field in schema["fields"])
    assert sum(part == "int" for part in every_type(schema)) == direct


@pytest.mark.parametrize("name", NAMES)
def test_a_value_has_one_encoding(name):
    """A canonical body equals the encoding of its record. Floats break this, because several byte values are NaN."""
    assert not [part for part in every_type(catalog()[name]) if part in ("float", "double")]


@pytest.mark.parametrize("name", NAMES)
def test_items_of_arrays_take_bytes(name):
    """With items of zero bytes, a short body could announce an array of any length."""
    for part in every_type(catalog()[name]):
        if isinstance(part, dict) and part["type"] == "array":
            assert part["items"] != "null"
            assert part["items"] if isinstance(part["items"], str | list) else part["items"].get("fields", True)


def test_fingerprints_equal_avro_for_java():
    """``SchemaNormalization.parsingFingerprint64`` of Avro 1.12.0 for Java computed ``fingerprints.txt``.

    After a change of one of these schemas, delete its line or compute it with Java again.
    """
    lines = (GOLDEN / "fingerprints.txt").read_text().splitlines()
    expected = {name: text for text, name in (line.split() for line in lines if not line.startswith("#"))}
    assert {name: current()[name].hex for name in expected} == expected


@pytest.mark.parametrize("name", NAMES)
def test_avro_and_fastavro_agree_on_the_fingerprint(name):
    """Schemas that repeat a fixed type are excluded, because ``avro`` 1.12 expands the type again, against the
    specification.
    """
    schema = dict(catalog()[name])
    form = make_avsc_object(schema).canonical_form
    repeated = form.count('"type":"fixed"') > len({n for n, t in named_types(schema).items() if t["type"] == "fixed"})
    assert (form == to_parsing_canonical_form(schema)) is not repeated
    if not repeated:
        own = make_avsc_object(schema).fingerprint("CRC-64-AVRO")
        assert int.from_bytes(own, "little") == current()[name].fingerprint


def test_the_null_schema_has_the_fingerprint_of_the_specification():
    assert make_avsc_object("null").fingerprint("CRC-64-AVRO").hex() == "8a8f25cce724dd63"


def test_published_schemas_resolve_their_keys():
    pairs = published()
    assert len(pairs) == len(by_fingerprint())
    for key, text in pairs:
        assert f"{fingerprint_of(json.loads(text)):016x}" == key


def test_the_reference_page_is_current():
    """``python -m ringlog_schemas.docs > docs/reference/schemas.md`` writes the page."""
    assert (ROOT / "docs" / "reference" / "schemas.md").read_text(encoding="utf-8") == page()


# Versions


def changed(name, change):
    """Return the problems of the schema ``name`` after ``change``."""
    earlier = current()[name]
    json_copy = copy.deepcopy(dict(earlier.json))
    change(json_copy)
    return successor_problems(CatalogueSchema(name, json_copy, fingerprint_of(json_copy)), earlier)


def field(schema, name):
    return next(item for item in schema["fields"] if item["name"] == name)


def add_field(**extra):
    return lambda schema: schema["fields"].append({"name": "added", "doc": "Added.", **extra})


def drop_field(name):
    return lambda schema: schema["fields"].remove(field(schema, name))


def set_type(name, new):
    return lambda schema: field(schema, name).update(type=new)


def rename_symbol(schema):
    field(schema, "operation")["type"]["symbols"][0] = "UPSERT"


def swap_symbols(schema):
    field(schema, "operation")["type"]["symbols"][:2] = ["UPDATE", "INSERT"]


def add_symbol(schema):
    field(schema, "operation")["type"]["symbols"].append("LATER")


def drop_enum_default(schema):
    del field(schema, "operation")["type"]["default"]


def widen_cells(schema):
    cell = field(schema, "cells")["type"]["items"]
    cell["fields"].append({"name": "ttl", "type": ["null", "long"], "default": None, "doc": "Seconds."})


def change_in_cells(schema):
    field(schema, "cells")["type"]["items"]["fields"][0]["type"] = "bytes"


MUTATION = "ringlog.mutations.Mutation"


@pytest.mark.parametrize(
    "change",
    [
        add_field(type="long", default=0),
        add_field(type=["null", "string"], default=None),
        drop_field("ttl"),
        add_symbol,
        widen_cells,
        lambda schema: schema.update(doc="Other words."),
    ],
    ids=["field-with-default", "nullable-field", "drop-field-with-default", "symbol", "inner-field", "words"],
)
def test_a_compatible_version_passes(change):
    assert changed(MUTATION, change) == ()


@pytest.mark.parametrize(
    "change",
    [
        add_field(type="long"),
        drop_field("timestamp"),
        drop_field("partition_key"),
        set_type("timestamp", "string"),
        set_type("timestamp", "int"),
        set_type("keyspace", "bytes"),
        set_type("ttl", ["null", "string"]),
        lambda schema: (set_type("ttl", "long")(schema), field(schema, "ttl").pop("default")),
        rename_symbol,
        swap_symbols,
        drop_enum_default,
        change_in_cells,
        lambda schema: schema.update(name="Changed"),
        lambda schema: field(schema, "mutation_id")["type"][1].update(size=8),
        add_field(type=["long", "null"], default=0),
        lambda schema: field(schema, "timestamp").update(name="written_at"),
    ],
    ids=[
        "field-without-default",
        "drop-field-without-default",
        "drop-array",
        "long-to-string",
        "long-to-int",
        "string-to-bytes",
        "branch-changed",
        "null-removed",
        "symbol-renamed",
        "symbols-swapped",
        "enum-default-removed",
        "inner-type",
        "renamed",
        "fixed-size",
        "union-without-null-first",
        "field-renamed",
    ],
)
def test_an_incompatible_version_fails(change):
    assert changed(MUTATION, change)


def test_the_envelope_must_not_change():
    assert changed("ringlog.log.LogEntry", add_field(type="long", default=0))


def test_a_command_changes_only_as_a_new_version():
    addition = add_field(type="long", default=0)
    assert changed("ringlog.commands.Join", addition)
    assert not changed("ringlog.commands.Join", lambda s: (addition(s), s.update({"ringlog.version": 2})))


def test_an_invalid_schema_is_a_problem():
    assert problems({"type": "record", "name": "X", "namespace": "ringlog"}, current()[MUTATION].json)


# Schemas generated from declarations equal them, byte for byte.


SCHEMAS = files("ringlog_schemas")


@pytest.mark.parametrize("full_name", RECORD_CLASSES)
def test_a_schema_equals_its_declaration(full_name: str) -> None:
    written = (SCHEMAS / file_of(full_name)).read_text(encoding="utf-8")
    assert written == text_of(full_name), "run: python -m ringlog.wire.avro.avsc schemas/ringlog_schemas"


def test_each_command_schema_has_a_command() -> None:
    assert {path.name for path in (SCHEMAS / "commands").iterdir()} == {f"{kind}.avsc" for kind in COMMANDS}


def test_the_generator_writes_missing_and_changed_schemas(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for family in ("commands", "changes"):
        (tmp_path / family).mkdir()
    main(str(tmp_path))
    assert len(capsys.readouterr().out.splitlines()) == len(RECORD_CLASSES) > 40
    join = tmp_path / "commands" / "Join.avsc"
    join.write_text("{}")
    main(str(tmp_path))
    assert capsys.readouterr().out == f"written: {join}\n"
    assert join.read_text() == text_of("ringlog.commands.Join")

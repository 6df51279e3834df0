"""May a schema follow an earlier one? FULL compatibility, and what Avro lets through although it changes the meaning.

FULL: each schema reads data of the other (``avro.compatibility``, both ways). On top of that, a schema must not

* take away, rename or reorder symbols of an enum (with a default symbol, Avro reads a missing one as the default);
* exchange ``string`` and ``bytes`` (Avro reads either as the other);
* have an enum without a default symbol, or a union whose first branch is not null;
* change a command's schema or the envelope: a payload carries no fingerprint, so a changed command is a new version of
  its kind, in addition to the old one.

``problems`` compares two schemas, ``successor_problems`` two versions of one record of the catalogue.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
from avro.errors import AvroException
from avro.schema import make_avsc_object

from ringlog_schemas.catalogue import VERSION, CatalogueSchema


def problems(today: Mapping[str, Any], earlier: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the reasons why ``today`` must not follow ``earlier``, one sentence each."""
    try:
        new, old = make_avsc_object(dict(today)), make_avsc_object(dict(earlier))
    except AvroException as error:
        return (f"no schema: {error}",)
    found = []
    for what, reader, writer in (("cannot read the earlier", new, old), ("cannot be read by the earlier", old, new)):
        checker: Any = ReaderWriterCompatibilityChecker()  # type: ignore[no-untyped-call]
        result = checker.get_compatibility(reader, writer)
        if result.compatibility is not SchemaCompatibilityType.compatible:
            places = ", ".join(sorted({_place(reader.to_json(), at) for at in result.locations}))
            found.append(f"{what}: {'; '.join(sorted(result.messages))} at {places}")
    found += _differences(today, earlier, today["name"], _types(today), _types(earlier))
    return tuple(dict.fromkeys([*found, *_style(today, today["name"])]))


def successor_problems(today: CatalogueSchema, earlier: CatalogueSchema) -> tuple[str, ...]:
    """``problems``, and for the envelope and for a command of the same version: any difference of the fingerprints."""
    if today.fingerprint != earlier.fingerprint:
        if today.family == "log":
            return ("the envelope never changes",)
        if today.family == "commands" and today.json[VERSION] == earlier.json[VERSION]:
            return (f"version {today.json[VERSION]} is in use: a changed command is a new version",)
        if today.family == "commands":
            return tuple(_style(today.json, today.name))
    return problems(today.json, earlier.json)


def _place(reader: Any, location: str) -> str:
    """The field that avro's path (``/fields/2/type/...``) is about, by name; the record if it is about no field."""
    names, at = [reader["name"]], reader
    for step in location.strip("/").split("/"):
        if isinstance(at, list) and step.isdigit() and int(step) < len(at):
            at = at[int(step)]
            names += [at["name"]] if isinstance(at, Mapping) and "name" in at and "type" in at else []
        elif isinstance(at, Mapping) and step in at:
            at = at[step]
    return ".".join(names)


def _types(schema: Any) -> dict[str, Any]:
    """Named types of a schema by short and by full name."""
    found: dict[str, Any] = {}
    if isinstance(schema, list):
        for branch in schema:
            found |= _types(branch)
    elif isinstance(schema, Mapping):
        if "name" in schema:
            found |= {schema["name"]: schema, f"{schema.get('namespace', '')}.{schema['name']}": schema}
        for part in [*(field["type"] for field in schema.get("fields", ())), schema.get("items"), schema.get("type")]:
            found |= _types(part)
    return found


def _kind(schema: Any) -> str:
    return "union" if isinstance(schema, list) else str(schema["type"] if isinstance(schema, Mapping) else schema)


def _differences(new: Any, old: Any, where: str, new_types: Any, old_types: Any) -> Iterator[str]:
    """Changes of meaning that Avro reads without complaint."""
    new = new_types.get(new, new) if isinstance(new, str) else new
    old = old_types.get(old, old) if isinstance(old, str) else old
    if {_kind(new), _kind(old)} == {"string", "bytes"}:
        yield f"{where}: string and bytes are exchanged"
    if _kind(new) != _kind(old):
        return
    match _kind(new):
        case "enum":
            if new["symbols"][: len(old["symbols"])] != old["symbols"]:
                yield f"{where}: the symbols {old['symbols']} must stay, in this order"
            if new.get("default") != old.get("default"):
                yield f"{where}: the default symbol must stay {old.get('default')}"
        case "array":
            yield from _differences(new["items"], old["items"], f"{where}[]", new_types, old_types)
        case "union":
            for left, right in zip(new, old, strict=False):
                yield from _differences(left, right, where, new_types, old_types)
        case "record":
            before = {field["name"]: field["type"] for field in old["fields"]}
            for field in new["fields"]:
                if field["name"] in before:
                    name = f"{where}.{field['name']}"
                    yield from _differences(field["type"], before[field["name"]], name, new_types, old_types)


def _style(schema: Any, where: str) -> Iterator[str]:
    """Rules that every schema of the catalogue follows, so that it can be compatible with its successors."""
    if isinstance(schema, list):
        if schema[0] != "null":
            yield f"{where}: null comes first in a union"
        for branch in schema:
            yield from _style(branch, where)
    elif isinstance(schema, Mapping):
        if schema["type"] == "enum" and "default" not in schema:
            yield f"{where}: an enum needs a default symbol"
        if schema["type"] == "array":
            yield from _style(schema["items"], f"{where}[]")
        for field in schema.get("fields", ()):
            yield from _style(field["type"], f"{where}.{field['name']}")

"""The catalogue of schemas, by name and by fingerprint.

One file a record, ``<family>/<Record>.avsc``, full name ``ringlog.<family>.<Record>``. **Every file is complete in
itself**: types shared by several records (``ringlog.Uuid``, ``ringlog.commands.Position``, ...) are written out where
a file first uses them, and a test keeps the copies equal. So one file is all that any Avro library needs.

``<family>/<Record>.v<N>.avsc`` is version N of a record that has changed since. This release reads it and resolves it
to the present schema. There is none yet.

A schema is named on the wire by the CRC-64-AVRO fingerprint of its parsing canonical form; ``by_fingerprint`` knows
them all. Source: Avro 1.12 specification.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from types import MappingProxyType
from typing import Any

from fastavro.schema import fingerprint, to_parsing_canonical_form

FAMILIES = ("log", "commands", "requests", "acks", "load", "agents", "snapshots", "mutations", "cdc", "changes", "data")
"""The folders of the present schemas, in the order of the reference page."""

VERSION = "ringlog.version"
"""The attribute with the version of a command's schema."""

SUFFIX = ".avsc"

_ROOT = files("ringlog_schemas")  # a folder, or a part of the archive that a Spark worker was sent


@dataclass(frozen=True, slots=True)
class CatalogueSchema:
    """One schema: full name, the JSON as parsed, the fingerprint as an unsigned number."""

    full_name: str
    json: Mapping[str, Any]
    fingerprint: int

    @property
    def family(self) -> str:
        """The folder of its file, such as ``commands``."""
        return self.full_name.split(".")[1]

    @property
    def name(self) -> str:
        """The record's own name, e.g. ``Join``."""
        return self.full_name.rsplit(".", 1)[1]

    @property
    def hex(self) -> str:
        """The fingerprint as 16 hex digits, most significant first: the key in the topic of schemas."""
        return f"{self.fingerprint:016x}"


def fingerprint_of(schema: Mapping[str, Any]) -> int:
    """Return the CRC-64-AVRO of the parsing canonical form. Raises fastavro's ``SchemaParseException``.

    Made with fastavro: ``avro`` 1.12.2 writes a fixed type out each time it is used where the specification (and Avro
    for Java) has its name from the second time on. A test compares fingerprints with those that Avro for Java
    computed.
    """
    return int.from_bytes(bytes.fromhex(fingerprint(to_parsing_canonical_form(dict(schema)), "CRC-64-AVRO")), "little")


class _Folder(Mapping[str, CatalogueSchema]):
    """The schemas below a folder by full name, each read when it is asked for: a process needs few of them."""

    def __init__(self, root: Traversable) -> None:
        self._paths: dict[str, Traversable] = {}
        self._earlier: list[tuple[str, int, Traversable]] = []
        self._found: dict[str, CatalogueSchema] = {}
        for family in FAMILIES:
            folder = root / family
            paths = (path for path in folder.iterdir() if path.name.endswith(SUFFIX))
            for path in sorted(paths, key=lambda path: path.name):
                name, _, version = path.name.removesuffix(SUFFIX).partition(".v")
                if version:
                    self._earlier.append((f"ringlog.{family}.{name}", int(version), path))
                else:
                    self._paths[f"ringlog.{family}.{name}"] = path

    def __getitem__(self, full_name: str) -> CatalogueSchema:
        """KeyError if there is none of that name; ValueError if its file declares another one."""
        found = self._found.get(full_name)
        if found is None:
            found = self._found[full_name] = _schema_in(self._paths[full_name], full_name)
        return found

    def earlier(self) -> tuple[CatalogueSchema, ...]:
        """Return the earlier versions, by ascending name and version."""
        return tuple(
            _schema_in(path, full_name) for full_name, _, path in sorted(self._earlier, key=lambda one: one[:2])
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)

    def __contains__(self, full_name: object) -> bool:
        return full_name in self._paths


def _schema_in(path: Traversable, full_name: str) -> CatalogueSchema:
    parsed = json.loads(path.read_text(encoding="utf-8"))
    declared = f"{parsed['namespace']}.{parsed['name']}"
    if declared != full_name:
        raise ValueError(f"{full_name}: its file declares {declared}")
    return CatalogueSchema(full_name, parsed, fingerprint_of(parsed))


@cache
def _folder() -> _Folder:
    return _Folder(_ROOT)


def current() -> Mapping[str, CatalogueSchema]:
    """The schemas that this release writes, by full name."""
    return _folder()


@cache
def earlier() -> tuple[CatalogueSchema, ...]:
    """Return the earlier versions of changed records, which this release only reads, by ascending name and version."""
    return _folder().earlier()


@cache
def catalog() -> Mapping[str, Mapping[str, Any]]:
    """The JSON of the schemas that this release writes, by full name."""
    return MappingProxyType({name: schema.json for name, schema in current().items()})


@cache
def by_fingerprint() -> Mapping[int, CatalogueSchema]:
    """Every schema of the catalogue, by fingerprint."""
    return MappingProxyType({schema.fingerprint: schema for schema in (*earlier(), *current().values())})


def published() -> tuple[tuple[str, str], ...]:
    """(fingerprint in hex, schema as compact JSON) of every schema that a record on the wire may name, by ascending
    key.

    These pairs are the keys and values of the compacted topic of schemas, which lets any Kafka client resolve a
    fingerprint. The JSON is complete, with docs and defaults, so that it also serves as a reader's schema.
    """
    known = by_fingerprint().values()
    return tuple(sorted((schema.hex, json.dumps(schema.json, separators=(",", ":"))) for schema in known))

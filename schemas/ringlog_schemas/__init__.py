"""The Avro schemas of everything that Ringlog writes, as data, with their fingerprints and earlier versions."""

from ringlog_schemas.catalogue import (
    VERSION,
    CatalogueSchema,
    by_fingerprint,
    catalog,
    current,
    fingerprint_of,
    frozen,
    frozen_versions,
    published,
)

__all__ = [
    "VERSION",
    "CatalogueSchema",
    "by_fingerprint",
    "catalog",
    "current",
    "fingerprint_of",
    "frozen",
    "frozen_versions",
    "published",
]

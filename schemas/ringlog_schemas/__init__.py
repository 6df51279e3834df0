"""The Avro schemas of everything that Ringlog writes, as data, with their fingerprints."""

from ringlog_schemas.catalogue import (
    VERSION,
    CatalogueSchema,
    by_fingerprint,
    catalog,
    current,
    earlier,
    fingerprint_of,
    published,
)

__all__ = [
    "VERSION",
    "CatalogueSchema",
    "by_fingerprint",
    "catalog",
    "current",
    "earlier",
    "fingerprint_of",
    "published",
]

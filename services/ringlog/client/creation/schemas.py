"""Schemas of a running cluster: a release publishes its schemas if they are compatible with the published ones.

The compacted topic ``schemas`` contains every schema that any release has published, by fingerprint. So it covers all
records in the topics of the cluster. A new schema must be compatible in both directions with each earlier schema of the
same name (``ringlog_schemas.compatibility``, which uses the library ``avro``). The check runs before the first record
is written with the new schema, because incompatible records cannot be removed from their topics.

If all schemas are already published, nothing is compared or sent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ringlog.client.direct import TIMEOUT_S
from ringlog.client.errors import SchemasIncompatible
from ringlog.log.kafka.compacted import read_compacted
from ringlog.log.kafka.producer import AckedProducer
from ringlog.log.kafka.topics import SCHEMAS, topic_name
from ringlog.runtime.logs import get_logger
from ringlog_schemas import CatalogueSchema, current, fingerprint_of, published

log = get_logger(__name__)


def publish_schemas(
    bootstrap_servers: str,
    cluster: str,
    producer: AckedProducer | None = None,
    check: Callable[[], None] = lambda: None,
    *,
    own: Mapping[str, CatalogueSchema] | None = None,
    texts: Sequence[tuple[str, str]] | None = None,
) -> int:
    """Publish the missing schemas to the topic ``schemas`` and return their number. Key: fingerprint in hex, value:
    JSON.

    Args:
        producer: Producer to use. Default: a new one, which is closed afterwards.
        own: Schemas by name. Default: those of this release.
        texts: Pairs of fingerprint and JSON. Default: those of this release.

    Raises SchemasIncompatible (nothing was written), LogUnavailable, and the errors of ``check``.
    """
    topic = topic_name(cluster, SCHEMAS.suffix)
    there = read_compacted(bootstrap_servers, topic, bytes.decode, check)
    broken = incompatibilities(there, current() if own is None else own)
    if broken:
        raise SchemasIncompatible(topic, broken)
    lacking = [(key, text) for key, text in (published() if texts is None else texts) if there.get(key) != text]
    sender = producer or AckedProducer(bootstrap_servers, "ringlog-schemas")
    try:
        for future in [sender.send(topic, text.encode(), key=key.encode(), partition=0) for key, text in lacking]:
            future.result(TIMEOUT_S)
    finally:
        if producer is None:
            sender.close()
    return len(lacking)


def incompatibilities(there: Mapping[str, str], own: Mapping[str, CatalogueSchema]) -> tuple[str, ...]:
    """Return the problems of new schemas in ``own`` with the published schemas ``there`` (fingerprint to JSON).

    An entry that is not a schema with its fingerprint is skipped: no record can have been written with it.
    """
    new = {name: schema for name, schema in own.items() if schema.hex not in there}
    if not new or not there:
        return ()
    # These imports load ``avro``, which only a new release needs.
    from fastavro.schema import SchemaParseException

    from ringlog_schemas.compatibility import successor_problems

    found = []
    for key, text in sorted(there.items()):
        try:
            earlier: Any = json.loads(text)
            name = f"{earlier['namespace']}.{earlier['name']}"
            published_schema = CatalogueSchema(name, earlier, int(key, 16))
            is_one = fingerprint_of(earlier) == published_schema.fingerprint
            problems = successor_problems(new[name], published_schema) if is_one and name in new else ()
        except (ValueError, LookupError, TypeError, RecursionError, SchemaParseException):
            log.warning("no_schema", topic=SCHEMAS.suffix, key=key)
            continue
        found += [f"{name} against {key}: {problem}" for problem in problems]
    return tuple(found)

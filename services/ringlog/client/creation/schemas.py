"""The schemas in a running cluster: a release publishes its own, if they fit those that are there.

The compacted topic ``schemas`` has every schema that a release ever published, by fingerprint, so it knows what may
stand in any topic of the cluster. A schema that is new there must be readable by those who have the earlier one of its
name, and read what that wrote (``ringlog_schemas.compatibility``, which asks the library ``avro``). That is looked at
before the first record is written with it: afterwards no consumer could be helped.

Nothing is sent that is there already, and then nothing is compared.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ringlog.client.direct import TIMEOUT_S
from ringlog.client.errors import SchemasIncompatible
from ringlog.log.kafka.compacted import held
from ringlog.log.kafka.producer import AckedProducer
from ringlog.log.kafka.topics import SCHEMAS, topic_name
from ringlog.runtime.logs import get_logger
from ringlog_schemas import CatalogueSchema, current, fingerprint_of, published

log = get_logger(__name__)


def publish_schemas(
    bootstrap_servers: str,
    cluster: str,
    producer: AckedProducer | None = None,
    look: Callable[[], None] = lambda: None,
    *,
    own: Mapping[str, CatalogueSchema] | None = None,
    texts: Sequence[tuple[str, str]] | None = None,
) -> int:
    """Write each schema that it lacks to the topic ``schemas``; key: fingerprint in hex, value: the schema's JSON.

    ``producer``: None: one of its own. ``own``, ``texts``: another release's (default: this one's). Returns how many
    were lacking. Raises SchemasIncompatible (nothing is written then), LogUnavailable, and what ``look`` raises.
    """
    topic = topic_name(cluster, SCHEMAS.suffix)
    there = held(bootstrap_servers, topic, bytes.decode, look)
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
    """What speaks against those of ``own`` that are new, in view of those that are ``there`` by fingerprint.

    What is there and is no schema with that fingerprint is passed over: nobody has read or written a record with it.
    """
    new = {name: schema for name, schema in own.items() if schema.hex not in there}
    if not new or not there:
        return ()
    # What loads avro, which only a new release needs.
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

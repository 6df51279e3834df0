"""Generations and tables, read from the topics of a cluster as any consumer reads them."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from ringlog_audit.rules.lateness import always
from ringlog_audit.rules.streams import PublishedGeneration, PublishedRange
from ringlog_audit.rules.tables import table_of_record
from ringlog_audit.sources.topics import AuditError, AuditTopics, Decoder, latest
from ringlog_audit.writes.history import AuditTableVersions, AuditVersion, TableHistory, replayed
from ringlog_audit.writes.refusals import AuditRules


def published_rules(
    topics: AuditTopics, decoder: Decoder, leeway_us: int | None, archived: Iterable[bytes] = ()
) -> AuditRules:
    """Return all inputs for validating a write. Raise AuditError if the topics contradict each other.

    ``leeway_us``: the allowed lateness of a cluster without a metadata log, whose tables come from the topic
    ``schema``. None: the metadata log contains it. ``archived``: records that the metadata log no longer contains.
    """
    cluster_id, generations = _cluster_id(topics, decoder), published_generations(topics, decoder)
    if leeway_us is not None:
        return AuditRules(cluster_id, _tables(topics, decoder), generations, always(leeway_us))
    history, leeways = replayed(topics, decoder, archived)
    return AuditRules(cluster_id, history, generations, leeways)


def _tables(topics: AuditTopics, decoder: Decoder) -> TableHistory:
    """Return the tables of the topic ``schema``, each with its current version only."""
    found = TableHistory()
    for key, value in latest(topics, "schema").items():
        if key.startswith(b"table/"):
            row = decoder.decode(value)
            version = AuditVersion(0, 0, uuid.UUID(row["version"]).bytes, table_of_record(row))
            found.lives[f"{row['keyspace']}.{row['name']}"] = [AuditTableVersions([version])]
    return found


def published_generations(topics: AuditTopics, decoder: Decoder) -> list[PublishedGeneration]:
    """Return the generations by ascending timestamp, from ``cdc-generations`` and ``cdc-streams``."""
    ranges: dict[str, dict[str, list[PublishedRange]]] = {}
    for value in latest(topics, "cdc-streams").values():
        row = decoder.decode(value)
        streams = tuple(bytes(stream) for stream in row["streams"])
        by_table = ranges.setdefault(row["generation"], {})
        by_table.setdefault(row["table"], []).append(PublishedRange(row["end"], row["ignore_msb"], streams))
    found = []
    for value in latest(topics, "cdc-generations").values():
        row = decoder.decode(value)
        tables = {name: tuple(sorted(own, key=lambda r: r.end)) for name, own in ranges.get(row["id"], {}).items()}
        if row["status"] == "expired" and not tables:
            found.append(PublishedGeneration(row["timestamp"], (), row["committed"], is_closed=True))
            continue
        everything = [one for own in tables.values() for one in own]
        streams_found = sum(len(r.streams) for r in everything)
        if (len(everything), streams_found) != (row["ranges"], row["streams"]) or "" not in tables:
            raise AuditError(
                f"generation {row['id']} has {row['ranges']} ranges with {row['streams']} streams; "
                f"{len(everything)} with {streams_found} are published"
            )
        found.append(
            PublishedGeneration(
                row["timestamp"], tables.pop(""), row["committed"], tables, row["status"] in ("closed", "expired")
            )
        )
    return sorted(found, key=lambda g: g.timestamp)


def _cluster_id(topics: AuditTopics, decoder: Decoder) -> bytes:
    found = [decoder.decode(value)["cluster_id"] for value in latest(topics, "epochs").values()]
    if not found:
        raise AuditError(f"{topics.name('epochs')} is empty: start the change publisher")
    return uuid.UUID(found[0]).bytes

"""Reads the topics once and compares: every write against what became of it.

Per write the audit keeps a few bytes (position, expected stream, a digest of key and cells), so its memory grows
with the number of writes, about 0.4 KB each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ringlog.audit.report import Check, Report
from ringlog.audit.streams import PublishedGeneration, PublishedRange, compose, generation_for, hash_of, stream_for
from ringlog.audit.topics import AuditError, Decoder, latest, records

SHARE_MIN = 0.10

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Write:
    """What a mutation says and where it belongs. ``stream`` is empty where it must be refused for ``refusal``."""

    stream: bytes
    generation: int
    timestamp: int
    digest: bytes
    refusal: str


@dataclass(frozen=True, slots=True)
class Expected:
    """What the caller knows of the input; None: not checked."""

    written: int | None = None
    rejected: int | None = None
    generations: int | None = None


def audit(bootstrap: str, cluster: str, expected: Expected, say: Say) -> Report:
    """Check the CDC log of ``cluster`` against its mutations; raises AuditError if a topic can't be read."""
    report = Report()
    decoder = Decoder(bootstrap, cluster)
    generations = published_generations(bootstrap, cluster, decoder)
    say(f"{len(generations)} published generations")
    writes = _writes(bootstrap, cluster, decoder, generations)
    say(f"{len(writes):,} mutations read and hashed with the Cassandra driver")
    written = _check_rows(bootstrap, cluster, decoder, writes, report)
    say(f"{report.counts['cdc_rows']:,} CDC rows compared")
    rejected = _check_dead_letters(bootstrap, cluster, decoder, writes, report)
    _check_complete(writes, written, rejected, expected, report)
    _check_shares(writes, written, expected, report)
    return report


def published_generations(bootstrap: str, cluster: str, decoder: Decoder) -> list[PublishedGeneration]:
    """The generations by ascending timestamp, from ``cdc-generations`` and ``cdc-streams``."""
    ranges: dict[str, list[PublishedRange]] = {}
    for value in latest(bootstrap, f"{cluster}.cdc-streams").values():
        row = decoder.decode(value)
        streams = tuple(bytes(stream) for stream in row["streams"])
        ranges.setdefault(row["generation"], []).append(PublishedRange(row["end"], row["ignore_msb"], streams))
    found = []
    for value in latest(bootstrap, f"{cluster}.cdc-generations").values():
        row = decoder.decode(value)
        own = sorted(ranges.get(row["id"], []), key=lambda r: r.end)
        if len(own) != row["ranges"]:
            raise AuditError(f"generation {row['id']} has {row['ranges']} ranges, {len(own)} are published")
        found.append(PublishedGeneration(row["timestamp"], tuple(own)))
    return sorted(found, key=lambda g: g.timestamp)


def _writes(
    bootstrap: str, cluster: str, decoder: Decoder, generations: list[PublishedGeneration]
) -> dict[tuple[int, int], _Write]:
    token_of = lru_cache(maxsize=200_000)(hash_of)
    streams: dict[tuple[int, int], bytes] = {}
    writes = {}
    for message in records(bootstrap, f"{cluster}.mutations"):
        mutation = decoder.decode(message.value() or b"")
        components = [None if part is None else bytes(part) for part in mutation["partition_key"]]
        timestamp = mutation["timestamp"]
        position = (message.partition() or 0, message.offset() or 0)
        digest = _digest(mutation)
        if None in components:
            writes[position] = _Write(b"", 0, timestamp, digest, "null_partition_key")
            continue
        generation = generation_for(generations, timestamp)
        if generation is None:
            writes[position] = _Write(b"", 0, timestamp, digest, "no_generation")
            continue
        token = token_of(compose([part for part in components if part is not None]))
        stream = streams.get((generation.timestamp, token))
        if stream is None:
            stream = streams[generation.timestamp, token] = stream_for(generation, token)
        writes[position] = _Write(stream, generation.timestamp, timestamp, digest, "")
    return writes


def _digest(row: dict[str, Any]) -> bytes:
    """Digest of what a row says: table, keys, and the cells that hold a value."""
    cells = sorted((c["column"], bytes(c["value"])) for c in row["cells"] if c["value"] is not None)
    whole = (row["keyspace"], row["table"], row["partition_key"], row["clustering_key"], cells, row["timestamp"])
    return hashlib.blake2b(repr(whole).encode(), digest_size=12).digest()


def _check_rows(
    bootstrap: str, cluster: str, decoder: Decoder, writes: dict[tuple[int, int], _Write], report: Report
) -> set[tuple[int, int]]:
    """Each CDC row: its write exists, once, unchanged, under the right stream and generation, in order."""
    source = Check("source", "every CDC row comes from one write, key and cells unchanged")
    once = Check("exactly_once", "no write has two CDC rows, also physically")
    stream = Check(
        "stream", "every row lies under the stream of its token in the generation operating at its timestamp"
    )
    partition = Check("partition", "every stream lies in exactly one partition of the CDC topic")
    order = Check("order", "writes of one partition key appear in the order of the mutations topic")
    report.checks += [source, once, stream, partition, order]
    homes: dict[bytes, int] = {}
    last: dict[bytes, tuple[int, int]] = {}
    seen: set[tuple[int, int]] = set()
    count = 0
    for message in records(bootstrap, f"{cluster}.cdc"):
        count += 1
        row = decoder.decode(message.value() or b"")
        key = message.key() or b""
        position = (row["source_partition"], row["source_offset"])
        write = writes.get(position)
        where = f"source {position[0]}/{position[1]}, CDC {message.partition()}/{message.offset()}"
        if write is None or write.digest != _digest(row):
            source.fail(where)
            continue
        if position in seen:
            once.fail(where)
        seen.add(position)
        if write.refusal or key != write.stream or row["stream_id"] != key or row["generation"] != write.generation:
            stream.fail(f"{where}: key {key.hex()}, expected {write.stream.hex()} {write.refusal}")
        if homes.setdefault(key, message.partition() or 0) != message.partition():
            partition.fail(f"{where}: stream {key.hex()} is also in partition {homes[key]}")
        # Rows of another generation lie in another stream, which is read after this one is closed.
        base = repr((row["generation"], row["keyspace"], row["table"], row["partition_key"])).encode()
        if last.get(base, position) > position or last.get(base, position)[0] != position[0]:
            order.fail(where)
        last[base] = position
    report.counts["cdc_rows"] = count
    report.counts["streams_used"] = len(homes)
    return seen


def _check_dead_letters(
    bootstrap: str, cluster: str, decoder: Decoder, writes: dict[tuple[int, int], _Write], report: Report
) -> set[tuple[int, int]]:
    """Each dead letter: its write exists, once, and had to be refused for that reason."""
    check = Check("dead_letters", "every dead letter is a write that the rules refuse, once, for the reason it names")
    report.checks.append(check)
    seen: set[tuple[int, int]] = set()
    for message in records(bootstrap, f"{cluster}.dead-letters"):
        letter = decoder.decode(message.value() or b"")
        position = (letter["partition"], letter["offset"])
        write = writes.get(position)
        if write is None or position in seen or letter["reason"] != write.refusal:
            check.fail(f"{position[0]}/{position[1]}: {letter['reason']}")
        seen.add(position)
    report.counts["dead_letters"] = len(seen)
    return seen


def _check_complete(
    writes: dict[tuple[int, int], _Write],
    written: set[tuple[int, int]],
    rejected: set[tuple[int, int]],
    expected: Expected,
    report: Report,
) -> None:
    whole = f"{len(written):,} written + {len(rejected):,} rejected = {len(writes):,} mutations"
    check = Check("complete", whole)
    report.checks.append(check)
    report.counts |= {"mutations": len(writes), "written": len(written), "rejected": len(rejected)}
    for position in sorted(writes.keys() - written - rejected)[:100]:
        check.fail(f"write {position[0]}/{position[1]} is in neither topic")
    for position in sorted(written & rejected)[:100]:
        check.fail(f"write {position[0]}/{position[1]} is in both topics")
    for what, found, wanted in (
        ("written", len(written), expected.written),
        ("rejected", len(rejected), expected.rejected),
    ):
        if wanted is not None and found != wanted:
            check.fail(f"{found:,} {what}, {wanted:,} expected")


def _check_shares(
    writes: dict[tuple[int, int], _Write],
    written: set[tuple[int, int]],
    expected: Expected,
    report: Report,
) -> None:
    used: dict[int, int] = {}
    for position in written:
        used[writes[position].generation] = used.get(writes[position].generation, 0) + 1
    report.generations = [{"timestamp": timestamp, "rows": used[timestamp]} for timestamp in sorted(used)]
    if expected.generations is None:
        return
    check = Check(
        "both_generations", f"{expected.generations} generations hold at least {SHARE_MIN:.0%} of the rows each"
    )
    report.checks.append(check)
    if len(used) != expected.generations:
        check.fail(f"rows lie in {len(used)} generations")
    for timestamp, rows in sorted(used.items()):
        if rows < SHARE_MIN * len(written):
            check.fail(f"generation {timestamp} holds {rows:,} of {len(written):,} rows")

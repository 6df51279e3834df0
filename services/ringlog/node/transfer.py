"""Rows on their way from one node to another: one HTTP answer holding an Avro object container file.

The answer's headers say how many rows it holds and their checksum; the receiver counts and sums for itself and
keeps nothing unless both agree.
"""

from __future__ import annotations

import io
from typing import Any

import fastavro
import httpx
from fastavro.schema import to_parsing_canonical_form

from ringlog.node.holder import Fetch, Snapshot
from ringlog.node.store import Version, checksum, inside

ROWS_HEADER = "x-ringlog-rows"
CHECKSUM_HEADER = "x-ringlog-checksum"
MEDIA_TYPE = "application/vnd.apache.avro+binary"

_SCHEMA = fastavro.parse_schema(
    {
        "type": "record",
        "name": "StreamedRow",
        "namespace": "ringlog.node",
        "fields": [
            {"name": "table", "type": "string"},
            {"name": "token", "type": "long"},
            {"name": "partition_key", "type": "bytes"},
            {"name": "clustering_key", "type": {"type": "array", "items": ["null", "bytes"]}},
            {"name": "timestamp", "type": "long"},
            {"name": "value", "type": "bytes"},
        ],
    }
)


class TransferError(Exception):
    """Rows did not arrive whole; ``detail`` says what was wrong. Nothing of them was kept."""


class SourceNotReady(Exception):
    """The source asks to try again; the text says what it waits for."""


def pack(snapshot: Snapshot) -> tuple[bytes, dict[str, str]]:
    """Body and headers of a stream."""
    out = io.BytesIO()
    fastavro.writer(out, _SCHEMA, (_record(version) for version in snapshot.versions), codec="deflate")
    return out.getvalue(), {ROWS_HEADER: str(len(snapshot.versions)), CHECKSUM_HEADER: snapshot.checksum}


def unpack(body: bytes, rows: int, digest: str) -> Snapshot:
    """The rows of a stream, count and checksum compared; raises TransferError."""
    try:
        records = fastavro.reader(io.BytesIO(body))
        if not _is_ours(records.writer_schema):
            # Reading by a stranger's schema could take for ever: an array of nothings costs no bytes.
            raise ValueError("its schema is not that of streamed rows")
        versions = tuple(_version(record) for record in records)
    except Exception as broken:  # whatever bytes are there: fastavro and zlib have many ways to say so
        raise TransferError(f"the stream is not a readable Avro file: {type(broken).__name__}: {broken}") from broken
    if len(versions) != rows:
        raise TransferError(f"{rows} rows announced, {len(versions)} arrived")
    found = checksum(versions)
    if found != digest:
        raise TransferError(f"checksum {digest} announced, {found} found over {rows} rows")
    return Snapshot(versions, found)


def fetch_rows(client: httpx.Client, address: str, fetch: Fetch) -> Snapshot:
    """Ask the node at ``address`` for the rows of ``fetch``; raises TransferError or SourceNotReady."""
    body = {
        "operation": fetch.operation,
        "replication": fetch.replication,
        "ranges": [list(span) for span in fetch.ranges],
        "positions": {str(partition): offset for partition, offset in fetch.positions},
    }
    try:
        answer = client.post(f"http://{address}/v1/stream", json=body)
    except httpx.HTTPError as error:
        raise TransferError(f"{address} did not answer: {error}") from error
    if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
        raise SourceNotReady(f"{address}: {answer.text[:300]}")
    if answer.status_code != httpx.codes.OK:
        raise TransferError(f"{address} answered {answer.status_code}: {answer.text[:200]}")
    announced = answer.headers.get(ROWS_HEADER, "")
    if not announced.isdecimal():
        raise TransferError(f"{address} does not say how many rows there are")
    snapshot = unpack(answer.content, int(announced), answer.headers.get(CHECKSUM_HEADER, ""))
    if any(not inside(version.token, fetch.ranges) for version in snapshot.versions):
        raise TransferError(f"{address} sent rows of other ranges")
    return snapshot


def _is_ours(schema: Any) -> bool:
    return to_parsing_canonical_form(schema) == to_parsing_canonical_form(_SCHEMA)


def _record(version: Version) -> dict[str, Any]:
    return {
        "table": version.table,
        "token": version.token,
        "partition_key": version.partition_key,
        "clustering_key": list(version.clustering_key),
        "timestamp": version.timestamp,
        "value": version.value,
    }


def _version(record: Any) -> Version:
    return Version(
        record["table"],
        record["token"],
        record["partition_key"],
        tuple(record["clustering_key"]),
        record["timestamp"],
        record["value"],
    )

"""Fuzz targets for input from a disk, a cache or another node: stored records, Redis, HTTP requests, streamed rows."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from ringlog.cache.port import CacheUnavailable, StoredEpoch
from ringlog.cache.projection import PARTS, project
from ringlog.cache.reader import CachedReader, CacheNotReady
from ringlog.cache.redis_cache import decode_stored
from ringlog.cli.shared.connection import errors
from ringlog.client.data.peers import decode_status
from ringlog.client.participant.folder import ACKNOWLEDGED, IDENTITY, known_epochs_in
from ringlog.kernel.values import asdict
from ringlog.log.errors import LogDamaged
from ringlog.log.folding import follow
from ringlog.log.replicas.identity import IdentityRecord, load_record
from ringlog.node.checks import token_of_partition
from ringlog.node.identity import NodeFolder
from ringlog.node.registers.frames import HEAD_BYTES, JournalDamaged, Sealer
from ringlog.node.registers.journal import recover
from ringlog.node.registers.packed import encode_record
from ringlog.node.rows.memory_rows import MemoryRows
from ringlog.node.rows.pages import StreamBroken
from ringlog.node.rows.replica import RowFetch, RowReplica
from ringlog.node.servers.http_server import make_api
from ringlog.node.streams.pull import cells_of
from ringlog.node.streams.row_stream import rows_of
from ringlog.operator.errors import Refused
from ringlog.operator.history.log_lines import read_dump
from ringlog.protocol.nodes.errors import NodeFailed
from ringlog.runtime.clock import ManualClock
from ringlog.stack.artifacts import LIST, parse
from ringlog.stack.errors import StackError
from ringlog.stack.java import parse_major
from ringlog.stack.layout import StackLayout, read_settings, read_state
from ringlog.wire.data import RECORDS as DATA_RECORDS
from ringlog.wire.data import (
    Cells,
    JournalRecord,
    ReadReply,
    ReadRequest,
    ReadRowsRequest,
    RegisterCell,
    Rows,
    RowsRequest,
    RowVersion,
    StreamPage,
    StreamRequest,
    WriteRequest,
    key_of,
    pack,
    unpack,
)
from ringlog.wire.errors import WireError
from ringlog.wire.records import Cell as RowCell
from ringlog.wire.records import Mutation, encode_mutation
from ringlog_audit.sources.delta_log import decode_actions, decode_last
from ringlog_audit.sources.topics import AuditError
from ringlog_cdc.driver.recovery import bounds_of
from ringlog_cdc.errors import CdcError, ChainBroken
from ringlog_cdc.lake.delta import decode_told
from ringlog_cdc.lake.identity import identity_of
from ringlog_cdc.plan.source_partitioning import decode_offsets
from ringlog_cdc.plan.store import claim_of
from ringlog_cdc.stored_files import decode_file, encode_file
from tests.fuzz.mutate import of_json
from tests.fuzz.targets import Target
from tests.fuzz.world import START, story

# Files


@cache
def _folder() -> Path:
    """Return a folder of this process for the files that decoders read."""
    kept = tempfile.TemporaryDirectory(prefix="ringlog-fuzz-")
    _KEPT.append(kept)
    return Path(kept.name)


_KEPT: list[tempfile.TemporaryDirectory[str]] = []


def _file(name: str, data: bytes) -> Path:
    path = _folder() / name
    path.write_bytes(data)
    return path


def topic_record(data: bytes) -> None:
    """Read the stored topic and position of a replica."""
    found = load_record(_file("topic.json", data))
    assert found is not None
    assert found.position >= 0
    assert found.epoch >= 0
    json.dumps([found.state_id, found.cluster_id, found.cluster, found.kafka])


def node_folder(data: bytes) -> None:
    """Read the two files of a node's folder, given as two lines. The target ignores the stored port and opens none."""
    first, _, second = data.partition(b"\n")
    for name, content in ((IDENTITY, first), (ACKNOWLEDGED, second)):
        _file(name, content)
    folder = NodeFolder.__new__(NodeFolder)
    folder._folder = _folder()
    node, port = folder.stored_id(), folder.stored_port()
    cluster, epoch = folder.stored_acknowledgement()
    assert 0 <= port < 65_536
    assert folder.stored_start() >= 0
    json.dumps([node, cluster, epoch, *(one.state_id for one in known_epochs_in(_folder()))])


def dump(data: bytes) -> None:
    """Read and apply a dump file of ``ringlog log --dump``."""
    with errors.capture():
        for _ in follow(read_dump(_file("log.dump", data))):
            pass


def _dumps() -> tuple[bytes, ...]:
    lines = [
        json.dumps({"offset": place, "data": step.encoded.data.hex()}) for place, step in enumerate(story().steps[:4])
    ]
    return ("\n".join(lines).encode(), lines[0].encode())


def stack_settings(data: bytes) -> None:
    """Read the settings of a local stack."""
    _file("stack.json", data)
    layout = StackLayout(_folder())
    layout.settings.write_bytes(data)
    read_settings(layout)


def stack_state(data: bytes) -> None:
    """Read the last state stored by the stack's supervisor."""
    layout = StackLayout(_folder())
    layout.state.write_bytes(data)
    read_state(layout)


def jar_list(data: bytes) -> None:
    """Read the list of jars and a Java version."""
    text = data.decode("utf-8", "replace")
    parse_major(text)
    parse(text)


_SETTINGS = {"kafka_cluster_id": "x", "broker_port": 1, "controller_port": 2, "profile": "default", "request": 1}
_CHILD = {"pid": 5, "started": 6, "exit_code": None}
_STATE = {"supervisor_pid": 4, "request": 1, "problem": "", "broker": _CHILD, "redis": None}
_OFFSETS = b'v1\n{"batchWatermarkMs":0}\n{"m":{"0":5,"1":7}}'
_CHECKPOINT: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "claim": ({"cdc_partitions": 4, "cluster_id": "c", "writer": "w"}, claim_of),
    "lake": ({"cluster_id": "c", "writer": "w", "checkpoint": "1f", "root": "/lake", "tables": ""}, identity_of),
    "recovery": ({"bounds": {"0": 17, "3": 1}, "settled": {"0": 5}, "lasts": [[0, 1, 16], [3, -1, 0]]}, bounds_of),
    "context": ({"tables": {}}, dict),
    "image_starts": ({"0": 5}, dict),
}
"""Kind of a file of a checkpoint to an example, and the function that converts its content. Plans: ``plan``."""


def checkpoint_file(data: bytes) -> None:
    """Read a file of the checkpoint as the kind that it names, and encode its content to the same bytes."""
    named = [kind for kind in _CHECKPOINT if f'"file":"{kind}"'.encode() in data]
    kind = named[0] if named else "claim"
    content = decode_file(kind, data, kind, lambda content: (_CHECKPOINT[kind][1](content), content)[1])
    assert encode_file(kind, content) == data


def _json(*values: object) -> Callable[[], tuple[bytes, ...]]:
    return lambda: tuple(json.dumps(value).encode() for value in values)


# Cache


def cached(data: bytes) -> None:
    """Read the meta hash and the hash of each section, given as JSON, as from Redis."""
    try:
        meta, *parts = json.loads(data)
        sound = [meta, *parts] if len(parts) == len(PARTS) else []
        texts = all(isinstance(text, str) for table in sound for pair in table.items() for text in pair)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise CacheNotReady("unavailable", "a client of Redis gives hashes of texts") from error
    if not sound or not texts:
        raise CacheNotReady("unavailable", "a client of Redis gives hashes of texts")
    CachedReader(_Kept(meta, parts), lambda: START).read()


class _Kept:
    """A cache that contains these hashes."""

    def __init__(self, meta: dict[str, str], parts: list[dict[str, str]]) -> None:
        self._held = meta, parts

    def read(self) -> StoredEpoch | None:
        return decode_stored(*self._held)

    def apply(self, write: Any, confirmation: Any) -> Any:
        raise CacheUnavailable("it is only read here")

    def confirmed(self) -> None:
        raise CacheUnavailable("it is only read here")


def _caches() -> tuple[bytes, ...]:
    found = project(story().state)
    parts = [found[name] for name in PARTS]
    meta = {"cluster_id": story().state.cluster_id, "epoch": "7", "state_id": "s", "digest": "d", "offset": "9"}
    meta |= {"confirmed_at": str(START), "counts": " ".join(str(len(part)) for part in parts)}
    small: list[dict[str, str]] = [{} for _ in PARTS]
    return (
        json.dumps([meta, *parts]).encode(),
        json.dumps([meta | {"counts": " ".join("0" for _ in PARTS)}, *small]).encode(),
    )


# Node


@cache
def _node() -> tuple[RowReplica, FastAPI]:
    """Return a node with rows, and a state that makes it the source of a stream."""
    before = next(
        step.after
        for step in story().steps
        if any(op.stage == "write_both_read_old" and op.plan.sources for op in step.after.operations.values())
        and step.after.tables
    )
    operation = next(op for op in before.operations.values() if op.stage == "write_both_read_old")
    row_replica = RowReplica(operation.plan.sources[0].source)
    row_replica.adopt(before)
    row_replica.positions.update({0: 4})
    row_replica.caught_up = True
    for number in range(20):
        write = _write(f"k{number}")
        row_replica.admit(write, START + 10**8, encode_mutation(write))
    return row_replica, make_api(row_replica, "fuzz", ManualClock(START + 10**8))


def _write(key: str) -> Mutation:
    cells = (RowCell("v", bytes(8)),)
    at, place = START + 10**8, (0).to_bytes(4, "big")
    return Mutation(None, None, "ks", "t", at, None, "INSERT", (key.encode(),), (place,), cells)


def http(data: bytes) -> None:
    """Send an HTTP request. The first line is method and path, the other lines are the body.

    The status must be below 500, or 503 for a later retry.
    """
    head, _, body = data.partition(b"\n")
    method, _, path = head.decode("latin-1").partition(" ")
    status, answer = _LOOP.run_until_complete(_asked(_node()[1], method or "GET", path, body))
    assert status < 500 or status == 503, (status, answer[:300])


async def _asked(api: FastAPI, method: str, path: str, body: bytes) -> tuple[int, bytes]:
    """Send one request over ASGI."""
    plain, _, query = path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "path": plain,
        "raw_path": plain.encode("latin-1"),
        "query_string": query.encode("latin-1"),
        "root_path": "",
        "scheme": "http",
        "headers": [(b"content-type", b"application/json"), (b"host", b"localhost")],
        "server": ("node", 80),
        "client": ("other", 1),
    }
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await api(scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


_LOOP = asyncio.new_event_loop()


def _requests() -> tuple[bytes, ...]:
    row_replica, _ = _node()
    (operation,) = (op for op in row_replica.state.operations.values() if op.stage == "write_both_read_old")
    sources = [source for source in operation.plan.sources if source.source == row_replica.node]
    body = {
        "operation": operation.id,
        "replication": sources[0].replication,
        "ranges": [[source.start, source.end] for source in sources],
        "positions": {"0": 4},
    }
    paths = ("/v1/status", *(f"/v1/tables/ks.t/rows/{f'k{number}'.encode().hex()}" for number in range(6)))
    return (b"POST /v1/stream\n" + json.dumps(body).encode(), *(b"GET " + path.encode() for path in paths))


_FETCH = RowFetch("join-1", 7, "s", "simple:2", ((0, 0),), ((0, 3),))


def stream(data: bytes) -> None:
    """Decode a page of rows of another node. The first byte is the announced number of rows."""
    rows = rows_of((data[1:], data[0] if data else 0), None, _FETCH)
    assert len(rows) == data[0]
    assert rows_of((pack(rows), len(rows)), None, _FETCH) == rows


def _streams() -> tuple[bytes, ...]:
    store = MemoryRows()
    some = []
    for number in range(4):
        key = b"k%d" % number
        store.add(RowVersion("a.t", token_of_partition(key), key, (b"c", None), number, b"v" * number))
        rows = Rows(tuple(store.listed(((0, 0),))), (("a.t", "id"),))
        some.append(bytes((len(rows),)) + pack(rows))
    return tuple(some)


def cells(data: bytes) -> None:
    """Decode a page of cells of another node."""
    found = cells_of((data[1:], data[0] if data else 0), None)
    assert cells_of((pack(found), len(found)), None) == found


def _cells() -> tuple[bytes, ...]:
    some = {key_of("ks", b"k%d" % number): RegisterCell(number, b"v" * number) for number in range(4)}
    return (bytes((len(some),)) + pack(Cells(tuple(sorted(some.items())), (("ks", 3),))),)


def journal(data: bytes) -> None:
    """Recover a journal damaged by a crash or a disk error. A second recovery must return the same data."""
    folder = _folder() / "cells"
    folder.mkdir(exist_ok=True)
    path = folder / "cells-00000001.journal"
    path.write_bytes(data)
    image, number, size = recover(folder)
    assert (number, size) == (1, path.stat().st_size)
    assert recover(folder) == (image, number, size)


def _journals() -> tuple[bytes, ...]:
    key = key_of("ks", b"k")
    records = [
        JournalRecord(epoch=3, cells=((key, RegisterCell(1, b"v")),)),
        JournalRecord(dropped=(key,), ended=("join-1",)),
    ]
    sealer = Sealer(bytes(16))
    whole = sealer.head()
    for record in records:
        whole += sealer.frame(encode_record(record), HEAD_BYTES, len(whole))
    return (whole, sealer.head(), sealer.head()[:4])


def message(data: bytes) -> None:
    """Decode a message of the data path. The first byte selects its kind."""
    kind = DATA_RECORDS[(data[0] if data else 0) % len(DATA_RECORDS)]
    found = unpack(kind, data[1:])
    assert unpack(kind, pack(found)) == found


def _messages() -> tuple[bytes, ...]:
    key, cell, cluster = key_of("ks", b"k"), RegisterCell(1, b"v"), "00000001-0000-4000-8000-000000000002"
    version = RowVersion("a.t", 1, b"k", (b"c", None), 1, b"v")
    some = (
        WriteRequest(cluster, "n", 3, "s", key, cell),
        ReadRequest(cluster, "n", 3, "", key, True),
        ReadReply("n", 3, cell=cell, digest=b"d"),
        ReadRowsRequest(cluster, "n", 3, "", "a.t", cluster, b"k", ((0, 5), (2, 1)), True, False),
        StreamRequest(cluster, "n", 3, "", "t", "join-1", "simple:2", ((1, 2),), key),
        RowsRequest(cluster, "n", 3, "", "t", "join-1", "simple:2", ((1, 2),), ((0, 5),), version),
        StreamPage("n", 3, body=b"b", crc=1, count=2),
    )
    return tuple(bytes((DATA_RECORDS.index(type(one)),)) + pack(one) for one in some)


TARGETS = (
    Target(
        "topic_records",
        ("log.replicas.identity.load_record", "log.replicas.identity.record_from_json"),
        topic_record,
        (LogDamaged,),
        _json({"topic_id": "abc", "position": 7}, asdict(IdentityRecord("a", 7, 3, "s", "c", "n", "k"))),
        of_json,
    ),
    Target(
        "node_folders",
        ("client.participant.folder._read",),
        node_folder,
        (NodeFailed,),
        lambda: (
            b'{"id": "00000001-0000-4000-8000-000000000002", "port": 70}\n'
            b'{"cluster_id": "00000001-0000-4000-8000-000000000003", "epoch": 9}',
            b'{"id": "00000001-0000-4000-8000-000000000002", "port": 70, "data_port": 71, "start": 3}\n'
            b'{"cluster_id": "00000001-0000-4000-8000-000000000003", "epoch": 9, '
            b'"state_id": "00000001-0000-4000-8000-000000000004"}',
            b"{}\n{}",
        ),
        of_json,
    ),
    Target("dumps", ("operator.history.log_lines.read_dump",), dump, (Refused,), _dumps, of_json),
    Target("stack_settings", ("stack.layout.read_settings",), stack_settings, (StackError,), _json(_SETTINGS), of_json),
    Target("stack_states", ("stack.layout.read_state",), stack_state, (), _json(_STATE), of_json),
    Target(
        "jar_lists",
        ("stack.artifacts.parse", "stack.java.parse_major"),
        jar_list,
        (StackError,),
        lambda: (
            b"".join(LIST.read_bytes().splitlines(keepends=True)[:8]),
            b'openjdk version "21.0.1"',
            b'version "1.8.0"',
        ),
    ),
    Target(
        "cached_parts",
        ("cache.redis_cache.decode_stored", "cache.reader.CachedReader.read"),
        cached,
        (CacheNotReady,),
        _caches,
        of_json,
    ),
    Target("http_requests", (), http, (), _requests, of_json),
    Target("streamed_rows", (), stream, (StreamBroken, WireError), _streams),
    Target(
        "status_pages",
        ("client.data.peers.decode_status",),
        lambda data: decode_status(data, "n", "c"),
        (ValueError,),
        _json({"node": "n", "cluster_id": "c", "data_port": 7402}, {"node": "n", "cluster_id": "", "data_port": 1}),
        of_json,
    ),
    Target("streamed_cells", (), cells, (StreamBroken, WireError), _cells),
    Target("journals", (), journal, (JournalDamaged,), _journals),
    Target("data_messages", ("wire.data.unpack",), message, (WireError,), _messages),
    Target(
        "checkpoint_files",
        ("ringlog_cdc.stored_files.decode_file",),
        checkpoint_file,
        (CdcError,),
        lambda: tuple(encode_file(kind, content) for kind, (content, _) in _CHECKPOINT.items()),
        of_json,
    ),
    Target(
        "lake_commits",
        ("ringlog_cdc.lake.delta.decode_told",),
        decode_told,
        (),
        _json({"writer": "w", "cdc_from": {"0": 1}}),
        of_json,
    ),
    Target(
        "delta_commits",
        ("ringlog_audit.sources.delta_log.decode_actions",),
        decode_actions,
        (AuditError,),
        _json({"protocol": {"minReaderVersion": 1}}, {"add": {"path": "a", "partitionValues": {"g": "1"}}}),
        of_json,
    ),
    Target(
        "delta_checkpoints",
        ("ringlog_audit.sources.delta_log.decode_last",),
        decode_last,
        (AuditError,),
        _json({"version": 10, "parts": 2}),
        of_json,
    ),
    Target(
        "spark_offsets",
        ("ringlog_cdc.plan.source_partitioning.decode_offsets",),
        lambda data: decode_offsets(data, "m"),
        (ChainBroken,),
        lambda: (_OFFSETS,),
        of_json,
    ),
)

"""How the audit reads the metadata log: it requires all entries from the initial entry to the published epoch."""

from __future__ import annotations

from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlog.kernel.changes import EPOCHS
from ringlog.kernel.commands.cdc.verdicts import SettleVerdicts
from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.wire.avro.codec import HEADER_BYTES, decode
from ringlog.wire.errors import WireError
from ringlog.wire.records import CDC_ROW, MUTATION, encode_mutation
from ringlog_audit.sources.heads import CDC_TAILS, MUTATION_TAILS, RecordHead, components_at
from ringlog_audit.sources.topics import AuditError
from ringlog_audit.verify import ROW_FIELDS, Expected, audit
from ringlog_audit.writes.writes import HEAD_FIELDS
from ringlog_schemas import current
from tests.audit.memory_topics import MemoryCluster
from tests.audit.test_lives import random_cluster
from tests.node.test_partial_decode import mutations


@pytest.fixture
def cluster() -> MemoryCluster:
    return random_cluster(1)


def is_right(cluster: MemoryCluster, *archived: bytes) -> bool:
    return audit(cluster.topics, Expected(archived=archived), lambda _: None).ok


def test_a_truncated_log_needs_its_archive(cluster: MemoryCluster) -> None:
    log = cluster.topics.all["metadata"]
    gone, cluster.topics.all["metadata"] = [record.value() or b"" for record in log[:4]], log[4:]
    with pytest.raises(AuditError, match="--archive"):
        is_right(cluster)
    assert is_right(cluster, *gone)


def test_unreadable_stale_and_later_entries_are_ignored(cluster: MemoryCluster) -> None:
    first = cluster.topics.all["metadata"][0]
    cluster.topics.add("metadata", None, b"no entry")
    cluster.topics.add("metadata", None, first.value())
    cluster.enter(Noop(), SettleVerdicts(cluster.state.settled.until + 1))
    assert is_right(cluster), "the published epoch is behind the log"


def test_without_a_published_epoch_there_is_no_audit(cluster: MemoryCluster) -> None:
    del cluster.topics.all[EPOCHS]
    with pytest.raises(AuditError, match="start the change publisher"):
        is_right(cluster)


def test_the_audit_distinguishes_pending_from_lost_writes(cluster: MemoryCluster) -> None:
    kept = cluster.topics.all["cdc"]
    lost = kept.pop()
    kept[:] = [record for record in kept if record.data != lost.data]
    report = audit(cluster.topics, Expected(), lambda _: None)
    assert {check.name for check in report.checks if not check.ok} == {"carried_out"}, (
        "the audit reports that no writer has processed these records"
    )
    assert report.counts["not_carried_out"] == 1


# The audit reads records with a fast path. It must return the values of the decoder for any bytes.


def parsed(full_name: str) -> Any:
    return fastavro.parse_schema(dict(current()[full_name].json), _write_hint=False)


HEAD = RecordHead(parsed(MUTATION), MUTATION_TAILS, HEAD_FIELDS)


@given(mutations)
def test_head_and_clustering_key_are_those_of_the_decoder(mutation: Any) -> None:
    value = encode_mutation(mutation)
    fields, tail = HEAD.read(value, HEADER_BYTES)
    _, record = decode(value)
    assert dict(zip(HEAD_FIELDS, fields, strict=True)) == {name: record[name] for name in HEAD_FIELDS}
    assert components_at(value, tail)[0] == record["clustering_key"]


@given(mutations, st.data())
def test_damaged_bytes_are_never_read_as_something_else(mutation: Any, data: st.DataObject) -> None:
    value = bytearray(encode_mutation(mutation))
    value[data.draw(st.integers(HEADER_BYTES, len(value) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        _, record = decode(bytes(value))
    except WireError:
        return
    try:
        fields, _ = HEAD.read(bytes(value), HEADER_BYTES)
    except (IndexError, ValueError):
        return
    assert dict(zip(HEAD_FIELDS, fields, strict=True)) == {name: record[name] for name in HEAD_FIELDS}


def test_the_fast_path_reads_only_current_schemas() -> None:
    assert HEAD.usable
    assert RecordHead(parsed(CDC_ROW), CDC_TAILS, ROW_FIELDS).usable
    assert not RecordHead(parsed(CDC_ROW), MUTATION_TAILS, ROW_FIELDS).usable
    assert not RecordHead(parsed(MUTATION), MUTATION_TAILS, ("no_such_field",)).usable


def test_the_fast_path_skips_arrays_of_several_blocks() -> None:
    one = b"\x02\x02\x02k\x00"
    assert components_at(one, 0) == ([b"k"], len(one))
    for several in (b"\x02\x00\x02\x00\x00", b"\x01\x02\x00\x00"):
        with pytest.raises(ValueError, match="array"):
            components_at(several, 0)

"""The audit agrees with the job about records that producers must not write, and about those that look like it."""

from __future__ import annotations

from collections import Counter
from io import StringIO
from random import Random

import pytest
from rich.console import Console

from ringlog.kernel.commands.cdc.verdicts import SettleVerdicts
from ringlog.kernel.commands.schema.tables import CreateTable
from ringlog.kernel.values import CdcOptions, Column
from ringlog.wire.records import Cell, Mutation, decode_dead_letter, encode_mutation
from ringlog_audit.cli import show_audit
from ringlog_audit.report import AuditCheck, AuditReport
from ringlog_audit.verify import Expected, audit
from tests.audit.memory_topics import MemoryCluster
from tests.audit.test_lives import created
from tests.kernel.entries import uuid

START = 1_800_000_000_000_000
NOW = START + 10**6
DAY_US = 86_400 * 10**6


def write(**changes: object) -> Mutation:
    fields: dict[str, object] = {
        "mutation_id": None,
        "cluster_id": None,
        "keyspace": "ks",
        "table": "t",
        "timestamp": NOW,
        "ttl": None,
        "operation": "INSERT",
        "partition_key": ((5).to_bytes(8, "big"),),
        "clustering_key": (b"line",),
        "cells": (Cell("v", (7).to_bytes(4, "big")), Cell("w", b"text")),
    }
    return Mutation(**{**fields, **changes})  # type: ignore[arg-type]


VALID = encode_mutation(write())
UNREADABLE = (
    b"",
    b"garbage",
    b'{"table": "t"}',
    VALID[:9],
    VALID[:-1],
    VALID[:40],
    VALID + b"\0\0",
    VALID + b"!!",
    VALID + VALID,
)
LETTERS: tuple[tuple[str, Mutation], ...] = (
    ("timestamp_in_future", write(timestamp=NOW + DAY_US)),
    ("timestamp_in_future", write(timestamp=2**63 - 1)),
    ("no_generation", write(timestamp=NOW - DAY_US)),
    ("no_generation", write(timestamp=0)),
    ("null_partition_key", write(partition_key=(None,))),
    ("bad_key", write(clustering_key=(None,))),
    ("bad_key_type", write(partition_key=((5).to_bytes(4, "big"),))),
    ("unknown_column", write(cells=(Cell("gone", b"1"),))),
    ("unknown_table", write(table="gone")),
    ("bad_key_type", write(clustering_key=(b"\xff\xfe",))),
    ("bad_value_type", write(cells=(Cell("v", b"abc"), Cell("w", b"\xff")))),
)
ROWS = (write(),)


@pytest.fixture
def cluster() -> MemoryCluster:
    made = MemoryCluster((START,), 10**7)
    created(made)
    columns = (Column("k", "bigint"), Column("c", "text"), Column("v", "int"), Column("w", "text"))
    table = CreateTable("ks", "t", uuid(9, space=6), columns, ("k",), ("c",), CdcOptions(True))
    made.enter(table, SettleVerdicts(START + 1))
    return made


def audited(cluster: MemoryCluster) -> Counter[str]:
    """Process all records and audit the result. Return the count of letters by reason."""
    cluster.enter(SettleVerdicts(NOW + 2 * DAY_US))
    cluster.carry_out(10_000)
    cluster.publish()
    report = audit(cluster.topics, Expected(), lambda _: None)
    assert report.ok, [f"{check.name}: {check.examples[:3]}" for check in report.checks if not check.ok]
    letters = cluster.topics.records("dead-letters")
    return Counter(decode_dead_letter(letter.value() or b"").reason for letter in letters)


def test_bad_records_are_letters_or_rows(cluster: MemoryCluster) -> None:
    repeated = encode_mutation(write(mutation_id=uuid(77)))
    for record in (*UNREADABLE, *(encode_mutation(one) for _, one in LETTERS), *map(encode_mutation, ROWS)):
        cluster.write(record, NOW)
    for _ in range(2):
        cluster.write(repeated, NOW)
    assert audited(cluster) == Counter([reason for reason, _ in LETTERS] + ["unreadable"] * len(UNREADABLE))


def test_damaged_records(cluster: MemoryCluster) -> None:
    chance = Random(5)
    whole = encode_mutation(write(ttl=70_000, mutation_id=uuid(78), epoch=3))
    for number in range(600):
        data = bytearray((VALID, whole)[number % 2])
        for _ in range(chance.choice((1, 1, 2))):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        cluster.write(bytes(data), NOW)
    letters = audited(cluster)
    assert letters["unreadable"] > 100
    assert letters.total() < 600, "some of them are rows"


def test_a_letter_for_a_readable_record_is_a_failure(cluster: MemoryCluster) -> None:
    cluster.write(VALID + b"\0", NOW)
    audited(cluster)
    (record,) = cluster.topics.all["mutations"]
    cluster.topics.all["mutations"] = [type(record)(record.place, (record.key(), VALID), record.timestamp()[1])]
    assert not audit(cluster.topics, Expected(), lambda _: None).ok


def test_the_printed_audit_counts_the_failures_that_it_does_not_list() -> None:
    check = AuditCheck("carried_out", "the job has processed every mutation")
    for number in range(12):
        check.fail(f"write 0/{number}")
    console = Console(record=True, file=StringIO())
    show_audit(console, AuditReport(checks=[check]))
    assert [line.strip() for line in console.export_text().splitlines()[-2:]] == ["write 0/9", "and 2 more"]

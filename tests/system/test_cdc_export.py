"""The export to Kafka topics on a real broker: each change once, in the order of its key, over kills and switches."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.system.cdc_log import KEYS, CdcLog, Story
from tests.system.cdc_world import until
from tests.system.test_cdc_reader import alive, environment, in_order, numbers

from ringlog.client.cdc import CdcReader, export
from ringlog.client.cdc.errors import BadProgress, ExportReplaced, ExportTooLarge, UnknownColumn
from ringlog.client.cdc.export import CdcExport, ExportFigures, ExportFormat, ExportSettings
from ringlog.kernel.values import replace
from ringlog.log.errors import LogUnavailable, TopicMissing
from ringlog.log.kafka.topic_state import ends_of
from ringlog.log.kafka.topics import admin_client
from ringlog.runtime.kafka.config import QUIET
from ringlog.wire.records import Cell
from ringlog_audit.sources.topics import records

pytestmark = pytest.mark.system

ROW_DELETE, PARTITION_DELETE = 3, 4


class Killed(BaseException):
    """The process dies here."""


class DiesBeforeCommit(Producer):
    """A producer whose process dies before its second commit: the transaction stays open."""

    commits = 0

    def commit_transaction(self, *_: Any) -> None:
        self.flush()
        DiesBeforeCommit.commits += 1
        if DiesBeforeCommit.commits == 2:
            raise Killed
        super().commit_transaction()

    def abort_transaction(self, *_: Any) -> None:
        """Do nothing: a dead process aborts nothing."""


@pytest.fixture
def story(log: CdcLog) -> Story:
    return Story(log)


@pytest.fixture
def topic(cluster_name: str) -> str:
    return f"{cluster_name}-out"


def settings(log: CdcLog, topic: str, **changes: Any) -> ExportSettings:
    made = ExportSettings(
        log.world.bootstrap, log.world.cluster, "one", ExportFormat.DEBEZIUM, topic, partitions=3, until_end=True
    )
    return replace(made, **changes)


def run(found: ExportSettings) -> ExportFigures:
    return CdcExport(found, lambda _: None).run()


def read(log: CdcLog, topic: str) -> list[tuple[int, Any, Any]]:
    """Return (partition, key, value) of the committed records."""

    def text(data: bytes | None) -> Any:
        return None if data is None else json.loads(data)

    return [(one.partition() or 0, text(one.key()), text(one.value())) for one in records(log.world.bootstrap, topic)]


def exported(log: CdcLog, topic: str) -> list[int]:
    """Return the numbers of the exported rows by partition and offset."""
    return [value["after"]["number"] for _, _, value in read(log, topic) if value]


def check_each_once(story: Story, log: CdcLog, topic: str) -> None:
    """Check that the topic has each write of the story once, and the writes of each key in the order of a reader."""
    found = exported(log, topic)
    assert sorted(found) == list(range(story.numbers))
    with CdcReader(log.world.bootstrap, log.world.cluster, until_end=True) as reader:
        changes = list(reader)
    assert in_order(changes)
    expected: dict[str, list[int]] = {}
    for change in changes:
        expected.setdefault(change.rows[0].key["customer"], []).append(numbers([change])[0])
    partitions: dict[str, set[int]] = {}
    ordered: dict[str, list[int]] = {}
    for partition, key, _ in read(log, topic):
        partitions.setdefault(key["customer"], set()).add(partition)
        ordered.setdefault(key["customer"], []).append(key["number"])
    assert ordered == expected
    assert {len(found) for found in partitions.values()} == {1}


def test_records_and_position(story: Story, log: CdcLog, topic: str) -> None:
    """A worked example: an insert, the delete of its row, and the delete of its partition."""
    story.join(0)
    insert, row_delete, partition_delete = (replace(row, partition_key=(b"c",)) for row in story.rows(0, 3))
    gone: dict[str, Any] = {"clustering_key": insert.clustering_key, "cells": (), "deleted": ()}
    row_delete = replace(row_delete, operation=ROW_DELETE, **gone)
    gone["clustering_key"] = ()
    partition_delete = replace(partition_delete, operation=PARTITION_DELETE, **gone)
    stream: dict[str, Any] = {"stream_id": insert.stream_id}
    log.publish()
    log.write([insert, replace(row_delete, **stream), replace(partition_delete, **stream)])
    figures = run(settings(log, topic, partitions=16))
    assert (figures.changes, figures.records, figures.behind) == (3, 4, 0)
    found = read(log, topic)
    key = {"customer": "c", "number": 0}
    assert [one for _, one, _ in found] == [key, key, key, {"customer": "c"}]
    assert len({partition for partition, _, _ in found}) == 1
    assert [value and value["op"] for _, _, value in found] == ["c", "d", None, "d"]
    assert found[0][2]["after"] == {**key, "note": None, "amount": 7}
    assert (found[1][2]["before"], found[1][2]["after"]) == (key, None)
    assert run(settings(log, topic)).changes == 0
    log.write([replace(story.rows(0, 1)[0], partition_key=(b"c",), **stream)])
    assert run(settings(log, topic, has_tombstones=False)).changes == 1
    assert len(read(log, topic)) == 5
    with pytest.raises(BadProgress, match="tables"):
        run(settings(log, topic, tables=("shop.orders",)))
    assert run(settings(log, topic, name="two", has_tombstones=False)).records == 4


def test_a_topic_for_each_table_and_chosen_columns(story: Story, log: CdcLog, topic: str) -> None:
    story.join(0)
    rows = story.rows(0, 4)
    log.publish()
    log.write([replace(rows[0], cells=(*rows[0].cells, Cell("secret", b"x"))), *rows[1:]])
    wanted = settings(log, "", topic_prefix=topic, form=ExportFormat.CLOUDEVENTS, tables=("shop.orders",))
    run(replace(wanted, columns=("shop.orders.note",)))
    found = list(records(log.world.bootstrap, f"{topic}.shop.orders"))
    assert len(found) == 4
    assert found[0].headers() == [("content-type", b"application/cloudevents+json; charset=UTF-8")]
    for message in found:
        event = json.loads(message.value() or b"")
        assert event["data"]["key"] == json.loads(message.key() or b"")
        assert event["subject"] == "shop.orders"
        assert (event["data"]["values"], event["data"]["deleted"]) == ({}, ["note"])
        assert "undecoded" not in event["data"]
    # The position advances over the changes of other tables.
    log.world.table("late")
    passed = replace(wanted, name="late", tables=("shop.late",))
    assert run(passed).changes == 0
    assert (
        f"{topic}.shop.late"
        not in AdminClient({**QUIET, "bootstrap.servers": log.world.bootstrap}).list_topics().topics
    )
    assert CdcExport(passed, lambda _: None).load() is not None
    for wrong in ("shop.orders.nothing", "note", "shop.nothing.note"):
        with pytest.raises(UnknownColumn):
            run(replace(wanted, name="two", columns=(wrong,)))


def test_a_reader_with_chosen_columns_has_the_whole_raw_row(story: Story, log: CdcLog) -> None:
    story.join(0)
    (row,) = story.rows(0, 1)
    log.publish()
    log.write([replace(row, cells=(*row.cells, Cell("secret", b"x")))])
    where = (log.world.bootstrap, log.world.cluster)
    with CdcReader(*where, columns=["shop.orders.amount"], until_end=True) as reader:
        (change,) = reader
    (found,) = change.rows
    assert (dict(found.values), found.deleted, dict(found.undecoded)) == ({"amount": 7}, (), {})
    assert found.key == {"customer": "customer-0", "number": 0}
    assert change.raw[0].cells[1] == Cell("secret", b"x")


def test_a_kill_inside_a_transaction(story: Story, log: CdcLog, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The open transaction has no effect: its successor aborts it and exports its changes."""
    story.play()
    DiesBeforeCommit.commits = 0
    with monkeypatch.context() as patched:
        patched.setattr(export, "Producer", DiesBeforeCommit)
        with pytest.raises(Killed):
            run(settings(log, topic, commit_every=20))
    assert len(exported(log, topic)) == 20
    assert run(settings(log, topic, commit_every=20)).changes == story.numbers - 20
    check_each_once(story, log, topic)


def test_a_killed_process_continues(story: Story, log: CdcLog, topic: str) -> None:
    """SIGKILL at several points, SIGTERM, and two generation switches: each change once, in the order of its key."""
    story.play()
    for stopper in (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM):
        before = end(log, topic)
        with exporting(log, topic) as process:
            until(lambda at=before: end(log, topic) > at, "more records", lambda: alive(process))  # type: ignore[misc]
            process.send_signal(stopper)
            assert process.wait(60) == (-signal.SIGKILL if stopper == signal.SIGKILL else 0)
        story.write(story.rows(2, 30))
    run(settings(log, topic, name="export"))
    check_each_once(story, log, topic)


def test_a_second_process_fences_the_first(story: Story, log: CdcLog, topic: str) -> None:
    story.play()
    taken: list[ExportFigures] = []

    class Overtaken(CdcExport):
        def save(self, text: str) -> None:
            if not taken:
                taken.append(run(settings(log, topic)))
            super().save(text)

    with pytest.raises(ExportReplaced):
        Overtaken(settings(log, topic, commit_every=20), lambda _: None).run()
    assert taken[0].changes == story.numbers
    check_each_once(story, log, topic)


def test_a_record_that_is_too_large(story: Story, log: CdcLog, topic: str) -> None:
    admin = AdminClient({**QUIET, "bootstrap.servers": log.world.bootstrap})
    made = admin.create_topics([NewTopic(topic, 1, config={"max.message.bytes": "4000"})])
    made[topic].result(30)
    story.join(0)
    rows = story.rows(0, 3)
    log.publish()
    log.write([rows[0], replace(rows[1], cells=(Cell("note", b"x" * 3_000),), deleted=()), rows[2]])
    with pytest.raises(ExportTooLarge, match=r"needs \d+ bytes, but .* permits 4000"):
        run(settings(log, topic))
    figures = run(settings(log, topic, skips_oversized=True))
    assert (figures.changes, figures.records, figures.oversized) == (3, 2, 1)
    assert sorted(exported(log, topic)) == [0, 2]


def test_the_position_is_found_behind_those_of_other_exports(
    story: Story, log: CdcLog, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "CHUNK", 2)
    story.join(0)
    story.write(story.rows(0, KEYS))
    log.publish()
    run(settings(log, topic, name="first"))
    run(settings(log, topic, name="second", commit_every=1))
    assert run(settings(log, topic, name="first")).changes == 0
    assert run(settings(log, topic, name="third")).changes == KEYS


def end(log: CdcLog, topic: str) -> int:
    """Return the sum of the topic's end offsets; 0 without a topic."""
    with suppress(TopicMissing, LogUnavailable):
        return sum(ends_of(admin_client(log.world.bootstrap), topic).values())
    return 0


@contextmanager
def exporting(log: CdcLog, topic: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``ringlog cdc export``."""
    command = [sys.executable, "-m", "ringlog.cli", "cdc", "export", "--topic", topic, "--commit-every", "7"]
    command += ["--bootstrap", log.world.bootstrap, "--cluster", log.world.cluster, "--json"]
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()

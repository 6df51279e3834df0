"""All readers of the metadata log start from a snapshot and return the same as a reader that saw the whole log.

One cluster on a real broker has agents, the CDC job and an archive. The test alters tables, takes a snapshot and
truncates the log. Then it starts each reader again and compares it with one from before. The validation watermark has
advanced before ``orders`` is altered, so the state keeps its previous version. Only the log has the previous version of
``early``.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.ending import stopping
from tests.system.agents_world import AgentsWorld
from tests.system.agents_world import until as until_found
from tests.system.cdc_world import HOUR_US, TOKENS, World, now_us, until, write
from tests.system.test_cdc_job import start
from tests.system.test_change_topics import compacted, without_epoch
from tests.system.test_truncation import at_one_epoch, known_snapshot
from typer.testing import CliRunner

from ringlog.cli.main import app
from ringlog.client.cdc import CdcChange, CdcReader
from ringlog.client.cdc.output import change_json
from ringlog.client.client import Client
from ringlog.client.direct import DirectAuthor
from ringlog.client.watch import MetadataWatch
from ringlog.kernel.changes import project
from ringlog.kernel.commands.cdc.verdicts import SettleVerdicts
from ringlog.kernel.commands.schema.tables import AlterTable
from ringlog.kernel.encoding.encoder import digest
from ringlog.kernel.values import Column
from ringlog.log.kafka.adapter import KafkaLog
from ringlog.stack import StackInfo
from ringlog.wire.records import StoredSnapshot
from ringlog_cdc import read_cdc

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.slow]

ROLES = ("keeper", "publisher", "validator")
WRITES = 60


class Readers:
    """The cluster; its writes are numbered."""

    def __init__(self, stack: StackInfo, cluster: str, folder: Path, opened: ExitStack) -> None:
        self.stack, self.cluster, self.folder = stack, cluster, folder
        self.place = stack.bootstrap_servers, cluster
        self.agents = AgentsWorld(stack, cluster, folder)
        opened.callback(self.agents.close)
        self.archive = str(folder / "archive")
        self.agents.environment["RINGLOG_ARCHIVE"] = self.archive
        replica = self.agents.client.replica
        log = opened.enter_context(closing(KafkaLog(*self.place)))
        self.world = World(*self.place, replica, DirectAuthor(log, replica, "tester"))
        self.numbers = 0

    def written(self, table: str = "orders") -> None:
        """Send some writes and wait for a row of each."""
        first, self.numbers = self.numbers, self.numbers + WRITES
        numbers = range(first, self.numbers)
        self.world.send(write(f"customer-{number % 7}", number, table=table) for number in numbers)
        until(lambda: len(self.world.rows()) == self.numbers, "a row for each write")

    def typed(self, *words: str, status: int = 0) -> list[Any]:
        """Return the output lines of JSON."""
        where = ("--bootstrap", self.place[0], "--cluster", self.place[1], "--json")
        ended = CliRunner().invoke(app, [*words, *where])
        assert ended.exit_code == status, (words, ended.output)
        return [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]

    def tail(self, table: str) -> list[Any]:
        found = self.typed("cdc", "tail", "--table", table, "--until-end")
        return sorted(found, key=lambda line: (line["partition"], line["offset"]))

    def applied(self, name: str) -> list[Any]:
        """Return the rows of a new copy of the table."""
        path = self.folder / name
        self.typed("cdc", "apply", "--to", str(path), "--table", "shop.orders", "--until-end")
        with closing(sqlite3.connect(path)) as connection:
            return sorted(connection.execute('SELECT customer, number, amount FROM "shop.orders"').fetchall())

    def queried(self, spark: SparkSession, table: str, start: str = "earliest") -> list[Any]:
        """Return the rows of a batch query of a table."""
        columns = ("number", "customer", "amount", "`cdc$generation`", "`cdc$timestamp`")
        return sorted(read_cdc(spark, *self.place, table, start=start).select(*columns).collect())

    def begin_offset(self) -> int:
        with closing(KafkaLog(*self.place)) as log:
            return log.begin_offset()


@pytest.fixture
def readers(stack: StackInfo, cluster_name: str, tmp_path: Path) -> Iterator[Readers]:
    with ExitStack() as opened:
        made = Readers(stack, cluster_name, tmp_path, opened)
        made.agents.start_all(*ROLES)
        made.world.join("n1", TOKENS, now_us() - HOUR_US)
        made.world.schema()
        made.world.table("early")
        yield made


def test_a_late_reader_matches_an_early_one(readers: Readers, spark: SparkSession, tmp_path: Path) -> None:
    place, checkpoint = readers.place, tmp_path / "checkpoint"
    with MetadataWatch(*place) as watch, closing(CdcReader(*place, tables=["shop.orders"])) as lived:
        with stopping(start(readers.world, checkpoint, spark)):
            readers.written("early")
            readers.world.apply(AlterTable("shop", "early", (Column("more", "int"),)))
            readers.world.apply(SettleVerdicts(max(now_us(), readers.world.state.settled.until + 1)))
            readers.written()
            readers.world.apply(AlterTable("shop", "orders", (Column("more", "int"),)))
            head = known_snapshot(readers.agents)
            check_the_whole_log(readers, head, spark)
            before = readers.tail("shop.orders")
            truncate(readers, head)
            readers.written()
        with stopping(start(readers.world, checkpoint, spark)) as again:
            assert again._replica.started_from.epoch == head.epoch
            readers.written()
        seen = changes(lived)
        with Client(*place, "late") as client, MetadataWatch(*place) as late:
            assert client.replica.started_from.epoch == late.replica.started_from.epoch == head.epoch
            states = at_one_epoch(watch, client, late, readers.agents.client)
            assert len({digest(state) for state in states}) == 1
    with closing(CdcReader(*place, tables=["shop.orders"])) as fresh:
        assert changes(fresh) == seen
    assert Counter(len(change.schema.columns) for change in seen if change.schema) == {4: WRITES, 5: 2 * WRITES}
    after = readers.tail("shop.orders")
    assert [line for line in after if line in before] == before
    assert after == [json.loads(json.dumps(change_json(change))) for change in seen]
    assert sorted(row[1] for row in readers.applied("copy")) == list(range(WRITES, 4 * WRITES))
    assert [row[0] for row in readers.queried(spark, "shop.orders")] == list(range(WRITES, 4 * WRITES))
    check_kept_versions(readers, spark)
    state = at_one_epoch(readers.agents.client)[0]
    until_found(lambda: without_epoch(compacted(readers.agents)) == without_epoch(project(state)), "what is published")


def changes(reader: CdcReader) -> list[CdcChange]:
    """Return all changes of ``orders`` in topic order, because each reader interleaves partitions differently."""
    return sorted(islice(reader, 3 * WRITES), key=lambda change: change.place)


def check_the_whole_log(readers: Readers, head: StoredSnapshot, spark: SparkSession) -> None:
    """The older entries still exist: some readers start behind them, others read them."""
    with closing(CdcReader(*readers.place, start="now")) as reader:
        assert reader._schema.table_versions.began == head.epoch
    (now,) = readers.typed("log", "at", str(head.epoch))
    assert now["digest"] == head.digest
    assert readers.typed("log", "at", "2") == readers.typed("log", "at", "2", "--archive", readers.archive)
    assert readers.typed("log", "--from", "5")[0]["epoch"] == 5
    assert [line["rows"][0]["key"]["number"] for line in readers.tail("shop.early")] != []
    assert [row[0] for row in readers.queried(spark, "shop.early")] == list(range(WRITES))
    assert readers.typed("audit")[0]["ok"]


def truncate(readers: Readers, head: StoredSnapshot) -> None:
    """Truncate the log to the snapshot's entry and restart all agents."""
    readers.typed("log", "truncate", "--below", str(head.epoch))
    until_found(lambda: readers.begin_offset() == head.position - 1, "the broker to delete the records")
    for role in ROLES:
        for agent in readers.agents.alive(role):
            agent.kill()
    readers.agents.start_all(*ROLES)


def check_kept_versions(readers: Readers, spark: SparkSession) -> None:
    """The snapshot has the versions of an altered table, which decode its early rows."""
    assert len(readers.tail("shop.early")) == WRITES
    assert [row[0] for row in readers.queried(spark, "shop.early")] == list(range(WRITES))
    readers.typed("audit", status=1)
    assert readers.typed("audit", "--archive", readers.archive)[0]["ok"]

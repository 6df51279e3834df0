"""CDC rows are retained for the period of their tables: the topic's retention is increased and never decreased."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.system.cdc_world import World, founded, now_us, until
from typer.testing import CliRunner

from ringlog.cli.main import app
from ringlog.kernel.commands.schema.tables import AlterTable
from ringlog.kernel.values import CdcOptions
from ringlog.log.kafka.retention import Retention, keep_at_least, retention_of
from ringlog.log.kafka.topics import admin_client, topic_name
from ringlog.stack import StackInfo
from ringlog_cdc.topics.sink import RetentionKeeper

pytestmark = pytest.mark.system

DAY = 86_400
WEEK_MS = 7 * DAY * 1_000


@pytest.fixture
def world(stack: StackInfo, cluster_name: str) -> Iterator[World]:
    with founded(stack.bootstrap_servers, cluster_name) as world:
        world.join("n1", (0,), now_us() - 1_000_000)
        world.schema()
        yield world


def lives(world: World, ttl: int) -> None:
    world.apply(AlterTable("shop", "orders", (), CdcOptions(enabled=True, ttl=ttl)))


def shown(world: World, *options: str) -> str:
    where = ("--bootstrap", world.bootstrap, "--cluster", world.cluster)
    return CliRunner().invoke(app, ["cdc", "status", *options, *where], catch_exceptions=False).output


def status(world: World) -> Any:
    return json.loads(shown(world, "--json"))["retention"]


def test_the_topic_retains_rows_for_the_period_of_their_tables(world: World) -> None:
    lines: list[dict[str, Any]] = []
    admin, topic = admin_client(world.bootstrap), topic_name(world.cluster, "cdc")
    keeper = RetentionKeeper(admin, topic, lambda event, **fields: lines.append({"event": event, **fields}))

    def has(ms: int) -> None:
        until(lambda: retention_of(admin, topic) == Retention(ms, -1), f"a retention of {ms} ms")

    keeper.keep(world.state)
    has(WEEK_MS)
    assert status(world) == {"promised_seconds": DAY, "kept_ms": WEEK_MS, "kept_bytes": None, "enough": True}
    lives(world, 8 * DAY)
    assert status(world)["enough"] is False
    assert f"--entity-name {topic} --alter --add-config retention.ms={8 * DAY * 1_000}" in shown(world)
    keeper.keep(world.state)
    has(8 * DAY * 1_000)
    lives(world, 60)
    keeper.keep(world.state)
    has(8 * DAY * 1_000)
    assert status(world)["promised_seconds"] == 8 * DAY, "earlier rows keep their period"
    lives(world, 0)
    keeper.keep(world.state)
    has(-1)
    assert [(line["event"], line["seconds"], line["kept"]) for line in lines] == [
        ("retention", 8 * DAY, True),
        ("retention", None, True),
    ]


def test_a_limit_on_bytes_counts_and_a_fixed_topic_is_reported(world: World) -> None:
    admin, topic = admin_client(world.bootstrap), topic_name(world.cluster, "cdc")
    assert not Retention(WEEK_MS, 1_000_000).covers(DAY)
    assert not Retention(WEEK_MS, -1).covers(None)
    assert Retention(-1, -1).covers(None)
    assert keep_at_least(admin, topic, DAY).covers(DAY)
    lines: list[dict[str, Any]] = []
    RetentionKeeper(admin, f"{topic}-gone", lambda event, **fields: lines.append(fields)).keep(world.state)
    assert [line["kept"] for line in lines] == [False]

"""Concurrent schema changes of several authors on a real broker: CEP-21's three races, and ``ringlog ddl`` itself."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests import fork_server

from ringlog.client.client import Client
from ringlog.kernel.commands.cdc.verdicts import SettleVerdicts
from ringlog.kernel.invariants.check import violations
from ringlog.operator.ddl.reading import batch_json, read_ddl
from ringlog.operator.intents.intents import InvalidCommand
from ringlog.operator.intents.json_commands import from_json
from ringlog.protocol.submission.results import AppliedResult, RejectedResult, Submitted
from ringlog.runtime.draw import SystemDraw
from ringlog.stack import StackInfo

from .agents_world import DEADLINE_S, AgentsWorld
from .cdc_world import World

pytestmark = pytest.mark.system

ROUNDS = 12
PIPES: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
KEYSPACE = "CREATE KEYSPACE {} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}};"
TABLE = "CREATE TABLE {} (k text, {} bigint, PRIMARY KEY (k));"


@pytest.fixture(scope="module")
def world(stack: StackInfo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentsWorld]:
    with closing(AgentsWorld(stack, f"schema-{uuid.uuid4().hex[:8]}", tmp_path_factory.mktemp("agents"))) as world:
        world.start("validator")
        played = World(stack.bootstrap_servers, world.cluster, world.client.replica, world.client.direct)
        played.join("n1", (0,), time.time_ns() // 1_000_000)
        yield world


@pytest.fixture(scope="module")
def other(world: AgentsWorld) -> Iterator[Client]:
    """Return another author with its own replica, which may lag."""
    with Client(world.stack.bootstrap_servers, world.cluster, "other") as client:
        yield client


def asked(client: Client, cql: str) -> Future[Submitted]:
    """Submit a statement like ``ringlog ddl``, on the schema that this author knows."""
    command = from_json(client.replica.state, batch_json(read_ddl(cql, "")), SystemDraw())
    assert not isinstance(command, InvalidCommand), command
    return client.submit_future(command, timeout_s=DEADLINE_S)


def done(client: Client, cql: str) -> None:
    assert isinstance(asked(client, cql).result(DEADLINE_S), AppliedResult), cql


def raced(authors: Sequence[Client], texts: Sequence[str]) -> list[AppliedResult | RejectedResult]:
    """Submit both statements at once; return the answers."""
    under_way = [asked(author, text) for author, text in zip(authors, texts, strict=True)]
    found = [future.result(DEADLINE_S) for future in under_way]
    assert all(isinstance(one, AppliedResult | RejectedResult) for one in found), found
    return [one for one in found if isinstance(one, AppliedResult | RejectedResult)]


def test_one_of_two_tables_of_a_name_is_created_and_the_other_is_named(world: AgentsWorld) -> None:
    done(world.client, KEYSPACE.format("shop"))
    words = [sys.executable, "-m", "ringlog.cli", "ddl", "--json"]
    authors = [subprocess.Popen(words, env=world.environment, **PIPES) for _ in range(2)]
    for author, column in zip(authors, ("paid", "owed"), strict=True):
        assert author.stdin is not None
        author.stdin.write(TABLE.format("shop.orders", column))
        author.stdin.close()
        author.stdin = None
    answers = []
    for author in authors:
        printed, complaint = author.communicate(timeout=DEADLINE_S)
        assert not complaint, complaint
        answers.append((author.returncode, json.loads(printed)))
    (_, won), (_, lost) = sorted(answers, key=lambda answer: answer[0])
    assert sorted(status for status, _ in answers) == [0, 1]
    assert won["outcome"] == "applied"
    assert (lost["outcome"], lost["code"]) == ("rejected", "table_exists")
    table = world.client.read_barrier().tables["shop.orders"]
    assert f"epoch {won['epoch']}" in lost["detail"], lost
    column = ("paid", "owed")[answers.index((0, won))]
    assert [one.name for one in table.columns] == ["k", column]


def test_no_race_leaves_a_dangling_name(world: AgentsWorld, other: Client) -> None:
    """A type is dropped while a table uses it, a table while it gets an index, a keyspace while it gets a table.

    In half of the cases one author sends both requests, in order.
    """
    seen = set()
    for number, turn in zip(range(ROUNDS), itertools.cycle((1, -1)), strict=False):
        ks, second = f"ks{number}", (world.client, other)[number // 2 % 2]
        done(world.client, KEYSPACE.format(ks))
        done(world.client, f"CREATE TYPE {ks}.money (amount bigint);" + TABLE.format(f"{ks}.base", "v"))
        other.read_barrier()
        for name, drop, take in (
            ("type", f"DROP TYPE {ks}.money;", f"CREATE TABLE {ks}.paid (k text PRIMARY KEY, m frozen<{ks}.money>);"),
            ("table", f"DROP TABLE {ks}.base;", f"CREATE INDEX of_v ON {ks}.base (v);"),
            ("keyspace", f"DROP KEYSPACE {ks};", TABLE.format(f"{ks}.late", "v")),
        ):
            texts = (drop, take)[::turn]
            dropped, taken = raced((world.client, second), texts)[::turn]
            assert not violations(world.client.read_barrier())
            assert not (isinstance(dropped, RejectedResult) and isinstance(taken, RejectedResult)), (dropped, taken)
            seen.add((name, type(dropped), type(taken)))
            state = world.client.state
            assert (f"{ks}.paid" in state.tables) <= (f"{ks}.money" in state.types)
    assert {first for name, first, _ in seen if name == "type"} == {AppliedResult, RejectedResult}


def test_invalid_cql_changes_nothing(world: AgentsWorld, tmp_path: Path) -> None:
    before = world.client.read_barrier().epoch
    script = tmp_path / "schema.cql"
    script.write_text(KEYSPACE.format("fine") + "\nCREATE TABLE fine.t (k text PRIMARY KEY, v nosuch);")
    ended = fork_server.run(["-m", "ringlog.cli", "ddl", str(script)], world.environment)
    assert ended.returncode != 0
    assert "line 2, " in ended.stderr, ended.stderr
    assert world.client.read_barrier().epoch == before


def test_a_change_says_from_when_it_counts_for_writes(world: AgentsWorld, tmp_path: Path) -> None:
    """The answer has the validation watermark from before the change. --wait returns after that time."""
    done(world.client, KEYSPACE.format("counted"))
    script = tmp_path / "table.cql"

    def changed(cql: str, *options: str, expected: int = 0) -> subprocess.CompletedProcess[str]:
        script.write_text(cql)
        ended = fork_server.run(["-m", "ringlog.cli", "ddl", str(script), *options], world.environment)
        assert ended.returncode == expected, ended
        return ended

    def ahead(seconds: int) -> int:
        """Raise the validation watermark."""
        until = time.time_ns() // 1_000 + seconds * 1_000_000
        assert isinstance(world.client.submit(SettleVerdicts(until), timeout_s=DEADLINE_S), AppliedResult)
        return until

    logged = "CREATE TABLE counted.{} (k text PRIMARY KEY, v int) WITH cdc = {{'enabled': true}};"
    until = ahead(10)
    found = json.loads(changed(logged.format("a") + TABLE.format("counted.quiet", "v"), "--json").stdout)
    assert found["counts_from"] == {"counted.a": until}
    assert world.client.read_barrier().table_lives["counted.a"][-1].versions[-1].since == until
    command: dict[str, Any] = {"command": "AlterTable", "keyspace": "counted", "name": "a"}
    command |= {"add_columns": [{"name": "w", "type": "int"}]}
    ended = fork_server.run(["-m", "ringlog.cli", "submit", json.dumps(command), "--wait"], world.environment)
    assert json.loads(ended.stdout)["counts_from"] == {"counted.a": until}, ended
    assert time.time_ns() // 1_000 >= until
    assert "counted.b: counts for writes appended from " in changed(logged.format("b"), "--wait").stdout
    ahead(30)
    ended = changed("ALTER TABLE counted.b ADD w int;", "--wait", "--timeout", "1", expected=1)
    assert "counts_later" in ended.stderr
    assert re.search(r"counted.b: counts for writes appended from .*, in \d+\.\d s", ended.stdout)

"""``ringlog console`` on a real broker: pages, events across a kill, a change by a user, a broker that is away."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from confluent_kafka import Producer
from tests.client.mini_validator import MiniValidator
from tests.console.console_world import read_page
from tests.ending import taking_down
from tests.plain_stack import plain_stack
from tests.stopping import stop
from tests.system.user import User
from tests.waiting import until

from ringlog.client.client import Client, Logs
from ringlog.console.live import LiveReader
from ringlog.console.table import VIEWS
from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.values import Position
from ringlog.runtime.context import ClusterContext
from ringlog.runtime.kafka.config import QUIET
from ringlog.stack import StackInfo
from ringlog.wire.records import DeadLetter, NodeLoad, encode_dead_letter, encode_node_load

pytestmark = pytest.mark.system

NODE = "018bcfe5-6800-7000-aadd-b6bb876dbc82"
TOKEN = "token-of-ann-0123456789"
BEARER = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    found = User(tmp_path)
    yield found
    found.end()


class Served:
    """A console that runs."""

    def __init__(self, user: User, home: Path, *options: str) -> None:
        log = home / "console.log"
        before = log.stat().st_size if log.exists() else 0
        self.process = user.begin("console", "--listen", "127.0.0.1:0", *options)

        def address() -> str | None:
            text = log.read_bytes()[before:].decode()
            assert self.process.poll() is None, text
            found = re.search(r"http://\S+", text)
            return None if found is None else found[0]

        self.url = until(address, "the address of the console")
        self.http = httpx.Client(base_url=self.url, headers=BEARER, timeout=60)

    def epochs(self, since: int, until_epoch: int, **headers: str) -> list[int]:
        """Return the ids of the events after an epoch, up to another one."""
        found: list[int] = []
        with self.http.stream("GET", "/v1/events", params={"since": since}, headers=headers) as stream:
            for line in stream.iter_lines():
                if line.startswith("id: "):
                    found.append(int(line.removeprefix("id: ")))
                    if found[-1] >= until_epoch:
                        break
        return found


@contextmanager
def validator(info: StackInfo, cluster: str) -> Iterator[Client]:
    """Run a validator, and yield a client."""
    logs = Logs.of_kafka(info.bootstrap_servers, cluster)
    with MiniValidator(logs, "validator-1"), Client(info.bootstrap_servers, cluster, "setup") as client:
        yield client


def test_no_epoch_is_lost_when_the_console_is_killed(
    stack: StackInfo, cluster_name: str, tmp_path: Path, user: User
) -> None:
    user.run("cluster", "create", cluster_name, "--bootstrap", stack.bootstrap_servers)
    with validator(stack, cluster_name) as client:
        first = Served(user, tmp_path)
        since = client.read_barrier().epoch
        client.submit_many([Noop()] * 5)
        seen = first.epochs(since, since + 5)
        assert first.http.get("/v1/health", params={"wait": since + 5}).json()["verdict"] == "CRITICAL"  # no agents
        checks = until(lambda: first.http.get("/v1/checks").json()["findings"], "the checks to end")
        levels = {one["check"]: one["level"] for one in checks}
        assert (levels["broker"], levels["topics"], levels["agents"]) == ("ok", "ok", "bad")
        for name in VIEWS:
            answer = first.http.get(f"/{name}")
            assert answer.status_code == 200, (name, answer.text)
            read_page(answer.text)
            assert first.http.get(f"/v1/{name}", params={"epoch": 2}).headers["ringlog-epoch"] == "2"
        first.process.kill()
        first.process.wait()
        client.submit_many([Noop()] * 5)
        second = Served(user, tmp_path)
        client.submit_many([Noop()] * 5)
        seen += second.epochs(0, since + 15, **{"last-event-id": str(seen[-1])})
        assert seen == list(range(since + 1, since + 16))
        with second.http.stream("GET", "/v1/events") as stream:  # an open stream does not delay the end
            next(stream.iter_lines())
            second.process.terminate()
            assert second.process.wait(60) == 0


def test_the_mutations_of_nodes_and_the_dead_letters_are_read(stack: StackInfo, cluster_name: str, user: User) -> None:
    user.run("cluster", "create", cluster_name, "--bootstrap", stack.bootstrap_servers)
    producer = Producer({**QUIET, "bootstrap.servers": stack.bootstrap_servers})

    def append(suffix: str, *values: bytes) -> None:
        for value in values:
            producer.produce(f"{cluster_name}.{suffix}", value, b"key", 0)
        assert producer.flush(60) == 0

    def load(validated: int) -> bytes:
        return encode_node_load(NodeLoad(NODE, 1, None, (), (Position(0, validated),)))

    source = f"{cluster_name}.mutations"
    letters = [DeadLetter("unknown_column", f"no {at}", source, 0, at, at, b"k", b"v", "job", 1) for at in range(2)]
    append("mutations", b"first", b"second", b"third")
    append("load", load(0))
    append("dead-letters", *map(encode_dead_letter, letters))
    with validator(stack, cluster_name) as client:
        reader = LiveReader(ClusterContext(stack.bootstrap_servers, cluster_name, ""), client.replica)
        reader.read()
        assert reader.reports.mutations_behind == {}, "an old report says nothing of the present"
        assert [one.detail for one in reader.reports.letters] == ["no 1", "no 0"]
        append("load", load(1))
        reader.read()
        assert reader.reports.mutations_behind == {NODE: 2}
        reader.close()


def test_a_user_changes_the_cluster_in_the_name_of_a_person(
    stack: StackInfo, cluster_name: str, tmp_path: Path, user: User
) -> None:
    user.run("cluster", "create", cluster_name, "--bootstrap", stack.bootstrap_servers)
    tokens = tmp_path / "tokens"
    tokens.touch(0o600)
    tokens.write_text(f"ann {TOKEN}\n")
    with validator(stack, cluster_name) as client:
        served = Served(user, tmp_path, "--tokens", str(tokens), "--allow-changes")
        assert httpx.get(f"{served.url}v1/health").status_code == 401
        pause = {"command": "PauseChanges", "scopes": ["splits"], "reason": "a test"}
        rehearsed = served.http.post("/v1/rehearsals", json=pause).json()
        assert rehearsed["difference"]["sections"] == {"pauses": 1}
        path, key = (
            f"/v1/commands?since={rehearsed['epoch']}",
            {"idempotency-key": "018bcfe5-6800-7000-aadd-b6bb876dbc82"},
        )
        answers = [served.http.post(path, json=rehearsed["commands"][0], headers=key) for _ in range(2)]
        assert [one.status_code for one in answers] == [200, 200], answers[0].text
        assert answers[0].json() == answers[1].json()
        assert [one.reason for one in client.read_barrier().pauses.values()] == ["a test"]
        lines = json.loads("[" + ",".join(user.run("log", "--by", "ann", "--json").splitlines()) + "]")
        assert [(line["submitter"], line["entry"]["command"]) for line in lines] == [("console", "PauseChanges")]


def test_the_pages_stay_while_the_broker_is_away(tmp_path: Path, user: User, cluster_name: str) -> None:
    with taking_down(plain_stack(tmp_path / "stack")) as own:
        info = own.up("quick")
        user.run("cluster", "create", cluster_name, "--bootstrap", info.bootstrap_servers)
        served = Served(user, tmp_path)
        before = served.http.get("/v1/nodes").headers["ringlog-epoch"]
        stop(info.broker_pid)
        try:
            until(lambda: int(served.http.get("/v1/nodes").headers["age"]) > 3, "an older state")
            unreadable = "the log is not readable: "
            until(lambda: unreadable in served.http.get("/v1/health").text, "the reason")
            for name in VIEWS:
                answer = served.http.get(f"/{name}")
                assert (answer.status_code, answer.headers["ringlog-epoch"]) == (200, before)
                assert "The log cannot be read" in answer.text
        finally:
            os.kill(info.broker_pid, signal.SIGCONT)
        until(lambda: int(served.http.get("/v1/nodes").headers["age"]) <= 3, "a fresh state")


def test_an_unprotected_address_is_refused(user: User) -> None:
    for options in (["--listen", "0.0.0.0:0"], ["--listen", "192.0.2.1:0"]):
        user.run("console", *options, status=2)
    user.run("console", "--allow-changes", status=2)
    assert user.told.count("unguarded_address") == 2
    assert "bad_usage" in user.told

"""Clients on a real broker: concurrent creation, answers of a validator, direct authors in between, a killed broker."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.client.mini_validator import MiniValidator
from tests.ending import taking_down
from tests.plain_stack import plain_stack
from tests.waiting import at_once

from ringlog.cli.node.discovery import founded_id, in_cluster
from ringlog.client.client import Client, Logs
from ringlog.client.creation.creation import ClusterCreation, create_cluster
from ringlog.client.watch import MetadataWatch
from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.commands.schema.keyspaces import DropKeyspace
from ringlog.kernel.encoding.encoder import digest
from ringlog.kernel.history import find_request
from ringlog.kernel.model.state import ClusterState
from ringlog.log.kafka.adapter import reader_config
from ringlog.protocol.submission.results import AppliedResult, RejectedResult, Submitted
from ringlog.stack import StackInfo
from ringlog_schemas import published

pytestmark = [pytest.mark.system, pytest.mark.slow]
DEADLINE_S = 120.0


def truly(state: ClusterState, answers: list[Submitted]) -> None:
    """Check each answer against the history: applied once at that epoch, or not at all."""
    epochs = []
    for answer in answers:
        made = find_request(state, answer.request_id)
        if isinstance(answer, AppliedResult):
            assert made is not None
            assert made.epoch == answer.epoch
            epochs.append(answer.epoch)
        else:
            assert isinstance(answer, RejectedResult)
            assert made is None
    assert len(set(epochs)) == len(epochs)


def test_one_of_three_founders_creates_the_cluster(stack: StackInfo, cluster_name: str) -> None:
    foundings: list[ClusterCreation] = []

    def work(name: str) -> None:
        foundings.append(create_cluster(stack.bootstrap_servers, cluster_name, submitter=name))

    at_once(work, [f"founder-{number}" for number in range(3)])
    assert [founding.here for founding in foundings].count(True) == 1
    assert len({(founding.cluster_id, founding.submitter) for founding in foundings}) == 1
    assert not create_cluster(stack.bootstrap_servers, cluster_name).here


def test_nodes_with_seeds_create_one_cluster(stack: StackInfo, cluster_name: str, tmp_path: Path) -> None:
    told: list[tuple[str, str]] = []
    stopping = threading.Event()

    def work(node: str, cluster: str | None, seed: str) -> None:
        meet = f"unix:{tmp_path / node}.sock"
        seeds = f"unix:{tmp_path / seed}.sock"
        with in_cluster(stack.bootstrap_servers, cluster, node, tmp_path, meet, seeds, False, stopping) as context:
            assert context is not None
            told.append((context.cluster, founded_id(context.bootstrap, context.cluster)))

    at_once(lambda given: work(*given), (("n1", None, "n2"), ("n2", cluster_name, "n1")))
    stopping.set()
    founding = create_cluster(stack.bootstrap_servers, cluster_name)
    assert told == [(cluster_name, founding.cluster_id)] * 2
    assert founding.submitter in ("node-n1", "node-n2")


def test_founding_publishes_every_schema(stack: StackInfo, cluster_name: str) -> None:
    create_cluster(stack.bootstrap_servers, cluster_name)
    consumer = Consumer(reader_config(stack.bootstrap_servers, "read_committed"))
    consumer.assign([TopicPartition(f"{cluster_name}.schemas", 0, 0)])
    wanted = dict(published())
    found: dict[str, str] = {}
    deadline = time.monotonic() + DEADLINE_S
    while found != wanted:
        assert time.monotonic() < deadline
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            found[(message.key() or b"").decode()] = (message.value() or b"").decode()
    consumer.close()


def test_answers_through_a_validator_with_direct_authors_in_between(stack: StackInfo, cluster_name: str) -> None:
    create_cluster(stack.bootstrap_servers, cluster_name)
    logs = Logs.of_kafka(stack.bootstrap_servers, cluster_name)
    with (
        MiniValidator(logs, "v1"),
        Client(stack.bootstrap_servers, cluster_name, "one") as client,
        Client(stack.bootstrap_servers, cluster_name, "two") as other,
    ):
        commands = [Noop() if place % 3 else DropKeyspace("nowhere") for place in range(60)]
        futures = [client.submit_future(command, timeout_s=DEADLINE_S) for command in commands]
        direct: list[Submitted] = [other.direct.submit(Noop(), timeout_s=DEADLINE_S) for _ in range(10)]
        answers = [future.result(DEADLINE_S) for future in futures]
        assert [type(answer) for answer in answers] == [
            AppliedResult if place % 3 else RejectedResult for place in range(60)
        ]
        state = other.strict_barrier(DEADLINE_S)
        truly(state, answers + direct)
        assert state.epoch == 1 + 1 + 40 + 10 + 1, "founding, take-over, applied, direct, strict barrier"
        with MetadataWatch(stack.bootstrap_servers, cluster_name) as watch:
            assert digest(watch.read_barrier()) == digest(client.read_barrier())
    logs.close()


def test_submissions_outlive_a_killed_broker(tmp_path: Path, cluster_name: str) -> None:
    """SIGKILL hits the broker with submissions in flight; after its restart, each is applied exactly once."""
    with taking_down(plain_stack(tmp_path / "stack")) as own:
        info = own.up("quick")
        create_cluster(info.bootstrap_servers, cluster_name)
        logs = Logs.of_kafka(info.bootstrap_servers, cluster_name)
        with MiniValidator(logs, "v1"), Client(info.bootstrap_servers, cluster_name, "one") as client:
            first = client.submit(Noop(), timeout_s=DEADLINE_S)
            futures = [client.submit_future(Noop(), timeout_s=DEADLINE_S) for _ in range(100)]
            os.kill(info.broker_pid, signal.SIGKILL)
            futures += [client.submit_future(Noop(), timeout_s=DEADLINE_S) for _ in range(100)]
            assert own.up("quick").bootstrap_servers == info.bootstrap_servers
            answers = [first, *(future.result(DEADLINE_S) for future in futures)]
            assert all(isinstance(answer, AppliedResult) for answer in answers)
            state = client.read_barrier(DEADLINE_S)
            truly(state, answers)
            assert state.epoch == 2 + 201
            assert client.replica.halted is None
        logs.close()

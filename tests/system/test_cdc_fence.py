"""A writer was considered dead and continues after its fence with buffered rows: the broker rejects all of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.ending import taking_down
from tests.system.cdc_world import HOUR_US, World, founded, now_us, until, write
from tests.system.test_cdc_kill import alive, driver

from ringlog.kernel.commands.cdc.generations import CloseCdcGeneration
from ringlog.kernel.commands.cdc.writers import AdvanceCdcWriter, RegisterCdcWriter
from ringlog.kernel.model.state import CdcWriter
from ringlog.log.errors import TopicMissing
from ringlog.log.kafka.permissions import (
    NoListener,
    NoRights,
    Rights,
    await_write_denied,
    deny,
    grant,
    principals,
    writable_partitions,
)
from ringlog.log.kafka.topics import admin_client
from ringlog.operator.fencing import fence
from ringlog.runtime.context import ClusterContext
from ringlog.stack import Stack, StackInfo
from ringlog.stack.broker import new_cluster_id
from ringlog.stack.layout import StackLayout, StackSettings, write_settings
from ringlog.stack.processes import HOST, choose
from ringlog.wire.records import decode_cdc_row

PROTOCOL = "SASL_PLAINTEXT"
PARTITIONS = tuple(range(8))
TOKENS = (-5_000_000_000_000_000_000, 0, 7_000_000_000_000_000_000)
A_WRITER = CdcWriter("nobody", "none", 1, 0, 0, 0, (), ())

SENDER = """
import sys
from confluent_kafka import KafkaException, Producer
listener, topic, user, password = sys.argv[1:]
refused = []
producer = Producer({"bootstrap.servers": listener, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism":
    "SCRAM-SHA-256", "sasl.username": user, "sasl.password": password, "linger.ms": 50, "log_level": 2})
number = 0
while not refused:
    try:
        producer.produce(topic, b"row %d" % number, on_delivery=lambda error, _: error and refused.append(error.name()))
    except KafkaException as error:  # the client knows already
        refused.append(error.args[0].name())
    producer.poll(0.001)
    number += 1
    if number == 200:
        producer.flush()
        print("at work", flush=True)
print(refused[0], flush=True)
"""
"""A writer at full speed, with buffered rows and rows in transit at any moment, until the broker rejects it."""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[StackInfo, str]]:
    """Return a broker with an authorizer, and its listener for writers."""
    folder = tmp_path_factory.mktemp("guarded")
    plain, controller, own_port = choose(3)
    listener = f"{HOST}:{own_port}"
    layout = StackLayout(folder)
    write_settings(layout, StackSettings(new_cluster_id(), plain, controller, profile="quick", request=0))
    lines = {
        "listeners": f"PLAINTEXT://{HOST}:{plain},CONTROLLER://{HOST}:{controller},WRITERS://{listener}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{plain},WRITERS://{listener}",
        "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,WRITERS:{PROTOCOL}",
        "inter.broker.listener.name": "PLAINTEXT",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "listener.name.writers.scram-sha-256.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
    }
    layout.own_properties.write_text("".join(f"{name}={value}\n" for name, value in lines.items()), encoding="utf-8")
    with taking_down(Stack(folder)) as own:
        yield own.up(), listener


@pytest.fixture
def shop(guarded: tuple[StackInfo, str], cluster_name: str) -> Iterator[World]:
    with founded(guarded[0].bootstrap_servers, cluster_name) as made:
        yield made


def await_rights(shop: World, listener: str, rights: Rights) -> None:
    """Wait until the broker has the ACLs, because the controller confirms them earlier."""
    until(lambda: writable_partitions(listener, PROTOCOL, shop.cluster, rights, PARTITIONS) == PARTITIONS, "the rights")


def ends_of(shop: World) -> dict[int, int]:
    """Return the end of each partition of the CDC topic."""
    sworn = fence(ClusterContext(shop.bootstrap, shop.cluster, ""), A_WRITER, "", None, PROTOCOL, "only to look")
    return {position.partition: position.offset for position in sworn.positions}


def test_a_stopped_writer_writes_nothing_after_its_fence(guarded: tuple[StackInfo, str], shop: World) -> None:
    listener, context = guarded[1], ClusterContext(shop.bootstrap, shop.cluster, "")
    first = shop.join("n1", [0], 1_000_000)
    shop.schema()
    shop.join("n2", [100], 2_000_000)
    zombie, heir = uuid.uuid4().hex, uuid.uuid4().hex
    shop.apply(RegisterCdcWriter("spark", zombie))
    shop.apply(RegisterCdcWriter("flink", heir))
    shop.apply(AdvanceCdcWriter("flink", heir, 3_000_000, 2_000_000))
    rights = grant(admin_client(shop.bootstrap), shop.cluster, "spark")
    await_rights(shop, listener, rights)
    arguments = [sys.executable, "-c", SENDER, listener, f"{shop.cluster}.cdc", rights.principal, rights.password]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as sender:
        try:
            assert sender.stdout is not None
            assert sender.stdout.readline() == "at work\n"
            sender.send_signal(signal.SIGSTOP)
            command = fence(context, shop.state.writers["spark"], "its host does not answer", listener, PROTOCOL)
            assert command.incarnation == zombie
            assert rights.principal in command.reason
            assert sum(position.offset for position in command.positions) >= 200
            shop.apply(command)
            shop.apply(CloseCdcGeneration(first.id))
            sender.send_signal(signal.SIGCONT)
            assert sender.stdout.readline() == "TOPIC_AUTHORIZATION_FAILED\n"
        finally:
            sender.kill()
    ends = {position.partition: position.offset for position in command.positions}
    assert ends_of(shop) == ends, "a buffered row was appended"
    closed = shop.state.generations[0]
    assert {position.partition: position.offset for position in closed.positions} == ends


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.soak("the writer that wakes, in this file; the simulator's zombies")
def test_a_fenced_driver_writes_no_rows(guarded: tuple[StackInfo, str], shop: World, tmp_path: Path) -> None:
    listener, context = guarded[1], ClusterContext(shop.bootstrap, shop.cluster, "")
    first = shop.join("n1", TOKENS, now_us() - HOUR_US)
    shop.schema()
    shop.join("n2", [100], now_us() - HOUR_US // 2)
    shop.send(write(f"customer-{number % 97}", number) for number in range(3_000))
    checkpoint = tmp_path / "checkpoint"
    with driver(shop, checkpoint, "--producer", str(credentials(shop, tmp_path / "first", listener))) as process:
        until(lambda: is_at_work(checkpoint), "a batch in hand", lambda: alive(process, checkpoint))
        together = [process.pid, *children(process.pid)]
        for pid in together:
            send(pid, signal.SIGSTOP)
        try:
            command = fence(context, shop.state.writers["spark"], "its host does not answer", listener, PROTOCOL)
            shop.apply(command)
        finally:
            for pid in together:
                send(pid, signal.SIGCONT)
        assert process.wait(240) == 1, (checkpoint / "output").read_text()[-3000:]
    assert ends_of(shop) == {position.partition: position.offset for position in command.positions}
    shop.apply(CloseCdcGeneration(first.id, unwatched=True))
    new, other = credentials(shop, tmp_path / "second", listener), tmp_path / "other"
    with driver(shop, other, "--producer", str(new), "--stop-when-idle") as process:
        assert process.wait(240) == 0, (other / "output").read_text()[-3000:]
    found = [decode_cdc_row(item.value) for item in shop.read("cdc")]
    identities = {(row.source_partition, row.source_offset) for row in found}
    assert identities == {(item.partition, item.offset) for item in shop.read("mutations")}
    # It lost its checkpoint and found the rows of the fenced driver in the topic, so no row is there twice.
    assert len({(row.source_partition, row.source_offset, row.stream_id, row.time) for row in found}) == 3_000
    assert len(found) == 3_000
    assert shop.letters() == []


def is_at_work(checkpoint: Path) -> bool:
    """Return True if a plan from the third on is stored but not completed; the first plan seals a generation."""
    plans = {path.stem for path in (checkpoint / "plans").glob("*.json")}
    done = {path.stem for path in (checkpoint / "plans").glob("*.done")}
    return any(int(plan) >= 2 for plan in plans - done)


def credentials(shop: World, path: Path, listener: str) -> Path:
    """Write a file with the writer's new credentials."""
    made = grant(admin_client(shop.bootstrap), shop.cluster, "spark")
    options = {"bootstrap.servers": listener, **made.java_properties(PROTOCOL)}
    path.write_text("".join(f"{name}={value}\n" for name, value in options.items()), encoding="utf-8")
    return path


def children(pid: int) -> list[int]:
    """Return all descendants of this process; Spark's Python workers come and go."""
    try:
        own = [int(name) for name in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return own + [below for child in own for below in children(child)]


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may be gone."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def test_the_name_returns_only_with_new_credentials(guarded: tuple[StackInfo, str], shop: World) -> None:
    listener, admin = guarded[1], admin_client(shop.bootstrap)
    old = grant(admin, shop.cluster, "spark")
    await_rights(shop, listener, old)
    denied = deny(admin, shop.cluster, old.principal)
    await_write_denied(listener, PROTOCOL, shop.cluster, denied, PARTITIONS)
    new = grant(admin, shop.cluster, "spark")
    assert new.principal != old.principal
    await_rights(shop, listener, new)
    assert writable_partitions(listener, PROTOCOL, shop.cluster, denied, PARTITIONS) == ()
    assert principals(admin, shop.cluster, "spark") == (old.principal, new.principal)
    assert principals(admin, shop.cluster, "spark2") == ()
    assert set(ends_of(shop).values()) == {0}, "a check writes no record"


def test_an_uncertain_fence_is_refused(guarded: tuple[StackInfo, str], shop: World) -> None:
    context = ClusterContext(shop.bootstrap, shop.cluster, "")
    shop.apply(RegisterCdcWriter("spark", "one"))
    writer = shop.state.writers["spark"]
    with pytest.raises(NoRights, match="has no permissions of its own"):
        fence(context, writer, "gone", guarded[1], PROTOCOL)
    grant(admin_client(shop.bootstrap), shop.cluster, "spark")
    with pytest.raises(NoListener):
        fence(context, writer, "gone", None, PROTOCOL)
    sworn = fence(context, writer, "gone", None, PROTOCOL, "its disk is in my hands")
    assert sworn.reason == "gone; without the broker: its disk is in my hands"


def test_a_missing_cdc_topic_has_no_ends(guarded: tuple[StackInfo, str], cluster_name: str) -> None:
    """Without the ends of the topic, the last rows of the writer are unknown."""
    context = ClusterContext(guarded[0].bootstrap_servers, cluster_name, "")
    with pytest.raises(TopicMissing):
        fence(context, A_WRITER, "gone", None, PROTOCOL, "it is switched off")

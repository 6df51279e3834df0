"""The stack with its real processes: after each kind of kill it returns with its data, and it leaves no
process behind.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.refusals import raises_code
from tests.waiting import at_once

from ringlog.runtime.kafka.config import QUIET, connection
from ringlog.runtime.kafka.options import read_kafka_config
from ringlog.stack import Stack, StackError, StackInfo, redis_server
from ringlog.stack.commands import addresses
from ringlog.stack.layout import StackAddress, StackLayout, read_state
from ringlog.stack.processes import is_locked, start_tick, wait_until
from ringlog.stack.redis_server import COMMANDS_OFF

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a data folder for these tests only, so that no other test loses its broker."""
    path = tmp_path_factory.mktemp("killed")
    started = up_in_a_process_that_ends(path)
    put_data(Stack(path).up())
    assert started == Stack(path).up(), "a stack outlives the process that started it"
    yield path
    Stack(path).down()


def up_in_a_process_that_ends(path: Path) -> StackInfo:
    """Start the stack in another process that ends, like ``ringlog stack up``."""
    program = "import sys; from ringlog.stack.cli import app; app(['up', '--json', *sys.argv[1:]])"
    answer = subprocess.run(
        [sys.executable, "-c", program, "--data", str(path), "--profile", "quick"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    return StackInfo(**json.loads(answer.stdout))


def client_options(info: StackInfo) -> dict[str, Any]:
    """Return the basic client options for this stack."""
    return connection(info.bootstrap_servers, read_kafka_config(Path(info.kafka_config)).security)


def put_data(info: StackInfo) -> None:
    """Write a record to a topic and a key to Redis, both acknowledged."""
    admin = AdminClient(client_options(info))
    admin.create_topics([NewTopic("kept", 1, 1)])["kept"].result()
    producer = Producer({**client_options(info), "acks": "all"})
    producer.produce("kept", b"still here")
    assert producer.flush(60) == 0
    with redis.Redis.from_url(info.redis_url) as client:
        client.set("kept", "still here")


def assert_data_kept(info: StackInfo) -> None:
    consumer = Consumer({**client_options(info), "group.id": "reader", "enable.auto.commit": False})
    consumer.assign([TopicPartition("kept", 0, 0)])
    found: list[bytes | None] = []

    def read() -> bool:
        """Read; a restarted broker may report an unknown topic at first."""
        found.extend(one.value() for one in consumer.consume(1, 1) if one.error() is None)
        return bool(found)

    assert wait_until(read, 60)
    consumer.close()
    assert found == [b"still here"]
    with redis.Redis.from_url(info.redis_url) as client:
        assert client.get("kept") == b"still here"


def is_gone(pid: int) -> bool:
    return start_tick(pid) is None


def pids(info: StackInfo) -> tuple[int, int, int]:
    return info.supervisor_pid, info.broker_pid, info.redis_pid


def test_second_up_changes_nothing(folder: Path) -> None:
    first = Stack(folder).up()
    assert Stack(folder).up() == first


def test_two_ups_at_once_make_one_stack(folder: Path) -> None:
    Stack(folder).down()
    found = at_once(lambda _: Stack(folder).up(), range(3))
    assert len(set(found)) == 1


@pytest.mark.parametrize(
    ("killed", "replaced"),
    [
        (lambda info: info.broker_pid, {"broker_pid"}),
        (lambda info: info.redis_pid, {"redis_pid"}),
        (lambda info: info.supervisor_pid, {"broker_pid", "redis_pid", "supervisor_pid"}),
    ],
    ids=["broker", "redis", "supervisor"],
)
def test_up_restarts_killed_processes(folder: Path, killed: Callable[[StackInfo], int], replaced: set[str]) -> None:
    before = Stack(folder).up()
    os.kill(killed(before), signal.SIGKILL)

    after = Stack(folder).up()

    changed = {name for name in StackInfo.__slots__ if getattr(before, name) != getattr(after, name)}
    assert changed == replaced, "only dead processes are restarted, at the same addresses"
    assert_data_kept(after)


def test_a_supervisor_that_cannot_write_keeps_its_children_and_writes_later(folder: Path) -> None:
    info = Stack(folder).up()
    layout = StackLayout(folder)
    layout.state.unlink()
    layout.state.mkdir()  # no file can replace it now, as on a full disk
    os.kill(info.redis_pid, signal.SIGKILL)
    assert wait_until(lambda: "writing the state failed" in layout.log("supervisor").read_text(), 60)
    assert start_tick(info.broker_pid) is not None
    layout.state.rmdir()
    assert wait_until(layout.state.is_file, 60)
    status = Stack(folder).status()
    assert status.supervisor_pid == info.supervisor_pid
    assert status.broker is not None
    assert status.redis is not None
    assert (status.broker.running, status.redis.exit_code) == (True, -signal.SIGKILL)


@pytest.mark.parametrize("name", ["broker", "redis"])
def test_a_killed_child_is_seen_as_down_and_stays_down(folder: Path, name: str) -> None:
    info = Stack(folder).up()
    os.kill(info.broker_pid if name == "broker" else info.redis_pid, signal.SIGKILL)

    def recorded() -> bool:
        child = getattr(Stack(folder).status(), name)
        return child.exit_code == -signal.SIGKILL and not child.running

    assert wait_until(recorded, 60)
    status = Stack(folder).status()
    assert not status.running
    assert status.supervisor_pid == info.supervisor_pid
    other = status.redis if name == "broker" else status.broker
    assert other is not None
    assert other.running


def test_children_die_with_a_killed_supervisor(folder: Path) -> None:
    info = Stack(folder).up()
    os.kill(info.supervisor_pid, signal.SIGKILL)
    assert wait_until(lambda: all(is_gone(pid) for pid in pids(info)), 60)
    assert not Stack(folder).status().running


def test_down_leaves_no_process_and_keeps_the_data(folder: Path) -> None:
    info = Stack(folder).up()
    assert Stack(folder).down()
    assert all(is_gone(pid) for pid in pids(info))
    assert not Stack(folder).down()
    assert_data_kept(Stack(folder).up())


def test_an_occupied_port_is_replaced_and_the_data_stay(folder: Path) -> None:
    before = Stack(folder).up()
    Stack(folder).down()
    host, port = before.bootstrap_servers.split(":")
    with socket.create_server((host, int(port))):
        after = Stack(folder).up()
    assert after.bootstrap_servers != before.bootstrap_servers
    assert after.redis_url == before.redis_url
    assert_data_kept(after)


def test_a_start_that_fails_leaves_nothing_running(tmp_path: Path) -> None:
    """Redis runs already, and the broker cannot start because one line of its settings is invalid."""
    layout = StackLayout(tmp_path)
    layout.own_properties.write_text("nonsense\n")
    try:
        with raises_code(StackError, "start_failed", match="line 1: not a name=value line"):
            Stack(tmp_path).up("quick")
        state = read_state(layout)
        assert state is not None
        assert state.redis is not None
        assert (is_gone(state.supervisor_pid), is_gone(state.redis.pid)) == (True, True)
        assert not is_locked(layout.supervisor_lock)
    finally:
        Stack(tmp_path).down()


def test_a_failed_repair_ends_only_its_own_processes(folder: Path) -> None:
    before = Stack(folder).up()
    layout = StackLayout(folder)
    layout.own_properties.write_text("nonsense\n")
    try:
        os.kill(before.broker_pid, signal.SIGKILL)
        with pytest.raises(StackError, match="line 1"):
            Stack(folder).up()
        assert start_tick(before.redis_pid) is not None, "it ran before"
        os.kill(before.redis_pid, signal.SIGKILL)
        assert wait_until(lambda: is_gone(before.redis_pid), 60)
        with pytest.raises(StackError, match="line 1"):
            Stack(folder).up()
        state = read_state(layout)
        assert state is not None
        assert state.redis is not None
        assert state.redis.pid != before.redis_pid
        assert is_gone(state.redis.pid), "this start began it"
        assert start_tick(before.supervisor_pid) is not None
    finally:
        layout.own_properties.unlink()
    assert_data_kept(Stack(folder).up())


def test_reset_deletes_the_data_and_restarts(tmp_path: Path) -> None:
    stack = Stack(tmp_path)
    info = stack.up("quick")
    try:
        put_data(info)
        assert stack.reset()
        assert all(is_gone(pid) for pid in pids(info))
        after = stack.up()
        assert after.bootstrap_servers == info.bootstrap_servers
        assert "kept" not in AdminClient(client_options(after)).list_topics(timeout=30).topics
        with redis.Redis.from_url(after.redis_url) as client:
            assert client.dbsize() == 0
    finally:
        stack.down()


def test_other_users_cannot_read_the_data(folder: Path) -> None:
    info = Stack(folder).up()
    assert info.redis_url.startswith("unix:///")
    with redis.Redis.from_url(info.redis_url) as client:
        assert client.info("server")["tcp_port"] == 0, "no port, so no password either"
    kept = [folder, *folder.rglob("*")]
    names = {path.name for path in kept}
    secret = {"client.properties", "server.properties"}
    assert {"redis.sock", "settings.json", "state.json", "broker.log", *secret} <= names
    assert [str(path) for path in kept if stat.S_IMODE(path.lstat().st_mode) & 0o077] == []


def test_open_folders_are_private_after_the_next_start(folder: Path) -> None:
    for path in (folder, folder / "logs", folder / "redis", folder / "broker"):
        path.chmod(0o755)
    Stack(folder).down()
    Stack(folder).up()
    assert [path.stat().st_mode & 0o777 for path in (folder, folder / "logs", folder / "redis")] == [0o700] * 3


@pytest.mark.parametrize("command", [f"{name} x y" for name in COMMANDS_OFF] + ["CONFIG GET dir", "SAVE", "SHUTDOWN"])
def test_redis_only_serves_its_data(stack: StackInfo, command: str) -> None:
    with redis.Redis.from_url(stack.redis_url) as client, pytest.raises(redis.ResponseError, match="unknown command"):
        client.execute_command(*command.split())


def test_a_path_too_long_for_a_socket_gets_a_private_one_elsewhere(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120)
    layout = StackLayout(deep)
    outside = layout.redis_socket.parent
    assert outside.parent == Path("/tmp")
    try:
        outside.mkdir()
        outside.chmod(0o755)
        with raises_code(StackError, "socket_exposed"):
            redis_server.run_command(layout)
        outside.rmdir()
        outside.symlink_to(tmp_path)
        with pytest.raises(StackError):
            redis_server.run_command(layout)
        outside.unlink()
        info = Stack(deep).up("quick")
        with redis.Redis.from_url(info.redis_url) as client:
            assert client.ping()
        assert stat.S_IMODE(outside.stat().st_mode) == 0o700
    finally:
        Stack(deep).down()
        shutil.rmtree(outside, ignore_errors=True)


def test_a_broker_is_found_with_its_own_redis(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("RINGLOG_STACK_DATA", raising=False)
    assert addresses() == ()
    info = up_in_a_process_that_ends(folder)
    assert addresses() == (StackAddress(info.bootstrap_servers, info.redis_url, info.kafka_config),)
    Stack(folder).down()
    assert addresses() == ()


def test_broker_settings_are_as_documented(stack: StackInfo, cluster_name: str) -> None:
    admin = AdminClient({**QUIET, "bootstrap.servers": stack.bootstrap_servers})
    assert cluster_name not in admin.list_topics(topic=cluster_name, timeout=60).topics or (
        admin.list_topics(topic=cluster_name, timeout=60).topics[cluster_name].error is not None
    ), "a request for a topic does not create it"
    topic = f"{cluster_name}.big"
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    errors: list[object] = []
    producer = Producer({**QUIET, "bootstrap.servers": stack.bootstrap_servers, "message.max.bytes": 4_000_000})
    producer.produce(topic, b"x" * 1_900_000, on_delivery=lambda error, _: errors.append(error))
    producer.produce(topic, b"x" * 2_200_000, on_delivery=lambda error, _: errors.append(error and error.name()))
    assert producer.flush(60) == 0
    assert errors == [None, "MSG_SIZE_TOO_LARGE"]

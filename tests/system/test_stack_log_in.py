"""The login at the stack's broker, with its real processes: clients need the password of its folder."""

from __future__ import annotations

import re
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from tests.system.guarded_kafka import kafka_tool
from tests.system.user import User

from ringlog.runtime.kafka.config import connection
from ringlog.runtime.kafka.options import read_kafka_config
from ringlog.runtime.kafka.security import PLAIN as NO_LOG_IN
from ringlog.runtime.kafka.security import Security
from ringlog.stack import Stack, StackInfo
from ringlog.stack.broker import new_cluster_id
from ringlog.stack.layout import StackLayout, StackSettings, read_settings, write_settings
from ringlog.stack.processes import HOST, choose

pytestmark = pytest.mark.system

PASSWORD = re.compile("[0-9a-f]{64}")
WAIT_S = 3.0
"""A rejected client retries until this deadline; an accepted client has its answer within milliseconds."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("log-in")
    yield path
    Stack(path).down()


@pytest.fixture
def info(folder: Path) -> StackInfo:
    return Stack(folder).up("quick")


def log_in_of(info: StackInfo) -> Security:
    return read_kafka_config(Path(info.kafka_config)).security


def passwords(folder: Path) -> set[str]:
    """Return all passwords in the folder's files for the broker and its clients."""
    where = StackLayout(folder)
    return set(PASSWORD.findall(where.client_properties.read_text() + where.server_properties.read_text()))


def is_let_in(bootstrap: str, security: Security) -> bool:
    try:
        AdminClient(connection(bootstrap, security)).list_topics(timeout=WAIT_S)
    except KafkaException:
        return False
    return True


def test_only_a_client_with_the_file_logs_in(info: StackInfo) -> None:
    ours = log_in_of(info)
    assert (ours.protocol, ours.mechanism) == ("SASL_PLAINTEXT", "SCRAM-SHA-256")
    assert is_let_in(info.bootstrap_servers, ours)
    wrong = ours.as_user(ours.protocol, ours.mechanism, ours.username, "0" * 64)
    by_plain = ours.as_user(ours.protocol, "PLAIN", ours.username, ours.password)
    broker = ours.as_user(ours.protocol, "PLAIN", "broker", ours.password)
    assert [is_let_in(info.bootstrap_servers, other) for other in (NO_LOG_IN, wrong, by_plain, broker)] == [False] * 4


def described(folder: Path, where: str, config: Path) -> subprocess.CompletedProcess[str]:
    """Query the topics, or the quorum, with Kafka's own tools, at a broker or at a controller."""
    words = [where, f"{HOST}:{port_of(folder, where)}", "--describe", "--all"]
    words += ["--entity-type", "brokers", "--entity-name", "1", "--command-config", str(config)]
    return kafka_tool("kafka.admin.ConfigCommand", *words)


def port_of(folder: Path, where: str) -> int:
    settings = read_settings(StackLayout(folder))
    assert settings is not None
    return settings.broker_port if where == "--bootstrap-server" else settings.controller_port


def options_file(path: Path, *lines: str) -> Path:
    """Write options with timeouts, so that a rejected Java client ends."""
    path.write_text("".join(f"{line}\n" for line in (*lines, "default.api.timeout.ms=5000", "request.timeout.ms=4000")))
    return path


def test_kafkas_own_tools_use_the_file(folder: Path, info: StackInfo) -> None:
    told = described(folder, "--bootstrap-server", Path(info.kafka_config))
    assert (told.returncode, "log.cleaner" in told.stdout) == (0, True), told.stderr


def test_the_controller_accepts_only_the_broker(folder: Path, info: StackInfo, tmp_path: Path) -> None:
    lines = StackLayout(folder).server_properties.read_text().splitlines()
    jaas = next(line for line in lines if line.startswith("listener.name.controller.plain.sasl.jaas.config="))
    plain = "security.protocol=SASL_PLAINTEXT", "sasl.mechanism=PLAIN"
    broker = options_file(tmp_path / "broker", *plain, jaas.removeprefix("listener.name.controller.plain."))
    assert described(folder, "--bootstrap-controller", broker).returncode == 0
    anonymous = options_file(tmp_path / "anonymous")
    client = options_file(tmp_path / "client", *Path(info.kafka_config).read_text().splitlines())
    for config in (anonymous, client):
        refused = described(folder, "--bootstrap-controller", config)
        assert refused.returncode != 0
        assert "log.cleaner" not in refused.stdout


def test_only_two_private_files_contain_the_passwords(folder: Path, info: StackInfo) -> None:
    where, words = StackLayout(folder), passwords(folder)
    assert len(words) == 2
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    holders = {path for path, content in files.items() if any(word.encode() in content for word in words)}
    assert holders == {where.client_properties, where.server_properties}
    assert {stat.S_IMODE(path.stat().st_mode) for path in holders} == {0o600}
    running = subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(where.server_properties) in running
    assert not any(word in running for word in words)
    assert not any(word in repr(log_in_of(info)) for word in words)


def test_the_clients_password_stays_and_the_brokers_changes(folder: Path, info: StackInfo) -> None:
    before, ours = passwords(folder), log_in_of(info)
    Stack(folder).down()
    again = Stack(folder).up()
    assert log_in_of(again) == ours
    assert before & passwords(folder) == {ours.password}
    assert Stack(folder).reset()
    after = Stack(folder).up()
    assert log_in_of(after) == ours
    assert is_let_in(after.bootstrap_servers, ours)


def test_a_process_on_the_port_gets_nothing(folder: Path, info: StackInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process would get the password of the broker, which logs in with PLAIN, and could then release the port."""
    Stack(folder).down()
    start = Stack._spawn_supervisor
    with socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        thief.setblocking(False)

        def take_port_and_start(stack: Stack) -> None:
            thief.bind((HOST, port_of(folder, "--bootstrap-server")))
            thief.listen(1)
            start(stack)

        monkeypatch.setattr(Stack, "_spawn_supervisor", take_port_and_start)
        after = Stack(folder).up()
        with pytest.raises(BlockingIOError):
            thief.accept()
    assert after.bootstrap_servers != info.bootstrap_servers
    assert is_let_in(after.bootstrap_servers, log_in_of(after))


def test_a_deleted_password_is_replaced_while_the_broker_runs(folder: Path, info: StackInfo) -> None:
    before = log_in_of(info)
    Path(info.kafka_config).unlink()
    after = Stack(folder).up()
    assert after.broker_pid == info.broker_pid
    assert is_let_in(after.bootstrap_servers, log_in_of(after))
    assert not is_let_in(after.bootstrap_servers, before)


def test_a_stack_without_log_in_gets_one_at_its_next_start_and_keeps_its_topics(tmp_path: Path) -> None:
    """Its listeners are those of stacks from before the login existed."""
    stack, where = Stack(tmp_path), StackLayout(tmp_path)
    port, controller = choose(2)
    write_settings(where, StackSettings(new_cluster_id(), port, controller, profile="quick", request=0))
    where.own_properties.write_text(
        f"listeners=PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller}\n"
        f"advertised.listeners=PLAINTEXT://{HOST}:{port}\n"
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\n"
        "inter.broker.listener.name=PLAINTEXT\n"
    )
    first = stack.up("quick")
    try:
        assert first.kafka_config == ""
        assert is_let_in(first.bootstrap_servers, NO_LOG_IN)
        admin = AdminClient(connection(first.bootstrap_servers, NO_LOG_IN))
        admin.create_topics([NewTopic("kept", 1, 1)])["kept"].result()
        where.own_properties.unlink()
        where.client_properties.unlink()
        assert stack.up() == first, "a running broker has its settings from the start"
        stack.down()
        after = stack.up()
        assert after.kafka_config == str(where.client_properties)
        assert not is_let_in(after.bootstrap_servers, NO_LOG_IN)
        admin = AdminClient(connection(after.bootstrap_servers, log_in_of(after)))
        assert "kept" in admin.list_topics(timeout=30).topics
    finally:
        stack.down()


@pytest.mark.slow
def test_commands_and_processes_log_in_by_default(user: User, tmp_path: Path) -> None:
    user.run("stack", "up", "--profile", "quick")
    try:
        user.run("cluster", "create", "shop")
        user.begin("agents")
        user.join_node("--tokens", "2")
        assert "client.properties" in user.run("cluster", "current", "--json")
        words, running = passwords(tmp_path / "ringlog" / "stack"), user.command_lines()
        user.end()
        assert not any(word in text for word in words for text in (user.told, user.logs(), running))
    finally:
        user.end()
        user.run("stack", "down")

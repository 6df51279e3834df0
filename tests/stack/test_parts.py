"""The parts of the stack without a broker: settings, state, ports, locks, processes, and a folder without a stack."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ringlog.cli.stack import app
from ringlog.runtime.kafka.options import read_kafka_config
from ringlog.stack import Stack, StackError, broker, layout, log_in, processes
from ringlog.stack.cli import _show_info, _show_status
from ringlog.stack.layout import Child, ChildStatus, StackInfo, StackLayout, StackSettings, StackStatus, State
from tests.ending import taking_down
from tests.plain_stack import PLAIN
from tests.refusals import raises_code

SETTINGS = StackSettings("cluster", 20_001, 20_002, profile="default", request=7)


def test_settings_and_state_survive_a_round_trip(tmp_path: Path) -> None:
    where = StackLayout(tmp_path)
    assert layout.read_settings(where) is None
    assert layout.read_state(where) is None
    layout.write_settings(where, SETTINGS)
    state = State(supervisor_pid=1, request=7, problem="", broker=Child(2, 3, None), redis=Child(4, 5, -9))
    layout.write_state(where, state)
    assert layout.read_settings(where) == SETTINGS
    assert layout.read_state(where) == state
    assert sorted(path.name for path in tmp_path.iterdir()) == ["settings.json", "state.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"profile": "default"}', '{"other": 1}'])
def test_foreign_settings_are_refused_and_a_foreign_state_is_ignored(tmp_path: Path, text: str) -> None:
    where = StackLayout(tmp_path)
    where.settings.write_text(text)
    where.state.write_text(text)
    with raises_code(StackError, "bad_settings"):
        layout.read_settings(where)
    assert layout.read_state(where) is None


def test_the_default_folder_follows_environment_then_xdg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RINGLOG_STACK_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert layout.default_data_dir() == tmp_path / ".local" / "state" / "ringlog" / "stack"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert layout.default_data_dir() == tmp_path / "state" / "ringlog" / "stack"
    monkeypatch.setenv("RINGLOG_STACK_DATA", str(tmp_path / "mine"))
    assert layout.default_data_dir() == tmp_path / "mine"


def test_settings_of_the_user_win(tmp_path: Path) -> None:
    where = StackLayout(tmp_path)
    assert broker.own_properties(where) == {}
    where.own_properties.write_text("# mine\n\nlog.segment.bytes = 1048576\nnum.io.threads=77\n")
    broker.write_files(where, SETTINGS)
    lines = (where.broker / "server.properties").read_text().splitlines()
    assert {"log.segment.bytes=1048576", "num.io.threads=77", "node.id=1"} <= set(lines)
    assert len([line for line in lines if line.startswith("num.io.threads=")]) == 1
    where.own_properties.write_text("num.io.threads=2\nnonsense\n")
    with raises_code(StackError, "bad_settings", match="line 2"):
        broker.own_properties(where)
    where.own_properties.unlink()
    for endless in ("/dev/zero", "/dev/urandom"):
        where.own_properties.symlink_to(endless)
        with raises_code(StackError, "bad_settings", match=r"more than 1,048,576 bytes|not UTF-8 text"):
            broker.own_properties(where)
        where.own_properties.unlink()


def test_threads_of_a_broker_follow_the_processors_up_to_a_limit() -> None:
    found = {processors: tuple(map(int, broker.threads(processors).values())) for processors in (1, 2, 4, 8, 12, 64)}
    assert found == {1: (1, 1), 2: (1, 1), 4: (1, 2), 8: (2, 4), 12: (3, 6), 64: (3, 8)}


def test_broker_settings(tmp_path: Path) -> None:
    found = broker.properties(StackLayout(tmp_path), SETTINGS)
    wanted = {
        "auto.create.topics.enable": "false",
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
        "unclean.leader.election.enable": "false",
        "controller.quorum.voters": "1@127.0.0.1:20002",
        "message.max.bytes": "2097152",
        "group.min.session.timeout.ms": "1000",
    }
    assert wanted.items() <= found.items()


def test_the_broker_requires_the_login_of_the_clients_file(tmp_path: Path) -> None:
    where = StackLayout(tmp_path)
    assert not log_in.has_log_in(where, SETTINGS), "it has never been started"
    for _ in range(2):
        log_in.make_client_file(where)
        broker.write_files(where, SETTINGS)
        assert log_in.has_log_in(where, SETTINGS)
    found = log_in.read_log_in(where)
    client = read_kafka_config(where.client_properties).security.librdkafka()
    assert client == found.as_client()
    assert found.client not in where.server_properties.read_text(), "the broker stores the derived SCRAM credential"
    assert [path.stat().st_mode & 0o777 for path in (where.client_properties, where.server_properties)] == [0o600] * 2
    assert found.client not in repr(found)
    assert found.broker not in repr(found)
    broker.write_files(where, SETTINGS)
    assert log_in.read_log_in(where).client == found.client
    assert log_in.read_log_in(where).broker != found.broker, "each start has its own"
    where.client_properties.write_text("security.protocol=PLAINTEXT\n")
    with raises_code(StackError, "bad_settings", match="does not contain the password"):
        log_in.read_log_in(where)


@pytest.mark.parametrize("own", [PLAIN, {"listeners": "PLAINTEXT://127.0.0.1:20001,CONTROLLER://127.0.0.1:20002"}])
def test_custom_listeners_have_no_login_of_the_stack(tmp_path: Path, own: dict[str, str]) -> None:
    where = StackLayout(tmp_path)
    where.own_properties.write_text("".join(f"{name}={value}\n" for name, value in own.items()))
    broker.write_files(where, SETTINGS)
    assert not log_in.has_log_in(where, SETTINGS)


def test_cluster_ids_are_valid_in_kafka() -> None:
    drawn = {broker.new_cluster_id() for _ in range(200)}
    assert len(drawn) == 200
    assert all(len(text) == 22 and not text.startswith("-") for text in drawn)


def test_chosen_ports_are_free_different_and_high() -> None:
    chosen = processes.choose(20)
    assert len(set(chosen)) == 20
    assert all(processes.FIRST <= port <= processes.LAST and processes.is_free(port) for port in chosen)
    assert not set(processes.choose(5, avoid=frozenset(chosen))) & set(chosen)


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::")])
def test_a_process_that_listens_at_a_port_is_known(family: socket.AddressFamily, host: str) -> None:
    with socket.socket(family, socket.SOCK_STREAM) as server:
        server.bind((host, 0))
        port = server.getsockname()[1]
        assert not processes.listens(os.getpid(), port)
        server.listen(1)
        assert processes.listens(os.getpid(), port)
        other = subprocess.Popen(["sleep", "60"])
        try:
            assert not processes.listens(other.pid, port)
        finally:
            other.kill()
            other.wait()
        assert not processes.listens(other.pid, port), "it is gone"
    assert not processes.listens(os.getpid(), port)


def test_a_port_in_use_is_not_free_and_becomes_so() -> None:
    (port,) = processes.choose(1)
    with socket.create_server((processes.HOST, port)):
        assert not processes.is_free(port)
    assert processes.becomes_free(port)


def test_a_lock_is_seen_while_held_and_only_then(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not processes.is_locked(path)
    with processes.locked(path, wait=True) as mine:
        assert mine
        assert processes.is_locked(path)
        with processes.locked(path, wait=False) as second:
            assert not second
    assert not processes.is_locked(path)


def test_a_process_is_named_by_pid_and_start() -> None:
    process = subprocess.Popen(["sleep", "60"])
    started = processes.start_tick(process.pid)
    assert started is not None
    assert processes.is_alive(process.pid, started)
    assert not processes.is_alive(process.pid, started + 1), "the same pid given to a later process"
    processes.kill(process.pid, started + 1, signal.SIGKILL)
    assert process.poll() is None
    processes.kill(process.pid, started, signal.SIGKILL)
    assert processes.wait_until(lambda: processes.start_tick(process.pid) is None, 60), "a zombie is gone, too"
    assert process.wait() == -signal.SIGKILL


PARENT = """
import os, sys, pathlib
from ringlog.stack.processes import spawn_bound
log = pathlib.Path(sys.argv[1])
child = spawn_bound(["sleep", "600"], folder=log.parent, log=log, environment={"PATH": "/usr/bin:/bin"})
print(child.pid, flush=True)
child.wait()
"""


def test_a_bound_child_dies_with_its_killed_parent(tmp_path: Path) -> None:
    path = os.pathsep.join(sys.path)
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "log")],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    with parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        started = processes.start_tick(child)
        assert started is not None
        parent.kill()
    assert processes.wait_until(lambda: not processes.is_alive(child, started), 60)


def test_waiting_ends_when_time_is_up() -> None:
    assert not processes.wait_until(lambda: False, 0.0)
    assert processes.wait_until(lambda: True, 0.0)


def test_a_folder_without_a_stack(tmp_path: Path) -> None:
    stack = Stack(tmp_path / "none")
    status = stack.status()
    assert not status.running
    assert status.broker is None
    assert not stack.down()
    assert not stack.reset()
    with raises_code(StackError, "no_log"):
        stack.logs("broker")
    with raises_code(StackError, "unknown_log"):
        stack.logs("../../etc/passwd")
    with raises_code(StackError, "unknown_profile"):
        stack.up("fast")
    assert not (tmp_path / "none").exists(), "a read creates nothing"


def test_an_impossible_start_has_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    expected = pytest.raises(StackError, match=r"46 kafka jars are missing in .* Run: ringlog stack setup")
    with taking_down(Stack(tmp_path / "data")) as stack, expected:
        stack.up(timeout_s=30)
    assert not stack.status().running


def test_the_command_answers_in_json_and_with_exit_statuses(tmp_path: Path) -> None:
    run = CliRunner()
    data = ["--data", str(tmp_path / "none"), "--json"]
    status = run.invoke(app, ["status", *data])
    assert status.exit_code == 1
    assert json.loads(status.stdout) == dataclasses.asdict(Stack(tmp_path / "none").status())
    assert json.loads(run.invoke(app, ["down", *data]).stdout) == {"stopped": False}
    wrong = run.invoke(app, ["logs", "other", *data])
    assert wrong.exit_code == 1
    assert wrong.stdout == ""
    assert "unknown_log" in wrong.stderr


def test_reset_asks_first(tmp_path: Path) -> None:
    layout.write_settings(StackLayout(tmp_path), SETTINGS)
    (tmp_path / "broker").mkdir()
    refused = CliRunner().invoke(app, ["reset", "--data", str(tmp_path)], input="n\n")
    assert refused.exit_code == 1
    assert (tmp_path / "broker").is_dir()
    done = CliRunner().invoke(app, ["reset", "--data", str(tmp_path)], input="y\n")
    assert done.exit_code == 0
    assert not (tmp_path / "broker").exists()
    kept = layout.read_settings(StackLayout(tmp_path))
    assert kept is not None
    assert kept.broker_port == SETTINGS.broker_port
    assert kept.kafka_cluster_id != SETTINGS.kafka_cluster_id


# ``ringlog stack`` at the terminal shows full addresses and paths, because users copy them.


FOLDER = "/srv/far/from/the/root/of/the/disk/where/somebody/has/a/folder/for/it/ringlog/stack"
SOCKET = f"{FOLDER}/redis/redis.sock"


def test_up_shows_full_paths(capsys: pytest.CaptureFixture[str]) -> None:
    info = StackInfo("127.0.0.1:9092", f"unix://{SOCKET}", FOLDER, 1, 2, 3, "default", 10.0)
    places = [["kafka", "127.0.0.1:9092"], ["redis", f"unix://{SOCKET}"], ["data", FOLDER]]
    _show_info(info, 1.0)
    told = capsys.readouterr()
    assert [line.split()[:2] for line in told.out.splitlines()[1:]] == places
    assert told.err.startswith("note: the broker has no login")
    login = f"{FOLDER}/client.properties"
    _show_info(dataclasses.replace(info, kafka_config=login), 1.0)
    told = capsys.readouterr()
    assert [line.split()[:2] for line in told.out.splitlines()[1:]] == [places[0], ["login", login], *places[1:]]
    assert told.err == ""


def test_status_shows_full_paths(capsys: pytest.CaptureFixture[str]) -> None:
    broker, redis = (
        ChildStatus(name, True, True, place, 1, None) for name, place in (("broker", ""), ("redis", SOCKET))
    )
    _show_status(StackStatus(True, FOLDER, "default", 1, broker, redis, 10))
    rows = [line.split("│")[3].strip() for line in capsys.readouterr().out.splitlines() if line.count("│") == 5]
    assert SOCKET in "".join(rows)

"""The stored clusters of a user: identified by id, each with the settings of its broker, and unreadable for other
users.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ringlog.cache.redis_url import without_password
from ringlog.cli.main import app
from ringlog.cli.node import app as node_commands
from ringlog.cli.shared import connection
from ringlog.cli.shared.connection import (
    ABOUT_BROKERS,
    BrokerAddress,
    broker_of,
    print_broker,
    process_settings,
    report_unreachable,
    resolve,
    with_way_out,
)
from ringlog.cli.stack import cluster_files
from ringlog.client.creation.creation import ClusterCreation
from ringlog.client.participant.folder import exclusive_folder
from ringlog.kernel.values import replace
from ringlog.log.errors import CopyInUse, LogDamaged, TopicMissing
from ringlog.log.kafka import diagnosis
from ringlog.protocol.roles import ROLES
from ringlog.runtime import trust
from ringlog.runtime.context import (
    ClusterContext,
    StoredClusters,
    current_cluster,
    kafka_config_of,
    redis_of,
    remove_clusters,
    store_cluster,
    stored_clusters,
)
from ringlog.runtime.kafka.config import VARIABLE, current, use
from ringlog.runtime.kafka.security import BadKafkaConfig
from ringlog.runtime.settings import ProcessSettings
from ringlog.runtime.trust import TRUST_VARIABLE
from ringlog.stack import commands
from ringlog.stack.layout import StackAddress
from tests.cli.test_commands import nothing_is_known, run
from tests.waiting import at_once

__all__ = ["nothing_is_known"]

FIRST = ClusterContext("a:1", "shop", "redis://:pw@a/0", cluster_id="1" * 8)
SECOND = ClusterContext("b:1", "shop", "redis://b/0", cluster_id="2" * 8)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# ----------------------------------------------------------------------------------------------------- the file


def test_the_last_of_several_clusters_of_one_name_is_in_use() -> None:
    store_cluster(FIRST)
    store_cluster(SECOND)
    assert stored_clusters() == StoredClusters((FIRST, SECOND), SECOND)
    store_cluster(FIRST)
    assert (current_cluster(), set(stored_clusters().clusters)) == (FIRST, {FIRST, SECOND})


def test_a_recreated_cluster_replaces_its_namesake_at_the_broker() -> None:
    store_cluster(FIRST)
    ignore_remains = ClusterContext("a:1", "shop", "", cluster_id="3" * 8)
    store_cluster(ignore_remains)
    assert stored_clusters() == StoredClusters((ignore_remains,), ignore_remains)
    moved = ClusterContext("c:1", "shop", "", cluster_id="3" * 8)
    store_cluster(moved)
    assert stored_clusters() == StoredClusters((moved,), moved)


def test_removing_the_current_cluster_leaves_none_in_use() -> None:
    store_cluster(SECOND)
    store_cluster(FIRST)
    assert remove_clusters(lambda context: context == FIRST) == (FIRST,)
    assert stored_clusters() == StoredClusters((SECOND,), None)
    assert remove_clusters(lambda context: context == FIRST) == ()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"bootstrap": "b"}', '{"clusters": 1, "current": 0}', '{"clusters": [], "current": 3}']
)
def test_a_damaged_context_file_is_ignored(text: str, tmp_path: Path) -> None:
    store_cluster(FIRST)
    (tmp_path / "ringlog" / "context.json").write_text(text)
    assert stored_clusters() == StoredClusters()
    store_cluster(SECOND)
    assert current_cluster() == SECOND


def test_passwords_are_readable_by_the_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "ringlog"
    folder.mkdir(mode=0o755)
    (folder / "context.json").write_text("{}")
    (folder / "context.json").chmod(0o644)
    before = os.umask(0)
    try:
        store_cluster(FIRST)
    finally:
        os.umask(before)
    assert [mode(folder), *(mode(path) for path in sorted(folder.iterdir()))] == [0o700, 0o600, 0o600]
    assert not any("pw" in text for text in run("cluster", "list", "--json")[1:])
    assert without_password("rediss://me:pw@host:1/0") == "rediss://me:…@host:1/0"
    assert without_password("redis://:a/b@c@host/0") == "redis://:…@host/0"
    assert without_password("unix:///a@b?db=0&password=pw") == "unix:///a@b?db=0&password=…"
    given = "redis+sentinel://me:pw@h1,h2:1/main/0?sentinel_username=u&sentinel_password=pw"
    shown = "redis+sentinel://me:…@h1,h2:1/main/0?sentinel_username=u&sentinel_password=…"
    assert without_password(given) == shown
    assert without_password("unix:///a:b@c?db=0") == "unix:///a:b@c?db=0"


def test_reading_a_world_readable_file_restricts_its_mode(tmp_path: Path) -> None:
    store_cluster(FIRST)
    file = tmp_path / "ringlog" / "context.json"
    file.chmod(0o644)
    assert run("cluster", "list", "--json")[0] == 0
    assert mode(file) == 0o600


def test_concurrent_commands_lose_no_entry() -> None:
    many = [ClusterContext(f"b{number}:1", "c", "", cluster_id=f"{number}") for number in range(12)]
    at_once(store_cluster, many)
    assert set(stored_clusters().clusters) == set(many)


# -------------------------------------------------------------------------------------------------- the commands


def test_a_cluster_is_chosen_by_name_id_or_id_prefix() -> None:
    store_cluster(FIRST)
    other = ClusterContext("b:1", "till", "", cluster_id="2" * 8)
    store_cluster(other)
    assert run("cluster", "use", "shop")[0] == 0
    assert current_cluster() == FIRST
    assert run("cluster", "use", "22")[0] == 0
    assert current_cluster() == other
    assert json.loads(run("cluster", "current", "--json")[1])["cluster_id"] == other.cluster_id
    listed = json.loads(run("cluster", "list", "--json")[1])
    assert [(c["cluster"], c["in_use"]) for c in listed] == [("shop", False), ("till", True)]


def test_the_login_of_a_known_cluster_can_be_replaced(tmp_path: Path) -> None:
    store_cluster(FIRST)
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=PLAINTEXT")
    assert run("cluster", "use", "shop", "--kafka-config", str(file))[0] == 0
    assert stored_clusters().clusters == (replace(FIRST, kafka_config=str(file)),)
    assert run("cluster", "use", "shop")[0] == 0
    assert stored_clusters().clusters == (replace(FIRST, kafka_config=str(file)),)


def test_an_ambiguous_name_is_refused() -> None:
    store_cluster(FIRST)
    store_cluster(SECOND)
    status, _, err = run("cluster", "use", "shop")
    assert (status, err.startswith("ambiguous_cluster: ")) == (1, True)
    assert FIRST.cluster_id in err
    assert FIRST.bootstrap in err
    assert run("cluster", "use", FIRST.cluster_id)[0] == 0
    assert current_cluster() == FIRST


def test_an_unknown_cluster_is_reported() -> None:
    for words, code in ((["use", "x"], "unknown_cluster"), (["current"], "no_cluster")):
        status, out, err = run("cluster", *words)
        assert (status, out, err.partition(":")[0]) == (1, "", code)
    assert "no cluster is known" in run("cluster", "list")[1]


# ------------------------------------------------------------------------------------- what belongs to a broker


def test_localhost_equals_the_broker_with_its_address() -> None:
    known = replace(FIRST, bootstrap="127.0.0.1:1,b:2")
    store_cluster(known)
    store_cluster(SECOND)
    assert resolve("b:2, LocalHost:1", None) == replace(known, cluster_id="")
    assert resolve("localhost:1", None).redis == "", "other brokers may belong to another Kafka cluster"


def test_a_cache_is_never_used_for_another_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    store_cluster(SECOND)
    store_cluster(FIRST)
    assert resolve(None, None).redis == FIRST.redis
    assert resolve("b:1", None).redis == SECOND.redis
    assert resolve("c:1", None).redis == ""
    monkeypatch.setattr("ringlog.cli.shared.connection.addresses", lambda: (StackAddress("c:1", "unix:///c", ""),))
    assert resolve("c:1", None).redis == "unix:///c"
    store_cluster(ClusterContext("c:1", "shop", "redis://chosen", cluster_id="4"))
    assert resolve(None, None).redis == "redis://chosen"
    monkeypatch.setenv("RINGLOG_REDIS_URL", "redis://mine")
    assert resolve("c:1", None).redis == "redis://mine"


def test_the_source_of_the_broker_address_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert broker_of("a:1").origin == "--bootstrap"
    monkeypatch.setenv("RINGLOG_BOOTSTRAP_SERVERS", "b:1")
    assert broker_of("b:1").origin == "RINGLOG_BOOTSTRAP_SERVERS"
    store_cluster(FIRST)
    assert broker_of(None).origin.startswith("the cluster in use")
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=c:1")
    monkeypatch.setenv(VARIABLE, str(file))
    assert broker_of(None).bootstrap == "c:1"
    assert broker_of(None).origin == f"bootstrap.servers of {file}"


def test_a_login_belongs_to_its_broker(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.username=me\nsasl.password=pw\n")
    file.chmod(0o600)
    store_cluster(ClusterContext("a:1", "shop", "", str(file), "1"))
    assert resolve("b:1", None).kafka_config == ""
    assert current().security.username == ""
    assert resolve("a:1", None).kafka_config == str(file)
    assert current().security.username == "me"
    process_settings(resolve(None, None))
    assert os.environ[VARIABLE] == str(file)


def test_the_login_of_a_stack_overrides_the_stored_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stored file may belong to an earlier broker at that port. A file named by the user overrides both."""
    files = {}
    for name in ("stack", "stored", "named"):
        files[name] = tmp_path / f"{name}.properties"
        lines = f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username={name}\nsasl.password=pw\n"
        files[name].write_text(lines)
        files[name].chmod(0o600)
    store_cluster(ClusterContext("a:1", "shop", "", str(files["stored"]), "1"))
    stack = StackAddress("a:1", "unix:///a", str(files["stack"]))
    monkeypatch.setattr(commands, "addresses", lambda: (stack,))
    assert resolve(None, None).kafka_config == str(files["stack"])
    assert current().security.username == "stack"
    use(files["named"])
    assert resolve("a:1", None).kafka_config == str(files["named"])


def test_a_password_variable_belongs_to_the_file_of_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.username=me\n")
    store_cluster(ClusterContext("a:1", "shop", "", str(file), "1"))
    monkeypatch.setenv("RINGLOG_KAFKA_SASL_PASSWORD", "pw")
    with pytest.raises(BadKafkaConfig, match="has no effect with security"):
        resolve("b:1", None)
    assert resolve(None, None).kafka_config == str(file)
    assert (current().security.username, current().security.password) == ("me", "pw")


def test_certificates_belong_to_their_cluster(tmp_path: Path) -> None:
    file, token = tmp_path / "trust.properties", tmp_path / "token"
    file.write_text("token.file=token")
    token.write_text("a-token-of-many-letters")
    token.chmod(0o600)
    store_cluster(FIRST)
    assert run("cluster", "use", "shop", "--trust-config", str(file))[0] == 0
    assert trust.certificate_source() == f"tls.certificate of {file}, chosen by --trust-config"
    assert stored_clusters().clusters == (replace(FIRST, trust_config=str(file)),)
    assert run("cluster", "use", "shop")[0] == 0
    assert trust.certificate_source().endswith("chosen by RINGLOG_TRUST_CONFIG")
    os.environ.pop(TRUST_VARIABLE)
    assert (resolve("a:1", "till").trust_config, trust.current().tokens) == ("", ())
    assert resolve("a:1", "shop").trust_config == os.environ[TRUST_VARIABLE] == str(file)
    assert "chosen by the stored context of the cluster shop" in trust.certificate_source()
    assert trust.current().tokens == ("a-token-of-many-letters",)
    token.unlink()
    ended = CliRunner().invoke(app, ["node", "list", "--trust-config", str(tmp_path / "gone")])
    assert isinstance(ended.exception, trust.BadTrustConfig)


def test_a_request_key_belongs_to_its_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(trust.REQUEST_KEY_VARIABLE, "")
    file = tmp_path / "ops.key"
    file.write_text(f"ops/1/{'0' * 64}\n")
    file.chmod(0o600)
    store_cluster(FIRST)
    assert run("cluster", "use", "shop", "--request-key", str(file))[0] == 0
    assert stored_clusters().clusters == (replace(FIRST, request_key=str(file)),)
    os.environ.pop(trust.REQUEST_KEY_VARIABLE)
    assert (resolve("a:1", "till").request_key, trust.request_keys()) == ("", ())
    assert resolve("a:1", "shop").request_key == str(file)
    assert [key.name for key in trust.request_keys()] == ["ops"]
    os.environ.pop(trust.REQUEST_KEY_VARIABLE)
    (tmp_path / "n1.key").write_text(f"n1/1/{'0' * 64}\n")
    (tmp_path / "n1.key").chmod(0o600)
    (tmp_path / "n1.properties").write_text("request.key=n1.key\n")
    monkeypatch.setenv(TRUST_VARIABLE, str(tmp_path / "n1.properties"))
    assert resolve("a:1", "shop").request_key == "", "a node signs with the key of its own file"
    assert [key.name for key in trust.request_keys()] == ["n1"]


def test_the_cluster_in_use_sets_login_and_cache_of_a_shared_broker(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("old", "new")]
    for file in files:
        file.write_text("security.protocol=SSL\n", encoding="utf-8")
    first, second = (
        ClusterContext("a:1", name, f"redis://{name}", str(file), name) for name, file in zip("kl", files, strict=True)
    )
    store_cluster(first)
    store_cluster(second)
    assert (kafka_config_of("a:1"), redis_of("a:1")) == (str(files[1]), "redis://l")
    store_cluster(first)
    assert (kafka_config_of("a:1"), redis_of("a:1")) == (str(files[0]), "redis://k")
    store_cluster(SECOND)  # at another broker; of the clusters here, the newest one applies
    assert (kafka_config_of("a:1"), redis_of("a:1")) == (str(files[0]), "redis://k")


def test_an_unreadable_login_is_reported(tmp_path: Path) -> None:
    store_cluster(ClusterContext("a:1", "shop", "", str(tmp_path / "gone"), "1"))
    with pytest.raises(BadKafkaConfig, match="gone"):
        resolve(None, None)
    ended = CliRunner().invoke(app, ["node", "list", "--kafka-config", str(tmp_path / "gone")])
    assert isinstance(ended.exception, BadKafkaConfig)


def test_files_of_namesake_clusters_are_separate(tmp_path: Path) -> None:
    agents, nodes = tmp_path / "ringlog" / "agents", tmp_path / "ringlog" / "nodes"
    agents.mkdir(parents=True)

    def node(*names: str) -> Path:
        folder = nodes.joinpath(*names)
        folder.mkdir(parents=True)
        return folder

    def memory(name: str) -> Path:
        path = agents / f"{name}.json"
        path.touch()
        return path

    first, second = FIRST.cluster_id, SECOND.cluster_id
    mine = [memory(f"shop.{first}.{role}") for role in ROLES] + [node(f"shop.{first}", "n1").parent]
    for path in (
        memory(f"shop.{second}.keeper"),
        memory("shop.keeper"),
        node(f"shop.{second}", "n1"),
        node("shop", "n2"),
    ):
        assert path.exists()
    assert set(cluster_files(FIRST)) == set(mine)


def test_removing_a_cluster_deletes_its_files_unless_a_node_uses_them(tmp_path: Path) -> None:
    store_cluster(FIRST)
    store_cluster(replace(SECOND, cluster="till"))
    node = tmp_path / "ringlog" / "nodes" / f"shop.{FIRST.cluster_id}" / "n1"
    node.mkdir(parents=True)
    with exclusive_folder(node):
        assert isinstance(CliRunner().invoke(app, ["cluster", "forget", "shop", "--yes"]).exception, CopyInUse)
    assert run("cluster", "forget", "shop", typed="n\n")[0] == 1
    assert node.exists()
    assert json.loads(run("cluster", "forget", "shop", "--yes", "--json")[1])["deleted"] == [str(node.parent)]
    assert (node.parent.exists(), [one.cluster for one in stored_clusters().clusters]) == (False, ["till"])


def test_the_variable_sets_the_folder_of_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Path] = []

    @contextmanager
    def begin_in(*given: Any) -> Iterator[None]:
        begun.append(given[3])
        yield None

    monkeypatch.setattr(node_commands, "in_cluster", begin_in)
    monkeypatch.setattr(node_commands, "stop_on_signals", lambda _: None)
    monkeypatch.setattr(node_commands, "setup_logs", lambda: None)
    monkeypatch.setattr(node_commands, "private_process", lambda: None)
    for given, folder in ((str(tmp_path / "data"), tmp_path / "data"), ("", tmp_path / "ringlog")):
        monkeypatch.setenv("RINGLOG_DATA_DIR", given)
        assert CliRunner().invoke(app, ["node", "run", "n1"]).exit_code == 0
        assert begun.pop() == folder / "nodes"
        assert ProcessSettings().data_dir == folder, "agents and nodes use one folder"
        mine = folder / "nodes" / f"shop.{FIRST.cluster_id}"
        mine.mkdir(parents=True)
        assert cluster_files(FIRST) == [mine]


def test_errors_of_a_damaged_log_name_the_broker() -> None:
    """The command may have used the wrong broker."""
    damages = {LogDamaged, *LogDamaged.__subclasses__()}
    assert {one.code for one in damages} <= ABOUT_BROKERS


# ----------------------------------------------------------------------------------------------- a broker that is away


def test_waiting_for_an_unreachable_broker_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listens, socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # the port is reserved, and no process listens
        here, nowhere = (f"127.0.0.1:{one.getsockname()[1]}" for one in (listens, silent))
        for bootstrap in (here, f"{nowhere}, {here}"):
            report_unreachable(BrokerAddress(bootstrap, "", "--bootstrap"))
        assert capsys.readouterr().err == ""
        for bootstrap in (nowhere, "host:port", f"{nowhere},{nowhere}"):
            report_unreachable(BrokerAddress(bootstrap, "", "--bootstrap"))
            assert f"waiting for the broker {bootstrap}, set by --bootstrap" in capsys.readouterr().err


def test_a_running_stack_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """This happens after an ended demo, with a stack started since."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        nowhere = f"127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setattr(connection, "_brokers_used", [BrokerAddress(nowhere, "", "the cluster in use")])
        running = StackAddress(nowhere, "", ""), StackAddress("127.0.0.1:7", "", "")
        monkeypatch.setattr(connection, "addresses", lambda: running)
        print_broker("log_unavailable")
    said = capsys.readouterr().err
    assert f"the broker was {nowhere}, set by the cluster in use\n" in said
    assert said.endswith("a stack of yours runs at another address: --bootstrap 127.0.0.1:7\n")


@pytest.mark.parametrize("closes", [True, False])
def test_a_missing_login(closes: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A broker with authentication closes the connection of a client without it. Another program may not answer."""
    monkeypatch.setattr(diagnosis, "ASK_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=accept_all, args=(server, closes), daemon=True)
        thread.start()
        there = f"127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr(connection, "_brokers_used", [BrokerAddress(there, "", "--bootstrap")])
        monkeypatch.setattr(connection, "addresses", lambda: (StackAddress("127.0.0.1:7", "", ""),))
        print_broker("log_unavailable")
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
    said = capsys.readouterr().err
    assert "cause: no Kafka broker answers a client without login or TLS" in said
    assert said.endswith("a stack of yours runs at another address: --bootstrap 127.0.0.1:7\n")


def accept_all(server: socket.socket, closes: bool) -> None:
    with ExitStack() as accepted, suppress(OSError):
        while True:
            client, _ = server.accept()
            if closes:
                client.close()
            else:
                accepted.enter_context(client)


def founded(monkeypatch: pytest.MonkeyPatch, founding: ClusterCreation, *more: str) -> Result:
    monkeypatch.setattr("ringlog.cli.cluster.app.create_cluster", lambda *_, **__: founding)
    return CliRunner().invoke(app, ["cluster", "create", founding.name, "--bootstrap", "b:1", "--insecure", *more])


def test_creating_an_existing_cluster_keeps_the_one_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    store_cluster(FIRST)
    there = ClusterCreation("2" * 8, "shop", "", 0, here=False, copies=3)
    said = founded(monkeypatch, there)
    assert said.exit_code == 0
    assert "another cluster stays in use. To use this one: ringlog cluster use shop --bootstrap b:1" in said.stdout
    assert current_cluster() == FIRST
    assert {context.cluster_id for context in stored_clusters().clusters} == {FIRST.cluster_id, there.cluster_id}
    assert founded(monkeypatch, replace(there, here=True)).exit_code == 0
    in_use = current_cluster()
    assert in_use is not None
    assert in_use.cluster_id == there.cluster_id, "a new cluster becomes the current one"
    assert "stays in use" not in founded(monkeypatch, there).stdout


def test_settings_of_an_existing_cluster_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    there = ClusterCreation("2" * 8, "shop", "", 0, here=False, copies=3, ignored=("ranges_max",))
    said = founded(monkeypatch, there, "--set", "ranges_max=99", "--set", "history_entries=500")
    assert said.exit_code == 1
    change = "ringlog cluster set ranges_max=99"
    assert said.stderr.startswith("settings_ignored: ")
    assert change in said.stderr


def test_a_lost_cluster_is_recovered_and_a_new_one_is_created() -> None:
    store_cluster(FIRST)
    resolve("a:1", "shop")
    lost = str(with_way_out(TopicMissing("shop.metadata")))
    assert f"the cluster shop with the id {FIRST.cluster_id} has lost its log. Rebuild it: ringlog recover" in lost
    assert "cluster create" not in lost
    resolve("a:1", "other")
    unused = str(with_way_out(TopicMissing("other.metadata")))
    assert "Create it: ringlog cluster create other" in unused
    assert "recover" not in unused
    assert "repair-topics" in str(with_way_out(TopicMissing("other.acks")))

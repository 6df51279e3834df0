"""The clusters that a user knows: told apart by id, each with what belongs to its broker, and closed to other users."""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ringlog.cache.redis_url import without_password
from ringlog.cli import connection
from ringlog.cli.connection import (
    ABOUT_BROKERS,
    BrokerAddress,
    broker_of,
    process_settings,
    resolve,
    say_broker,
    tell_away,
)
from ringlog.cli.main import app
from ringlog.cli.stack import belongings
from ringlog.log.errors import LogDamaged
from ringlog.protocol.roles import ROLES
from ringlog.runtime import trust
from ringlog.runtime.context import (
    ClusterContext,
    KnownClusters,
    forget,
    kafka_config_of,
    known,
    recall,
    redis_of,
    remember,
)
from ringlog.runtime.kafka_config import VARIABLE, current
from ringlog.runtime.kafka_security import BadKafkaConfig
from ringlog.runtime.trust import TRUST_VARIABLE
from tests.cli.test_commands import nothing_is_known, run

__all__ = ["nothing_is_known"]

FIRST = ClusterContext("a:1", "shop", "redis://:pw@a/0", cluster_id="1" * 8)
SECOND = ClusterContext("b:1", "shop", "redis://b/0", cluster_id="2" * 8)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# ----------------------------------------------------------------------------------------------------- the file


def test_clusters_of_one_name_are_known_side_by_side_and_the_last_one_is_in_use() -> None:
    remember(FIRST)
    remember(SECOND)
    assert known() == KnownClusters((FIRST, SECOND), SECOND)
    remember(FIRST)
    assert (recall(), set(known().clusters)) == (FIRST, {FIRST, SECOND})


def test_a_cluster_founded_anew_takes_the_place_of_its_namesake_at_the_same_broker() -> None:
    remember(FIRST)
    anew = ClusterContext("a:1", "shop", "", cluster_id="3" * 8)
    remember(anew)
    assert known() == KnownClusters((anew,), anew)
    moved = ClusterContext("c:1", "shop", "", cluster_id="3" * 8)
    remember(moved)
    assert known() == KnownClusters((moved,), moved)


def test_a_cluster_that_is_forgotten_leaves_none_in_use() -> None:
    remember(SECOND)
    remember(FIRST)
    assert forget(lambda context: context == FIRST) == (FIRST,)
    assert known() == KnownClusters((SECOND,), None)
    assert forget(lambda context: context == FIRST) == ()


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"bootstrap": "b"}', '{"clusters": 1, "current": 0}', '{"clusters": [], "current": 3}'],
)
def test_a_broken_memory_is_none(text: str, tmp_path: Path) -> None:
    remember(FIRST)
    (tmp_path / "ringlog" / "context.json").write_text(text)
    assert known() == KnownClusters()
    remember(SECOND)
    assert recall() == SECOND


def test_the_one_cluster_that_an_earlier_release_knew_is_known(tmp_path: Path) -> None:
    remember(SECOND)
    (tmp_path / "ringlog" / "context.json").write_text('{"bootstrap": "a:1", "cluster": "c", "redis": "r"}')
    assert known() == KnownClusters((ClusterContext("a:1", "c", "r"),), ClusterContext("a:1", "c", "r"))


def test_passwords_are_nobody_elses_to_read(tmp_path: Path) -> None:
    folder = tmp_path / "ringlog"
    folder.mkdir(mode=0o755)
    (folder / "context.json").write_text("{}")
    (folder / "context.json").chmod(0o644)
    before = os.umask(0)
    try:
        remember(FIRST)
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


def test_what_an_earlier_release_left_open_is_closed_when_it_is_read(tmp_path: Path) -> None:
    remember(FIRST)
    file = tmp_path / "ringlog" / "context.json"
    file.chmod(0o644)
    assert run("cluster", "list", "--json")[0] == 0
    assert mode(file) == 0o600


def test_commands_at_once_lose_nothing() -> None:
    many = [ClusterContext(f"b{number}:1", "c", "", cluster_id=f"{number}") for number in range(12)]
    threads = [threading.Thread(target=remember, args=(context,)) for context in many]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(known().clusters) == set(many)


# -------------------------------------------------------------------------------------------------- the commands


def test_a_cluster_is_chosen_by_name_by_id_or_by_how_its_id_begins() -> None:
    remember(FIRST)
    other = ClusterContext("b:1", "till", "", cluster_id="2" * 8)
    remember(other)
    assert run("cluster", "use", "shop")[0] == 0
    assert recall() == FIRST
    assert run("cluster", "use", "22")[0] == 0
    assert recall() == other
    assert json.loads(run("cluster", "current", "--json")[1])["cluster_id"] == other.cluster_id
    listed = json.loads(run("cluster", "list", "--json")[1])
    assert [(c["cluster"], c["in_use"]) for c in listed] == [("shop", False), ("till", True)]


def test_a_known_cluster_can_be_given_another_log_in(tmp_path: Path) -> None:
    remember(FIRST)
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=PLAINTEXT")
    assert run("cluster", "use", "shop", "--kafka-config", str(file))[0] == 0
    assert known().clusters == (replace(FIRST, kafka_config=str(file)),)
    assert run("cluster", "use", "shop")[0] == 0
    assert known().clusters == (replace(FIRST, kafka_config=str(file)),)


def test_a_name_that_two_clusters_have_is_not_guessed() -> None:
    remember(FIRST)
    remember(SECOND)
    status, _, err = run("cluster", "use", "shop")
    assert (status, err.startswith("ambiguous_cluster: ")) == (1, True)
    assert FIRST.cluster_id in err
    assert FIRST.bootstrap in err
    assert run("cluster", "use", FIRST.cluster_id)[0] == 0
    assert recall() == FIRST


def test_what_is_not_known_is_said() -> None:
    for words, code in ((["use", "x"], "unknown_cluster"), (["current"], "no_cluster")):
        status, out, err = run("cluster", *words)
        assert (status, out, err.partition(":")[0]) == (1, "", code)
    assert "no cluster is known" in run("cluster", "list")[1]


# ------------------------------------------------------------------------------------- what belongs to a broker


def test_a_cache_is_never_taken_for_that_of_another_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    remember(SECOND)
    remember(FIRST)
    assert resolve(None, None).redis == FIRST.redis
    assert resolve("b:1", None).redis == SECOND.redis
    assert resolve("c:1", None).redis == ""
    monkeypatch.setattr("ringlog.cli.connection.addresses", lambda: (("c:1", "unix:///c"),))
    assert resolve("c:1", None).redis == "unix:///c"
    remember(ClusterContext("c:1", "shop", "redis://127.0.0.1:1/0"))
    assert resolve(None, None).redis == "unix:///c", "an earlier release remembered a port"
    remember(ClusterContext("c:1", "shop", "redis://chosen", cluster_id="4"))
    assert resolve(None, None).redis == "redis://chosen"
    monkeypatch.setenv("RINGLOG_REDIS_URL", "redis://mine")
    assert resolve("c:1", None).redis == "redis://mine"


def test_who_named_the_broker_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert broker_of("a:1").origin == "--bootstrap"
    monkeypatch.setenv("RINGLOG_BOOTSTRAP_SERVERS", "b:1")
    assert broker_of("b:1").origin == "RINGLOG_BOOTSTRAP_SERVERS"
    remember(FIRST)
    assert broker_of(None).origin.startswith("the cluster in use")
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=c:1")
    monkeypatch.setenv(VARIABLE, str(file))
    assert broker_of(None).bootstrap == "c:1"
    assert broker_of(None).origin == f"bootstrap.servers of {file}"


def test_a_log_in_goes_with_its_broker(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.username=me\nsasl.password=pw\n")
    remember(ClusterContext("a:1", "shop", "", str(file), "1"))
    assert resolve("b:1", None).kafka_config == ""
    assert current().security.username == ""
    assert resolve("a:1", None).kafka_config == str(file)
    assert current().security.username == "me"
    process_settings(resolve(None, None))
    assert os.environ[VARIABLE] == str(file)


def test_a_password_of_a_variable_goes_with_the_file_of_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.username=me\n")
    remember(ClusterContext("a:1", "shop", "", str(file), "1"))
    monkeypatch.setenv("RINGLOG_KAFKA_SASL_PASSWORD", "pw")
    with pytest.raises(BadKafkaConfig, match="says nothing under security"):
        resolve("b:1", None)
    assert resolve(None, None).kafka_config == str(file)
    assert (current().security.username, current().security.password) == ("me", "pw")


def test_certificates_go_with_their_cluster(tmp_path: Path) -> None:
    file, token = tmp_path / "trust.properties", tmp_path / "token"
    file.write_text("token.file=token")
    token.write_text("a-token-of-many-letters")
    token.chmod(0o600)
    remember(FIRST)
    assert run("cluster", "use", "shop", "--trust-config", str(file))[0] == 0
    assert known().clusters == (replace(FIRST, trust_config=str(file)),)
    os.environ.pop(TRUST_VARIABLE)
    assert (resolve("a:1", "till").trust_config, trust.current().tokens) == ("", ())
    assert resolve("a:1", "shop").trust_config == os.environ[TRUST_VARIABLE] == str(file)
    assert trust.current().tokens == ("a-token-of-many-letters",)
    token.unlink()
    ended = CliRunner().invoke(app, ["node", "list", "--trust-config", str(tmp_path / "gone")])
    assert isinstance(ended.exception, trust.BadTrustConfig)


def test_of_two_clusters_at_one_broker_the_one_in_use_says_how_to_log_in_and_where_the_cache_is(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("old", "new")]
    for file in files:
        file.write_text("security.protocol=SSL\n", encoding="utf-8")
    first, second = (
        ClusterContext("a:1", name, f"redis://{name}", str(file), name) for name, file in zip("kl", files, strict=True)
    )
    remember(first)
    remember(second)
    assert (kafka_config_of("a:1"), redis_of("a:1")) == (str(files[1]), "redis://l")
    remember(first)
    assert (kafka_config_of("a:1"), redis_of("a:1")) == (str(files[0]), "redis://k")
    remember(SECOND)  # at another broker: of those here the newest counts
    assert (kafka_config_of("a:1"), redis_of("a:1")) == (str(files[0]), "redis://k")


def test_a_log_in_that_cannot_be_read_any_more_is_said(tmp_path: Path) -> None:
    remember(ClusterContext("a:1", "shop", "", str(tmp_path / "gone"), "1"))
    with pytest.raises(BadKafkaConfig, match="gone"):
        resolve(None, None)
    ended = CliRunner().invoke(app, ["node", "list", "--kafka-config", str(tmp_path / "gone")])
    assert isinstance(ended.exception, BadKafkaConfig)


def test_what_belongs_to_a_cluster_is_told_from_its_namesakes(tmp_path: Path) -> None:
    agents, nodes = tmp_path / "ringlog" / "agents", tmp_path / "ringlog" / "nodes"
    agents.mkdir(parents=True)

    def node(*names: str, cluster_id: str = "") -> Path:
        folder = nodes.joinpath(*names)
        folder.mkdir(parents=True)
        if cluster_id:
            (folder / "acknowledged.json").write_text(json.dumps({"cluster_id": cluster_id, "epoch": 1}))
        return folder

    def memory(name: str) -> Path:
        path = agents / f"{name}.json"
        path.touch()
        return path

    first, second = FIRST.cluster_id, SECOND.cluster_id
    mine = [memory(f"shop.{first}.{role}") for role in ROLES] + [node(f"shop.{first}", "n1").parent]
    named, fresh = node("shop", "n2", cluster_id=first), node("shop", "n4")
    legacy = memory("shop.keeper")
    others = [memory(f"shop.{second}.keeper"), node(f"shop.{second}", "n1"), node("shop", "n3", cluster_id=second)]
    others += [memory("shop.keeper.keeper"), node("till", "n1")]
    remember(FIRST)
    assert set(belongings(FIRST)) == {*mine, named, fresh, legacy}
    remember(SECOND)
    assert set(belongings(FIRST)) == {*mine, named}, "what could be either's is nobody's"
    assert not set(belongings(FIRST)) & set(others)


def test_after_every_error_of_a_damaged_log_the_broker_is_named() -> None:
    """It may be the wrong one that was asked."""
    damages = {LogDamaged, *LogDamaged.__subclasses__()}
    assert {one.code for one in damages} <= ABOUT_BROKERS


# ----------------------------------------------------------------------------------------------- a broker that is away


def test_who_waits_for_a_broker_that_is_away_is_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listens, socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # nobody else may have that port, and nobody listens
        here, nowhere = (f"127.0.0.1:{one.getsockname()[1]}" for one in (listens, silent))
        for bootstrap in (here, f"{nowhere}, {here}"):
            tell_away(BrokerAddress(bootstrap, "", "--bootstrap"))
        assert capsys.readouterr().err == ""
        for bootstrap in (nowhere, "host:port", f"{nowhere},{nowhere}"):
            tell_away(BrokerAddress(bootstrap, "", "--bootstrap"))
            assert f"waiting for the broker {bootstrap}, named by --bootstrap" in capsys.readouterr().err


def test_where_the_broker_in_use_is_away_a_stack_that_runs_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after a demo that was ended, with the stack that one has started since."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        nowhere = f"127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setattr(connection, "_asked", [BrokerAddress(nowhere, "", "the cluster in use")])
        monkeypatch.setattr(connection, "addresses", lambda: ((nowhere, ""), ("127.0.0.1:7", "")))
        say_broker("log_unavailable")
    said = capsys.readouterr().err
    assert f"the broker asked was {nowhere}, named by the cluster in use\n" in said
    assert said.endswith("a stack of yours runs elsewhere: --bootstrap 127.0.0.1:7\n")

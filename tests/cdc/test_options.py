"""Files for the job's command line: credentials of its producers and the login to Kafka."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from ringlog.log.kafka.permissions import Rights
from ringlog.runtime.context import ClusterContext, store_cluster
from ringlog.runtime.kafka.config import VARIABLE, current
from ringlog.stack import commands
from ringlog.stack.layout import StackAddress
from ringlog_cdc.cli import lake_patterns, log_in, producer_options
from ringlog_cdc.topics.sink import ORDER, sink_options


@pytest.fixture(autouse=True)
def nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.delenv(VARIABLE)


def test_credentials_are_read_as_granted(tmp_path: Path) -> None:
    path = tmp_path / "producer.properties"
    granted = {"bootstrap.servers": "b:1", **Rights("ringlog.c.w.1", "pw").java_properties("SASL_PLAINTEXT")}
    path.write_text("# granted\n" + "".join(f"{name}={value}\n" for name, value in granted.items()))
    assert dict(producer_options(path)) == granted
    for text, rule in (
        ("nonsense", "line 1: not a name=value line"),
        ("a=1\na=2", "line 2: a is already set in line 1"),
    ):
        path.write_text(text)
        with pytest.raises(typer.BadParameter, match=rule):
            producer_options(path)
    with pytest.raises(typer.BadParameter, match="cannot be read"):
        producer_options(tmp_path)
    with pytest.raises(typer.BadParameter, match="more than 1,048,576 bytes"):
        producer_options(Path("/dev/zero"))


def test_tables_of_a_lake_are_checked() -> None:
    assert lake_patterns(None, ()) == ()
    assert lake_patterns("/lake", ["shop.*"]) == ("shop.*",)
    with pytest.raises(typer.BadParameter, match="needs --lake"):
        lake_patterns(None, ["shop.*"])
    for wrong in ([""], ["a,b"], ["x" * 201], ["x"] * 101):
        with pytest.raises(typer.BadParameter, match="at most 100 patterns"):
            lake_patterns("/lake", wrong)


@pytest.mark.parametrize(("name", "value"), sorted(ORDER.items()))
def test_options_cannot_break_the_order_of_rows(tmp_path: Path, name: str, value: str) -> None:
    """A producer that drops a record after two minutes without a broker and sends the next one leaves a gap."""
    path = tmp_path / "producer.properties"
    path.write_text(f"linger.ms=5\n{name}=0\n")
    with pytest.raises(typer.BadParameter, match=f"the job sets {name} itself, {value}"):
        producer_options(path)
    assert sink_options("b:1", [(name, "0"), ("linger.ms", "5")]).items() >= {
        (f"kafka.{name}", value),
        ("kafka.linger.ms", "5"),
        ("kafka.bootstrap.servers", "b:1"),
    }


def test_the_job_logs_in(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "client.properties"
    path.write_text("security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.username=me\nsasl.password=pw\n")
    path.chmod(0o600)
    store_cluster(ClusterContext("b:1", "c", "", str(path), "1"))
    log_in("other:1", None)
    assert current().security.username == ""
    log_in("b:1", None)
    assert current().security.username == "me"
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr(commands, "addresses", lambda: (StackAddress("stack:1", "", str(path)),))
    log_in("stack:1", None)
    assert current().security.username == "me"
    with pytest.raises(typer.Exit):
        log_in("b:1", tmp_path / "nowhere")
    assert capsys.readouterr().err.startswith("ringlog cdc: bad_kafka_config: ")


def test_options_unknown_to_java_are_refused_before_spark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "client.properties"
    for name in ("certificate", "key"):
        (tmp_path / f"{name}.pem").touch(0o600)
    path.write_text("security.protocol=SSL\nssl.certificate.location=certificate.pem\nssl.key.location=key.pem\n")
    with pytest.raises(typer.Exit):
        log_in("b:1", path)
    assert "one PEM file" in capsys.readouterr().err


def test_the_job_uses_the_broker_of_the_other_commands(tmp_path: Path) -> None:
    with pytest.raises(typer.BadParameter, match="no broker is set"):
        log_in(None, None)
    store_cluster(ClusterContext("inuse:1", "c", "", "", "1"))
    assert log_in(None, None) == "inuse:1"
    path = tmp_path / "client.properties"
    path.write_text("bootstrap.servers=file:1\n")
    assert log_in(None, path) == "file:1"
    assert log_in("named:1", path) == "named:1"

"""The list of jars: its permitted contents, the folder of the jars, and the detection of wrong bytes."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from ringlog.stack import artifacts, maven
from ringlog.stack.artifacts import Artifact
from ringlog.stack.errors import StackError
from tests.refusals import raises_code


def names(set_name: str) -> set[tuple[str, str]]:
    return {(jar.name, jar.version) for jar in artifacts.artifacts(set_name)}


def test_the_committed_list_names_the_broker_and_the_connectors() -> None:
    assert {("kafka_2.13", "4.2.1"), ("log4j-core", "2.25.4"), ("log4j-slf4j-impl", "2.25.4")} <= names("kafka")
    assert {("spark-sql-kafka-0-10_2.13", "4.0.2"), ("kafka-clients", "3.9.1")} <= names("spark-4.0")
    assert names("lake-4.0") == {("delta-spark_2.13", "4.0.1"), ("delta-storage", "4.0.1")}
    assert {("spark-sql-kafka-0-10_2.13", "4.2.0"), ("kafka-clients", "3.9.2")} <= names("spark-4.2")
    assert {("delta-spark_4.2_2.13", "4.4.0"), ("delta-storage", "4.4.0")} <= names("lake-4.2")


def test_no_jar_is_listed_twice_in_a_set() -> None:
    listed = {one for spark in artifacts.SPARK_RELEASES for one in artifacts.sets(spark)}
    for set_name in listed:
        found = [(jar.group, jar.name) for jar in artifacts.artifacts(set_name)]
        assert len(found) == len(set(found)) > 0
    assert {jar.set_name for jar in artifacts.parse(artifacts.LIST.read_text())} == listed


@pytest.mark.parametrize("found", ["3.5.1", "4.1.0", "5.0.0"])
def test_another_spark_is_refused(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "version", lambda _name: found)
    with raises_code(StackError, "spark_unsupported", match=found):
        artifacts.spark_jars()


@pytest.mark.parametrize(
    "line",
    [
        "0" * 63 + "  kafka  a:b:1",
        "0" * 64 + " kafka a:b:1",
        "0" * 64 + "  kafka  a:b",
        "G" * 64 + "  kafka  a:b:1",
        "0" * 64 + "  kafka  a:b:1 # why",
        "0" * 64 + "  kafka  ../a:b:1",
    ],
)
def test_a_bad_line_is_refused_by_its_number(line: str) -> None:
    with raises_code(StackError, "bad_artifact_list", match="Line 2 "):
        artifacts.parse(f"# a comment\n{line}\n")


def test_the_cache_follows_the_xdg_rule(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert artifacts.cache_root() == tmp_path / ".cache" / "ringlog"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    assert artifacts.cache_root() == tmp_path / "elsewhere" / "ringlog"


@pytest.fixture
def one_jar(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Artifact:
    """Return a list with a single small jar, and an empty cache."""
    listing = tmp_path / "list"
    digest = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"  # of b"hello"
    listing.write_text(f"{digest}  kafka  org.example:hello:1.0\n")
    monkeypatch.setattr(artifacts, "LIST", listing)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return artifacts.artifacts("kafka")[0]


def test_absent_and_wrong_jars_are_reported_as_unsound(one_jar: Artifact) -> None:
    place = artifacts.jar_folder("kafka") / "hello-1.0.jar"
    assert artifacts.damaged("kafka") == (one_jar,)
    place.parent.mkdir(parents=True)
    place.write_bytes(b"hellO")
    assert artifacts.damaged("kafka") == (one_jar,)
    place.write_bytes(b"hello")
    assert artifacts.damaged("kafka") == ()
    assert artifacts.jars("kafka") == (place,)


def test_a_request_for_missing_jars_names_the_command(one_jar: Artifact) -> None:
    with pytest.raises(StackError, match=rf"the first is {one_jar.file_name}\. Run: ringlog stack setup"):
        artifacts.jars("kafka")


def client_that_brings(content: bytes) -> maven.Client:
    """Return a client that delivers these bytes for each request."""

    def command(wanted: object, staging: Path) -> list[str]:
        (staging / "bytes").write_bytes(content)
        return ["cp", str(staging / "bytes"), str(staging / "hello-1.0.jar")]

    return command


def test_wrong_bytes_are_refused_and_another_is_asked(one_jar: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    clients = (("bad", client_that_brings(b"evil")), ("good", client_that_brings(b"hello")))
    monkeypatch.setattr(maven, "CLIENTS", clients)
    maven.fetch("kafka", lambda _text: None)
    assert artifacts.damaged("kafka") == ()
    assert [path.name for path in artifacts.jar_folder("kafka").iterdir()] == [one_jar.file_name]


def test_wrong_bytes_from_all_fail_and_leave_nothing(one_jar: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maven, "CLIENTS", (("bad", client_that_brings(b"evil")),))
    with raises_code(StackError, "fetch_failed", match=r"hello-1\.0\.jar has SHA-256 .* expected 2cf24d"):
        maven.fetch("kafka", lambda _text: None)
    assert artifacts.damaged("kafka") == (one_jar,)
    assert list(artifacts.jar_folder("kafka").iterdir()) == []


def test_jars_of_an_interrupted_run_are_used(one_jar: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maven, "CLIENTS", ())
    staging = artifacts.cache_root() / "staging" / "kafka"
    staging.mkdir(parents=True)
    (staging / one_jar.file_name).write_bytes(b"hello")
    maven.fetch("kafka", lambda _text: None)
    assert artifacts.damaged("kafka") == ()


def test_both_clients_request_each_jar_without_dependencies() -> None:
    wanted = artifacts.artifacts("kafka")
    namespace = "{http://maven.apache.org/POM/4.0.0}"
    project = ElementTree.fromstring(maven.pom(wanted))
    dependencies = project.findall(f"{namespace}dependencies/{namespace}dependency")
    assert [node.findtext(f"{namespace}artifactId") for node in dependencies] == [jar.name for jar in wanted]
    excluded = f"{namespace}exclusions/{namespace}exclusion/{namespace}artifactId"
    assert {node.findtext(excluded) for node in dependencies} == {"*"}

    module = ElementTree.fromstring(maven.ivy_file(wanted))
    asked = module.findall("dependencies/dependency")
    assert [(node.get("name"), node.get("rev")) for node in asked] == [(jar.name, jar.version) for jar in wanted]
    assert {node.get("transitive") for node in asked} == {"false"}

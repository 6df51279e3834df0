"""Commands reject bad input with a code and change no topic, archive, replica or node.

The tests use a real broker and the operator's commands. Each case creates its bad input, captures everything, runs the
command, and compares: all bytes on the disk, and both ends of each partition of each topic.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.certificates import needs_openssl
from tests.kernel.entries import uuid
from tests.system.test_recovery import World
from typer.testing import CliRunner

from ringlog.cli.main import app
from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.encoding.encoder import digest
from ringlog.kernel.values import replace
from ringlog.log.kafka.adapter import KafkaLog
from ringlog.log.opening import open_snapshots
from ringlog.log.replicas import start_point as start_finder
from ringlog.log.snapshots import encode_snapshot
from ringlog.node.identity import NodeFolder, NodeOptions, folder_of
from ringlog.operator.certificates import make_certificates
from ringlog.runtime.kafka.config import VARIABLE, connection
from ringlog.runtime.trust import TRUST_VARIABLE
from ringlog.stack import StackInfo

pytestmark = [pytest.mark.system, pytest.mark.slow]

Forge = Callable[[Any, Any], tuple[Any, Any]]


class Scene(World):
    """A cluster with an archive and a log replica, and their captured contents."""

    def __init__(self, stack: StackInfo, cluster: str, folder: Path) -> None:
        super().__init__(stack, cluster, folder)
        self.folder = folder

    def picture(self) -> tuple[dict[str, bytes], dict[tuple[str, int], tuple[int, int]]]:
        """Return all files, and begin and end of each partition of each topic of the cluster."""
        files = {str(path): path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}
        reader = Consumer({**connection(self.place[0]), "group.id": "picture", "log_level": 2})
        with closing(reader):
            topics = reader.list_topics(timeout=30).topics
            ours = {name: topic for name, topic in topics.items() if name.startswith(f"{self.place[1]}.")}
            assert len(ours) > 10
            return files, {
                (name, number): reader.get_watermark_offsets(TopicPartition(name, number), timeout=30)
                for name, topic in ours.items()
                for number in topic.partitions
            }

    def refused(self, *words: str) -> str:
        """Return the code of the rejected command after checking that nothing has changed."""
        before = self.picture()
        ended = CliRunner().invoke(app, [*words])
        assert ended.exit_code != 0, ended.output
        assert self.picture() == before
        code = getattr(ended.exception, "code", None)
        return code if isinstance(code, str) else ended.stderr.partition(":")[0]

    @property
    def where(self) -> tuple[str, ...]:
        return "--bootstrap", self.place[0], "--cluster", self.place[1]


@pytest.fixture
def scene(stack: StackInfo, cluster_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    for name in (VARIABLE, TRUST_VARIABLE):
        monkeypatch.setenv(name, "")  # a command option leaves its value in this variable
    return Scene(stack, cluster_name, tmp_path)


def _part(head: Any, chunks: Any) -> tuple[Any, Any]:
    return head, (replace(chunks[0], data=chunks[0].data[:-1] + b"?"), *chunks[1:])


def _digest(head: Any, chunks: Any) -> tuple[Any, Any]:
    return replace(head, digest="0" * 64), chunks


@pytest.mark.parametrize("forge", [_part, _digest], ids=["a part", "the digest"])
def test_a_forged_snapshot(scene: Scene, forge: Forge, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two members confirmed it and the log has its mark, but no process uses it: a new process has the state of the
    log.
    """
    with monkeypatch.context() as patched:
        patched.setattr(start_finder, "encode_snapshot", lambda *arguments: forge(*encode_snapshot(*arguments)))
        scene.snapshot()
    with closing(open_snapshots(*scene.place)) as topic:
        (stored,) = topic.listed()
        assert not stored.code, "it looks valid until its chunks are read"
    assert scene.refused("log", "verify", *scene.where) == "snapshot_forged"
    before = scene.picture()
    with closing(KafkaLog(*scene.place)) as log, scene.replica(log, memory=False) as replica:
        state = replica.read_barrier(60)
    assert scene.picture() == before
    past = json.loads(CliRunner().invoke(app, ["log", "at", str(state.epoch), "--json", *scene.where]).stdout)
    assert digest(state) == past["digest"]


def test_an_archive_with_a_gap(scene: Scene) -> None:
    scene.apply(Noop())
    ended = CliRunner().invoke(app, ["log", "archive", "--to", str(scene.archive), "--no-record", *scene.where])
    assert ended.exit_code == 0, ended.output
    first, second = sorted(path for path in scene.archive.iterdir() if path.is_file())
    first.unlink()
    assert second.stat().st_size > 0
    assert scene.refused("log", "verify", "--archive", str(scene.archive), *scene.where) == "archive_gap"
    why = "--operator", "ann", "--reason", "a test", "--replace"
    assert scene.refused("recover", str(scene.archive), *why, *scene.where) == "archive_gap"


def test_a_state_file_that_breaks_an_invariant(scene: Scene) -> None:
    exported = scene.folder / "state.json"
    ended = CliRunner().invoke(app, ["recover", str(scene.member), "--export", str(exported), *scene.where])
    assert ended.exit_code == 0, ended.output
    state = json.loads(exported.read_text(encoding="utf-8"))
    state["parts"]["node_names"] = {"n1": "no such node"}
    exported.write_text(json.dumps(state), encoding="utf-8")
    why = "--operator", "ann", "--reason", "a test", "--replace", "--state", str(exported)
    assert scene.refused("recover", str(scene.member), *why, *scene.where) == "state_unsound"


@pytest.mark.parametrize("option", ["acks=all", "sasl.oauthbearer.config=x", "isolation.level=read_uncommitted"])
def test_a_properties_file_with_an_unknown_key(scene: Scene, option: str) -> None:
    path = scene.folder / "client.properties"
    path.write_text(f"bootstrap.servers={scene.place[0]}\n{option}\n", encoding="utf-8")
    for words in (["cluster", "create", f"{scene.place[1]}2"], ["submit", '{"command": "Noop"}', *scene.where]):
        assert scene.refused(*words, "--kafka-config", str(path)) == "bad_kafka_config"


@needs_openssl
def test_a_certificate_of_another_node(scene: Scene) -> None:
    mine, other = uuid(1, space=2), uuid(2, space=2)
    made = scene.folder / "trust"
    make_certificates(made, [("n1", mine), ("n2", other)], [], 2)
    nodes, state = scene.folder / "nodes", scene.apply()
    folder = folder_of(nodes, scene.place[1], state.cluster_id, "n1")
    NodeFolder(NodeOptions("n1", "127.0.0.1", 0, "dc1", "r1", 2, folder, certified=mine)).close()
    words = ["node", "run", "n1", "--data", str(nodes), *scene.where]
    assert scene.refused(*words, "--trust-config", str(made / "n2.properties")) == "certificate_of_another_node"
    unknown = made / "unknown.properties"
    shutil.copy(made / "n1.properties", unknown)
    unknown.write_text(f"{unknown.read_text(encoding='utf-8')}tls.cipher=x\n", encoding="utf-8")
    assert scene.refused(*words, "--trust-config", str(unknown)) == "bad_trust_config"

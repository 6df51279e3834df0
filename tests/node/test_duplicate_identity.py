"""Copies of a node's folder: an older copy does not start, and of two concurrent runs only the latest is the node."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ringlog.client.participant.duplicate_identity import DuplicateCheck
from ringlog.log.memory import MemoryLog
from ringlog.node.identity import NodeFolder, NodeOptions
from ringlog.protocol.nodes.errors import NodeFailed
from ringlog.wire.acks import digest_of_key, with_mac
from ringlog.wire.records import NodeAck, encode_node_ack
from tests.node.data_world import until

CLUSTER = "00000000-0000-7000-8000-0000000000c1"
OTHER = "00000000-0000-7000-8000-0000000000c2"
STATE = "00000000-0000-7000-8000-000000000007"


KEY, LATER = "the-key-of-this-node", "its-key-from-now-on"


def encoded_ack(node: str, name: str, epoch: int, cluster_id: str = CLUSTER) -> bytes:
    return encode_node_ack(NodeAck(cluster_id, node, name, epoch, epoch, (), 0, 0))


class Run:
    """One run of the node of a folder, limited to its acknowledgements."""

    def __init__(self, folder: Path, acks: MemoryLog, keys: tuple[str, ...] = ()) -> None:
        self.acks, self.keys = acks, keys
        self.folder = NodeFolder(NodeOptions("n1", "127.0.0.1", 0, "dc1", "r1", 2, folder), CLUSTER)
        self.duplicate_check = DuplicateCheck(
            acks, self.folder.node, self.folder.incarnation, lambda: self.keys, self.folder.ack_keys
        )
        self.duplicate_check.keep = self.folder.store_ack_keys

    def begin(self) -> Run:
        self.duplicate_check.check(CLUSTER, self.folder.acknowledged)
        self.duplicate_check.start()
        return self

    def acknowledge(self, epoch: int, cluster_id: str = CLUSTER) -> None:
        if cluster_id == CLUSTER:
            self.folder.keep(cluster_id, epoch, STATE)
        data = encoded_ack(self.folder.node, self.folder.incarnation, epoch, cluster_id)
        self.acks.append([with_mac(data, self.keys[0]) if self.keys else data])

    def notes(self, keys: tuple[str, ...]) -> None:
        """Read until the folder contains these keys."""
        wanted = tuple(map(digest_of_key, keys))
        until(lambda: self.folder.stored_ack_keys() == wanted, "the node to store its keys")

    def ends(self) -> str:
        until(lambda: self.duplicate_check.failure is not None, "the node to end")
        return str(self.duplicate_check.failure)

    def end(self) -> None:
        self.duplicate_check.stop()
        self.folder.close()


def copy_of(folder: Path) -> Path:
    """Copy the folder for a second machine. The port is free there."""
    copy = Path(shutil.copytree(folder, folder.with_name("copy")))
    kept = json.loads((copy / "identity.json").read_text())
    (copy / "identity.json").write_text(json.dumps(kept | {"port": 0}))
    return copy


@pytest.fixture
def acks() -> MemoryLog:
    return MemoryLog("shop.acks")


def refused(run: Run, match: str) -> None:
    """Check that the node refuses to start, and return the reason."""
    with pytest.raises(NodeFailed, match=match):
        run.begin()
    run.end()


def test_a_restarted_node_keeps_its_identity(tmp_path: Path, acks: MemoryLog) -> None:
    for epoch in (3, 3, 5):
        run = Run(tmp_path / "n1", acks).begin()
        run.acknowledge(epoch)
        run.end()
        assert run.duplicate_check.failure is None


def test_a_copy_older_than_the_last_start_is_rejected(tmp_path: Path, acks: MemoryLog) -> None:
    first = Run(tmp_path / "n1", acks).begin()
    first.end()
    copy = copy_of(tmp_path / "n1")
    second = Run(tmp_path / "n1", acks).begin()
    second.acknowledge(1)
    refused(Run(copy, acks), "in its start 2, but this folder has epoch 0 and start 2")
    second.end()


def test_a_copy_without_acknowledged_data_is_rejected(tmp_path: Path, acks: MemoryLog) -> None:
    """A folder restored from a backup, or the disk of a restored machine, does not start."""
    run = Run(tmp_path / "n1", acks).begin()
    run.acknowledge(4)
    copy = copy_of(tmp_path / "n1")
    run.acknowledge(5)
    run.end()
    refused(Run(copy, acks), r"acknowledged epoch 5 .* this folder has epoch 4 .* an older copy")


def test_the_later_of_two_concurrent_runs_is_the_node(tmp_path: Path, acks: MemoryLog) -> None:
    one = Run(tmp_path / "n1", acks).begin()
    one.acknowledge(4)
    two = Run(copy_of(tmp_path / "n1"), acks).begin()
    two.acknowledge(5)
    assert "another process has become this node" in one.ends()
    one.acknowledge(6)
    assert two.duplicate_check.failure is None
    one.end()
    two.end()


def test_acks_of_other_nodes_and_clusters_are_ignored(tmp_path: Path, acks: MemoryLog) -> None:
    run = Run(tmp_path / "n1", acks)
    run.acknowledge(9, cluster_id=OTHER)
    acks.append([b"no acknowledgement", run.folder.node.encode()])
    run.begin()
    assert run.duplicate_check.failure is None
    run.end()


def test_a_recreated_acks_topic_is_read_from_its_start(tmp_path: Path, acks: MemoryLog) -> None:
    one = Run(tmp_path / "n1", acks).begin()
    one.acknowledge(4)
    copy = copy_of(tmp_path / "n1")
    acks.truncate(0)
    two = Run(copy, acks).begin()
    two.acknowledge(5)
    assert "another process has become this node" in one.ends()
    one.end()
    two.end()


def test_a_client_without_the_key_cannot_stop_a_node_with_one(tmp_path: Path, acks: MemoryLog) -> None:
    """A client without the node's key can stop neither a running node nor its restart, even if it
    claims a later start or epoch.
    """
    forged = ("99@thief", 99)
    run = Run(tmp_path / "n1", acks, (KEY,)).begin()
    run.acknowledge(4)
    acks.append(
        [
            encoded_ack(run.folder.node, *forged),
            with_mac(encoded_ack(run.folder.node, *forged), "the-key-of-another-node"),
        ]
    )
    run.acknowledge(5)
    run.end()
    assert run.duplicate_check.failure is None
    again = Run(tmp_path / "n1", acks, (LATER, KEY)).begin()
    assert again.duplicate_check.failure is None
    acks.append([with_mac(encoded_ack(again.folder.node, "99@copy", 9), KEY)])
    assert "another process has become this node" in again.ends(), "the owner of the key is accepted"
    again.end()


def test_unsigned_acks_expose_an_older_copy(tmp_path: Path, acks: MemoryLog) -> None:
    run = Run(tmp_path / "n1", acks).begin()
    run.acknowledge(4)
    copy = copy_of(tmp_path / "n1")
    run.acknowledge(5)
    run.end()
    refused(Run(copy, acks, (KEY,)), r"acknowledged epoch 5 .* an older copy")
    assert Run(tmp_path / "n1", acks, (KEY,)).begin().end() is None


def test_a_node_without_its_key_accepts_all_acks_again(tmp_path: Path, acks: MemoryLog) -> None:
    Run(tmp_path / "n1", acks, (KEY,)).begin().end()
    run = Run(tmp_path / "n1", acks).begin()
    acks.append([encoded_ack(run.folder.node, "99@thief", 99)])
    assert "another process has become this node" in run.ends()
    run.end()


def test_an_older_copy_is_rejected_after_a_key_change(tmp_path: Path, acks: MemoryLog) -> None:
    """A record signed by the replaced key looks unsigned, so the node checks all records."""
    run = Run(tmp_path / "n1", acks, (KEY,)).begin()
    run.acknowledge(5)
    run.end()
    copy = copy_of(tmp_path / "n1")
    run = Run(tmp_path / "n1", acks, (KEY,)).begin()
    run.acknowledge(50)
    run.end()
    for keys in ((KEY,), (LATER, KEY), (LATER,), ()):
        other = Run(copy, acks, keys)
        with pytest.raises(NodeFailed, match=r"acknowledged epoch 50 .* an older copy"):
            other.begin()
        other.end()
    Run(tmp_path / "n1", acks, (LATER,)).begin().end()


@pytest.mark.parametrize("others", [(LATER, KEY), (LATER,)])
def test_a_key_given_later_protects_the_next_start(tmp_path: Path, acks: MemoryLog, others: tuple[str, ...]) -> None:
    run = Run(tmp_path / "n1", acks).begin()
    for keys in ((KEY,), others):
        run.keys = keys
        run.notes(keys)
    run.acknowledge(5)
    acks.append([encoded_ack(run.folder.node, "999@thief", 99)])
    run.acknowledge(6)
    run.end()
    assert run.duplicate_check.failure is None
    Run(tmp_path / "n1", acks, others).begin().end()


def test_a_forged_unsigned_record_is_reported(tmp_path: Path, acks: MemoryLog) -> None:
    node = Run(tmp_path / "n1", acks)
    node.end()
    acks.append([b"", encoded_ack(node.folder.node, "999@thief", 99)])
    refused(
        Run(tmp_path / "n1", acks, (KEY,)), r"at offset 1 of shop.acks, in a record without a valid MAC.* repair-topics"
    )
    acks.truncate(0)
    Run(tmp_path / "n1", acks, (KEY,)).begin().end()

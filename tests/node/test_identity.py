"""A node's folder: one identity, one process, and an epoch that never decreases."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from ringlog.kernel.model.state import EMPTY_STATE
from ringlog.kernel.values import replace
from ringlog.log.replicas.identity import KnownEpoch
from ringlog.node.identity import NodeFolder, NodeOptions, folder_of
from ringlog.protocol.nodes.errors import NodeFailed
from ringlog.stack.processes import FIRST, LAST

CLUSTER = "00000000-0000-7000-8000-0000000000c1"
OTHER = "00000000-0000-7000-8000-0000000000c2"
STATE = "00000000-0000-7000-8000-000000000007"


@pytest.fixture
def options(tmp_path: Path) -> NodeOptions:
    return NodeOptions("n1", "127.0.0.1", 0, "dc1", "r1", 2, tmp_path / "n1")


def test_id_and_port_are_kept(options: NodeOptions) -> None:
    first = NodeFolder(options)
    kept = (first.node, first.port)
    assert FIRST <= first.port <= LAST, "no outgoing connection uses it while the node is down"
    first.close()
    again = NodeFolder(options)
    assert (again.node, again.port) == kept
    again.close()


def test_the_socket_listens(options: NodeOptions) -> None:
    folder = NodeFolder(options)
    with socket.create_connection(("127.0.0.1", folder.port), timeout=60):
        pass
    folder.close()


def test_a_folder_belongs_to_one_process_at_a_time(options: NodeOptions) -> None:
    first = NodeFolder(options)
    with pytest.raises(NodeFailed, match="another process"):
        NodeFolder(options)
    first.close()
    NodeFolder(options).close()


def test_a_port_in_use_is_reported_and_nothing_is_stored(options: NodeOptions) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(NodeFailed, match=str(port)):
            NodeFolder(replace(options, port=port))
    assert not (options.folder / "identity.json").exists()
    NodeFolder(options).close()


@pytest.mark.parametrize("name", ["identity.json", "acknowledged.json"])
@pytest.mark.parametrize("text", ["", "{", "[]", '{"port": "x", "epoch": -1}'])
def test_a_damaged_file_stops_the_node(options: NodeOptions, name: str, text: str) -> None:
    NodeFolder(options).close()
    (options.folder / name).write_text(text)
    with pytest.raises(NodeFailed, match="restore"):
        NodeFolder(options)


def test_the_acknowledged_epoch_is_durable_and_never_decreases(options: NodeOptions) -> None:
    folder = NodeFolder(options)
    folder.keep(CLUSTER, 7, STATE)
    folder.keep(CLUSTER, 5, CLUSTER)
    kept = json.loads((options.folder / "acknowledged.json").read_text())
    assert kept == {"cluster_id": CLUSTER, "epoch": 7, "state_id": STATE}
    folder.close()
    again = NodeFolder(options)
    assert again.acknowledged == 7
    assert again.seen() == (KnownEpoch(7, STATE, str(options.folder / "acknowledged.json")),)
    state = replace(EMPTY_STATE, cluster_id=CLUSTER, epoch=7)
    again.check(state)
    with pytest.raises(NodeFailed, match="acknowledged epoch 7, and the log ends at epoch 6"):
        again.check(replace(state, epoch=6))
    with pytest.raises(NodeFailed, match="another folder"):
        again.check(replace(state, cluster_id="other"))
    again.close()


def test_the_same_names_in_another_cluster_are_another_folder(options: NodeOptions, tmp_path: Path) -> None:
    mine = folder_of(tmp_path, "shop", CLUSTER, "n1")
    other = folder_of(tmp_path, "shop", OTHER, "n1")
    assert mine != other
    assert "shop" in str(mine)
    folder = NodeFolder(replace(options, folder=mine), CLUSTER)
    folder.keep(CLUSTER, 7, STATE)
    folder.close()
    with pytest.raises(NodeFailed, match=f"is a node of cluster {CLUSTER}, this one is {OTHER}: use another folder"):
        NodeFolder(replace(options, folder=mine), OTHER)
    NodeFolder(replace(options, folder=mine), CLUSTER).close()

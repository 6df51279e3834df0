"""The cluster in memory that ``ringlog.testing`` gives to users' tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ringlog
from ringlog import AppliedResult, RejectedResult, commands
from ringlog.operator.history.log_lines import write_dump
from ringlog.testing import FakeCluster


def three_nodes(seed: int = 0) -> FakeCluster:
    cluster = FakeCluster(seed=seed)
    cluster.add_nodes(3)
    return cluster


def stages(cluster: FakeCluster) -> set[str]:
    return {operation.stage for operation in cluster.state.operations.values()}


def test_nodes_join_and_leave() -> None:
    cluster = three_nodes()
    assert [node.state for node in cluster.state.nodes.values()] == ["normal"] * 3
    with cluster.client("deploy") as client:
        assert isinstance(client.submit(commands.leave("n2")), AppliedResult)
        left = cluster.settle(lambda state: {one.name for one in state.nodes.values() if one.state == "left"})
        assert [one.name for one in left.nodes.values() if one.state == "left"] == ["n2"]
        assert client.read_barrier().epoch == cluster.state.epoch


def test_a_client_gets_the_validators_answers() -> None:
    with three_nodes().client("deploy") as client:
        since = client.state.epoch
        made = client.submit(commands.create_keyspace("ks", 1), request_id=ID, since_epoch=since)
        again = client.submit(commands.create_keyspace("ks", 1), request_id=ID, since_epoch=since)
        refused = client.submit(commands.create_keyspace("ks", 1))
    assert made == again
    assert isinstance(made, AppliedResult)
    assert isinstance(refused, RejectedResult)
    assert refused.code == "keyspace_exists"


ID = "018bcfe5-6800-7000-8a53-3bb852f38eb6"


def test_a_new_node_gets_tablets_and_partitions_of_zones() -> None:
    cluster = FakeCluster()
    cluster.add_nodes(2)
    with cluster.client("deploy") as client:
        for command in (
            commands.create_keyspace("ks", commands.tablets(1)),
            commands.create_table("ks", "t", {"id": "uuid"}, partition_key=["id"]),
            commands.create_zone("z", partitions=8, replicas=1),
        ):
            assert isinstance(client.submit(command), AppliedResult), command
    cluster.add_nodes(1)
    new = next(one.id for one in cluster.state.nodes.values() if one.name == "n3")

    def has_both(state: ringlog.ClusterState) -> bool:
        tablets = any(one.node == new for each in state.tablets.values() for t in each for one in t.replicas)
        return tablets and any(
            one.stable is not None and new in one.stable.nodes for one in state.zone_partitions.values()
        )

    cluster.settle(has_both)


def test_a_join_waits_for_a_majority_that_does_not_see_it() -> None:
    cluster = three_nodes()
    with cluster.client("deploy") as client:
        client.submit(commands.create_keyspace("ks", 3))
    cluster.hold("node-n[12]", kind="Join")
    with pytest.raises(ringlog.WaitTimedOut):
        cluster.add_nodes(1)
    assert stages(cluster) != {"finished"}
    cluster.release()
    cluster.settle(lambda state: all(one.stage == "finished" for one in state.operations.values()))


def test_a_held_commit_is_applied_after_its_release() -> None:
    cluster = three_nodes()
    with cluster.client("deploy") as client:
        cluster.hold(commit=True, kind="CreateKeyspace")
        answer = client.submit_future(commands.create_keyspace("ks", 1))
        cluster.step()
        assert not answer.done()
        assert "ks" not in cluster.state.keyspaces
        cluster.release()
        assert isinstance(answer.result(), AppliedResult)
        assert "ks" in cluster.state.keyspaces


def test_the_same_calls_write_the_same_log() -> None:
    assert three_nodes().digest == three_nodes().digest != three_nodes(seed=1).digest


def test_time_moves_as_far_as_the_test_says() -> None:
    cluster = three_nodes()
    before = cluster.clock.monotonic()
    cluster.advance(2.5)
    assert cluster.clock.monotonic() == pytest.approx(before + 2.5)
    with pytest.raises(ringlog.WaitTimedOut):
        cluster.settle(lambda state: False, within=5)
    assert cluster.clock.monotonic() == pytest.approx(before + 7.5)


def test_a_recorded_log_continues(tmp_path: Path) -> None:
    before = three_nodes()
    write_dump(tmp_path / "a.log", before._metadata.tail(0).poll(0.0))
    after = FakeCluster.replay(tmp_path / "a.log")
    assert after.digest == before.digest
    assert after.add_nodes(1) == ("n4",)


def test_the_plug_in_is_cheap_and_provides_the_cluster(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(ringlog_cluster):\n    ringlog_cluster.add_nodes(1)\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", PLUGIN, "-p", "no:cacheprovider", str(tmp_path)]
    # It is also loaded by its entry point where Ringlog is installed, and pytest refuses a plug-in under two names.
    alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ended = subprocess.run(command, cwd=tmp_path, env=alone, capture_output=True, text=True, check=False)
    assert "1 passed" in ended.stdout, ended.stdout
    code = f"import sys, {PLUGIN}; print([n for n in sys.modules if n.startswith('ringlog.') or n == 'numpy'])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


PLUGIN = "ringlog_testing.pytest_plugin"

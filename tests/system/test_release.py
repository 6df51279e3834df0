"""A release comes to a running cluster: its features, its schemas, and what its publisher finds in the topics."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.system.agents_world import AgentsWorld, until
from tests.system.nodes_world import NodesWorld
from typer.testing import CliRunner, Result

from ringlog.cli.main import app
from ringlog.client.errors import SchemasIncompatible
from ringlog.client.schemas import publish_schemas
from ringlog.kernel.changes import CHANGES_OF
from ringlog.log.held import held
from ringlog.log.topics import SCHEMAS, topic_name
from ringlog.stack import StackInfo
from ringlog.wire.changes import content_of, decode_change, encode_change
from ringlog_schemas import CatalogueSchema, current, fingerprint_of

pytestmark = [pytest.mark.system, pytest.mark.slow]

NODES = "ringlog.changes.NodeChange"


@pytest.fixture
def world(stack: StackInfo, cluster_name: str, tmp_path: Path) -> Iterator[NodesWorld]:
    made = NodesWorld(AgentsWorld(stack, cluster_name, tmp_path), tmp_path)
    try:
        yield made
    finally:
        made.close()


def run(world: NodesWorld, *words: str) -> Result:
    where = ["--bootstrap", world.agents.stack.bootstrap_servers, "--cluster", world.agents.cluster, "--json"]
    return CliRunner().invoke(app, [*words, *where])


def answer(world: NodesWorld, *words: str) -> Any:
    """What a command printed that ended well."""
    ended = run(world, *words)
    assert ended.exit_code == 0, (words, ended.output)
    return json.loads(ended.stdout)


def changed(change: Callable[[dict[str, Any]], None]) -> CatalogueSchema:
    """Another release's schema of nodes."""
    found = copy.deepcopy(dict(current()[NODES].json))
    change(found)
    return CatalogueSchema(NODES, found, fingerprint_of(found))


@pytest.mark.soak(
    "tests/kernel/test_released_logs.py and the checks of schemas against those of releases; a release runs this"
)
def test_a_release_comes_to_a_running_cluster(world: NodesWorld) -> None:
    for name in ("a", "b"):
        world.begin(name, release="0.0.9")
    world.await_normal("a", "b")
    refused = run(world, "cluster", "enable-feature", "tablets")
    assert refused.exit_code == 1
    assert json.loads(refused.stdout)["code"] == "feature_unsupported"
    assert "not supported by a, b" in refused.stdout
    assert answer(world, "cluster", "features") == []

    for name in ("a", "b"):
        world.nodes[name].upgrade()
    until(
        lambda: all((node := world.member(name)) and node.features == ("tablets",) for name in ("a", "b")),
        "both nodes to announce the features of this release",
    )
    assert answer(world, "cluster", "enable-feature", "tablets")["outcome"] == "applied"
    (feature,) = answer(world, "cluster", "features")
    assert (feature["name"], feature["lacked_by"]) == ("tablets", [])
    assert feature["enabled"] is not None

    newer, older = world.begin("c", join=False), world.begin("d", join=False, release="0.0.9")
    until(lambda: world.member("c"), "a node of this release to register")
    assert older.process.wait(240) != 0
    assert "feature_missing" in older.log.read_text()
    assert world.member("d") is None
    assert not newer.is_dead()

    assert answer(world, "node", "update", "a", "--capacity", "3")["outcome"] == "applied"
    (shown,) = (node for node in answer(world, "node", "list") if node["name"] == "a")
    assert (shown["capacity"], shown["features"]) == (3, ["tablets"])
    refused = run(world, "node", "update", "a", "--no-features")
    assert json.loads(refused.stdout)["code"] == "feature_missing"

    asked = answer(world, "cdc", "repair", "--by", "alice")["request"]
    assert (asked["requester"], asked["stage"]) == ("alice", "nothing_to_do")
    assert asked in answer(world, "operation", "list")
    _schemas(world.agents)
    _restores(world.agents)


def _schemas(agents: AgentsWorld) -> None:
    """What does not fit is not written; what fits is, once."""
    servers, topic = agents.stack.bootstrap_servers, topic_name(agents.cluster, SCHEMAS.suffix)
    there = held(servers, topic, bytes)
    other = changed(lambda schema: schema["fields"].append({"name": "zone", "type": "string", "doc": "It."}))
    with pytest.raises(SchemasIncompatible, match=r"schemas_incompatible: .*NodeChange\.zone"):
        publish_schemas(servers, agents.cluster, ours={NODES: other}, texts=((other.hex, json.dumps(other.json)),))
    assert held(servers, topic, bytes) == there
    fits = changed(
        lambda schema: schema["fields"].append({"name": "zone", "type": "string", "default": "", "doc": "It."})
    )
    texts = ((fits.hex, json.dumps(fits.json)),)
    assert [publish_schemas(servers, agents.cluster, ours={NODES: fits}, texts=texts) for _ in range(2)] == [1, 0]
    assert held(servers, topic, bytes).keys() == {*there, fits.hex}


def _restores(agents: AgentsWorld) -> None:
    """A key that nobody ended, one that was lost, one under which somebody wrote something else: the next publisher
    writes a tombstone, and the records.
    """
    servers, topic = agents.stack.bootstrap_servers, topic_name(agents.cluster, "features")
    until(lambda: "tablets" in held(servers, topic, bytes), "the feature to be told")
    agents.running("publisher").stop()
    producer = Producer({"bootstrap.servers": servers})
    producer.produce(topic, encode_change(CHANGES_OF["features"](1, "ghost", 1)), key=b"ghost", partition=0)
    producer.produce(topic, None, key=b"tablets", partition=0)
    nodes = topic_name(agents.cluster, "nodes")
    key, value = next(iter(held(servers, nodes, bytes).items()))
    other: Any = decode_change(value)
    producer.produce(nodes, encode_change(replace(other, address="elsewhere:1")), key=key.encode(), partition=0)
    producer.flush(60)
    assert held(servers, topic, bytes).keys() == {"ghost"}
    agents.start("publisher")
    until(lambda: held(servers, topic, bytes).keys() == {"tablets"}, "the topic to be restored")
    until(lambda: held(servers, nodes, content_of)[key] == content_of(value), "what somebody else wrote to be replaced")

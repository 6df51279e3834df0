"""The restore of a starting publisher: it rewrites change topics that differ from the last published state."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from ringlog.kernel import sections as parts
from ringlog.kernel.changes import EPOCHS, ChangeRecord, diff, project
from ringlog.kernel.commands.cluster.features import EnableFeature
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.schema.user_types import CreateType, DropType
from ringlog.kernel.commands.topology.nodes import UpdateNode
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState
from ringlog.kernel.sections import SCHEMA
from ringlog.kernel.values import Replication, TypeField, replace
from ringlog.protocol.followers.publisher import restoration_of
from ringlog.wire.changes import CHANGES, content_digest, encode_change
from ringlog_schemas import current
from tests.kernel.entries import NODES, applied, founded, with_normal_nodes
from tests.log.test_snapshots import Cluster

FEATURES = "features"
STATE = applied(
    with_normal_nodes(founded(), 1),
    UpdateNode(NODES[0], features=("split",)),
    EnableFeature("split"),
    CreateKeyspace("ks", Replication("simple", 1)),
    CreateType("ks", "old", (TypeField("f", "int"),)),
    CreateType("ks", "kept", (TypeField("f", "int"),)),
)


Held = dict[str, dict[str, bytes]]
EARLIER = b""
"""A value in another form than this release writes."""


def published_topics(*states: ClusterState) -> Held:
    """Return the topics after the publication of these states in order."""
    held: Held = {}
    for before, after in pairwise((EMPTY_STATE, *states)):
        for record in diff(before, after):
            topic = held.setdefault(record.topic, {})
            if record.value is None:
                topic.pop(record.key, None)
            else:
                topic[record.key] = content_digest(encode_change(record.value))
    return held


def restored(state: ClusterState, held: Held) -> list[ChangeRecord]:
    return list(restoration_of(state, lambda topic: held.get(topic, {})).records)


def test_each_value_starts_with_its_epoch_outside_the_content() -> None:
    for name in CHANGES:
        assert current()[name].json["fields"][0]["name"] == "epoch", name
    for epoch in (0, 1, 63, 64, 2**40):
        values = [replace(value, epoch=epoch) for value in project(STATE).values()]
        assert [content_digest(encode_change(value)) for value in values] == [
            content_digest(encode_change(value)) for value in project(STATE).values()
        ]
    assert len({content_digest(encode_change(value)) for value in values}) == len(values)
    assert content_digest(b"") == content_digest(b"no value of ours") == EARLIER


def test_different_values_are_written_again() -> None:
    """Another client wrote to the topic or restored an older copy."""
    after = applied(STATE, UpdateNode(NODES[0], address="elsewhere:1"))
    older, newer = published_topics(STATE)[parts.NODES], published_topics(STATE, after)
    found = restoration_of(after, lambda topic: (newer | {parts.NODES: older}).get(topic, {}))
    (record,) = found.records
    assert (record.topic, record.value) == (parts.NODES, project(after)[parts.NODES, record.key])
    assert (found.other, found.unseen) == (1, 0)
    few = restoration_of(after, lambda topic: (newer | {parts.NODES: older}).get(topic, {}), compared_max=0)
    assert (few.records, few.other, few.unseen) == ((), 0, len(project(after)) - 1), "everything except the head"


@pytest.mark.parametrize("seed", range(3))
def test_values_published_epoch_by_epoch_are_not_written_again(seed: int) -> None:
    cluster = Cluster()
    states = [cluster.state]
    for _ in range(12):
        cluster.live(random.Random(f"{seed}/{len(states)}"), 5)
        states.append(cluster.state)
    assert restored(states[-1], published_topics(*states)) == []


def test_complete_topics_get_no_records() -> None:
    assert restored(STATE, published_topics(STATE)) == []


def test_missing_values_are_written() -> None:
    held = published_topics(STATE)
    del held[FEATURES]
    (record,) = restored(STATE, held)
    assert (record.topic, record.key, record.value) == (FEATURES, "split", project(STATE)[FEATURES, "split"])


def test_values_of_an_earlier_release_are_written_again() -> None:
    held = published_topics(STATE)
    held[SCHEMA]["type/ks.old"] = EARLIER
    assert [(one.key, one.value is None) for one in restored(STATE, held)] == [("type/ks.old", False)]


def test_values_dropped_without_a_publisher_are_removed() -> None:
    """Types were dropped while a publisher that did not know them was active."""
    held = published_topics(STATE)
    held[SCHEMA]["type/ks.kept"] = EARLIER
    after = applied(STATE, DropType("ks", "old"))
    assert [(one.key, one.value is None) for one in restored(after, held)] == [
        ("type/ks.old", True),
        ("type/ks.kept", False),
    ]


def test_a_topic_without_values_in_the_state_is_checked() -> None:
    assert restored(founded(), {parts.NODES: {"a node": b"content"}}) == [ChangeRecord(parts.NODES, "a node", None)]


def test_values_of_a_later_release_are_left_unchanged() -> None:
    held = published_topics(STATE)
    held[SCHEMA]["trigger/ks.v"] = EARLIER
    held["of-a-later-release"] = {"key": EARLIER}
    assert restored(STATE, held) == []


def test_the_head_is_not_written_again() -> None:
    assert EPOCHS not in {record.topic for record in restored(STATE, {})}

"""What a publisher that starts writes into change topics that are not those of the state that was published last."""

from __future__ import annotations

import random
from dataclasses import replace
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
from ringlog.kernel.values import Replication, TypeField
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
"""The content of a value that is not as this release writes it."""


def told(*states: ClusterState) -> Held:
    """Topics as they are when one state after the other was told."""
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


def test_the_epoch_stands_first_in_each_value_and_is_no_content() -> None:
    for name in CHANGES:
        assert current()[name].json["fields"][0]["name"] == "epoch", name
    for epoch in (0, 1, 63, 64, 2**40):
        values = [replace(value, epoch=epoch) for value in project(STATE).values()]
        assert [content_digest(encode_change(value)) for value in values] == [
            content_digest(encode_change(value)) for value in project(STATE).values()
        ]
    assert len({content_digest(encode_change(value)) for value in values}) == len(values)
    assert content_digest(b"") == content_digest(b"no value of ours") == EARLIER


def test_what_says_something_else_is_written_again() -> None:
    """Somebody wrote there, or put an older copy of the topic in its place."""
    after = applied(STATE, UpdateNode(NODES[0], address="elsewhere:1"))
    older, newer = told(STATE)[parts.NODES], told(STATE, after)
    found = restoration_of(after, lambda topic: (newer | {parts.NODES: older}).get(topic, {}))
    (record,) = found.records
    assert (record.topic, record.value) == (parts.NODES, project(after)[parts.NODES, record.key])
    assert (found.other, found.unseen) == (1, 0)
    few = restoration_of(after, lambda topic: (newer | {parts.NODES: older}).get(topic, {}), compared_max=0)
    assert (few.records, few.other, few.unseen) == ((), 0, len(project(after)) - 1), "all but the head"


@pytest.mark.parametrize("seed", range(3))
def test_what_was_told_epoch_by_epoch_is_not_told_again(seed: int) -> None:
    cluster = Cluster()
    states = [cluster.state]
    for _ in range(12):
        cluster.live(random.Random(f"{seed}/{len(states)}"), 5)
        states.append(cluster.state)
    assert restored(states[-1], told(*states)) == []


def test_topics_that_are_whole_get_nothing() -> None:
    assert restored(STATE, told(STATE)) == []


def test_what_is_lacking_is_written() -> None:
    held = told(STATE)
    del held[FEATURES]
    (record,) = restored(STATE, held)
    assert (record.topic, record.key, record.value) == (FEATURES, "split", project(STATE)[FEATURES, "split"])


def test_what_an_earlier_release_wrote_is_written_again() -> None:
    held = told(STATE)
    held[SCHEMA]["type/ks.old"] = EARLIER
    assert [(one.key, one.value is None) for one in restored(STATE, held)] == [("type/ks.old", False)]


def test_what_went_while_nobody_told_goes() -> None:
    """Types were dropped while a publisher was at work that did not know them."""
    held = told(STATE)
    held[SCHEMA]["type/ks.kept"] = EARLIER
    after = applied(STATE, DropType("ks", "old"))
    assert [(one.key, one.value is None) for one in restored(after, held)] == [
        ("type/ks.old", True),
        ("type/ks.kept", False),
    ]


def test_a_topic_of_which_the_state_has_nothing_is_looked_at() -> None:
    assert restored(founded(), {parts.NODES: {"a node": b"content"}}) == [ChangeRecord(parts.NODES, "a node", None)]


def test_what_a_later_release_tells_is_left_alone() -> None:
    held = told(STATE)
    held[SCHEMA]["trigger/ks.v"] = EARLIER
    held["of-a-later-release"] = {"key": EARLIER}
    assert restored(STATE, held) == []


def test_the_head_is_not_written_again() -> None:
    assert EPOCHS not in {record.topic for record in restored(STATE, {})}

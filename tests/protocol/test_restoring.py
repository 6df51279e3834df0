"""What a publisher that starts writes into change topics that are not those of the state that was published last."""

from __future__ import annotations

from ringlog.kernel import parts
from ringlog.kernel.changes import EPOCHS, SCHEMA, ChangeRecord, project
from ringlog.kernel.commands.features import EnableFeature
from ringlog.kernel.commands.keyspaces import CreateKeyspace
from ringlog.kernel.commands.nodes import UpdateNode
from ringlog.kernel.commands.user_types import CreateType, DropType
from ringlog.kernel.state import ClusterState
from ringlog.kernel.values import Replication, TypeField
from ringlog.protocol.publisher import restoring
from tests.kernel.entries import NODES, applied, founded, with_normal_nodes

FEATURES = "features"
STATE = applied(
    with_normal_nodes(founded(), 1),
    UpdateNode(NODES[0], features=("split",)),
    EnableFeature("split"),
    CreateKeyspace("ks", Replication("simple", 1)),
    CreateType("ks", "old", (TypeField("f", "int"),)),
    CreateType("ks", "kept", (TypeField("f", "int"),)),
)


def told(state: ClusterState) -> dict[str, dict[str, bool]]:
    """Topics as they are when all of ``state`` is told."""
    held: dict[str, dict[str, bool]] = {}
    for topic, key in project(state):
        held.setdefault(topic, {})[key] = True
    return held


def restored(state: ClusterState, held: dict[str, dict[str, bool]]) -> list[ChangeRecord]:
    return restoring(state, lambda topic: held.get(topic, {}))


def test_topics_that_are_whole_get_nothing() -> None:
    assert restored(STATE, told(STATE)) == []


def test_what_is_lacking_is_written() -> None:
    held = told(STATE)
    del held[FEATURES]
    (record,) = restored(STATE, held)
    assert (record.topic, record.key, record.value) == (FEATURES, "split", project(STATE)[FEATURES, "split"])


def test_what_an_earlier_release_wrote_is_written_again() -> None:
    held = told(STATE)
    held[SCHEMA]["type/ks.old"] = False
    assert [(one.key, one.value is None) for one in restored(STATE, held)] == [("type/ks.old", False)]


def test_what_went_while_nobody_told_goes() -> None:
    """Types were dropped while a publisher was at work that did not know them."""
    held = told(STATE)
    held[SCHEMA]["type/ks.kept"] = False
    after = applied(STATE, DropType("ks", "old"))
    assert [(one.key, one.value is None) for one in restored(after, held)] == [
        ("type/ks.old", True),
        ("type/ks.kept", False),
    ]


def test_a_topic_of_which_the_state_has_nothing_is_looked_at() -> None:
    assert restored(founded(), {parts.NODES: {"a node": True}}) == [ChangeRecord(parts.NODES, "a node", None)]


def test_what_a_later_release_tells_is_left_alone() -> None:
    held = told(STATE)
    held[SCHEMA]["trigger/ks.v"] = False
    held["of-a-later-release"] = {"key": False}
    assert restored(STATE, held) == []


def test_the_head_is_not_written_again() -> None:
    assert EPOCHS not in {record.topic for record in restored(STATE, {})}

"""A feature is enabled permanently once each member supports it. Nodes without it cannot join."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlog.kernel.changes import CHANGES_OF, project
from ringlog.kernel.commands.cluster.features import EnableFeature, RequireFeature
from ringlog.kernel.commands.topology.movements import Join, Replace
from ringlog.kernel.commands.topology.nodes import DeclareDown, DeclareUp, UnregisterNode, UpdateNode
from ringlog.kernel.fold import fold
from ringlog.kernel.invariants.check import violations
from ringlog.kernel.model.modes import Feature
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import replace
from tests.kernel.commands.test_cluster_and_nodes import refusal
from tests.kernel.entries import NODES, SEED, applied, entry, founded, node, with_normal_nodes

FIRST, SECOND, NEW = NODES[0], NODES[1], NODES[2]
SPLIT = EnableFeature("split")
REQUIRED, WITHDRAWN = RequireFeature("split"), RequireFeature("split", False)


def supporting(*names: str) -> ClusterState:
    """Return a state with members n1 and n2. The named members support ``split``."""
    state = with_normal_nodes(founded(), 2)
    return applied(state, *(UpdateNode(name, features=("split", "other")) for name in names))


def enabled() -> ClusterState:
    return applied(supporting(FIRST, SECOND), SPLIT)


def test_a_feature_is_enabled_when_every_member_supports_it() -> None:
    assert refusal(supporting(), SPLIT) == "feature_unsupported"
    assert refusal(supporting(FIRST), SPLIT) == "feature_unsupported"
    state = enabled()
    assert dict(state.features) == {"split": Feature("split", state.epoch, state.epoch)}
    assert state.changed["features"] == state.epoch
    assert "features" not in {one.invariant for one in violations(state)}


def test_enabling_a_feature_again_changes_nothing() -> None:
    state = enabled()
    assert applied(state, SPLIT).features is state.features


def test_a_node_that_is_not_a_member_does_not_block_a_feature() -> None:
    waiting = applied(supporting(FIRST, SECOND), node(3))
    assert "split" in applied(waiting, SPLIT).features
    gone = applied(waiting, UnregisterNode(NEW))
    assert "split" in applied(gone, SPLIT).features


def test_a_required_feature_keeps_out_nodes_without_it() -> None:
    """Members without the feature stay, and are upgraded one by one."""
    state = applied(supporting(FIRST), node(3), REQUIRED)
    assert dict(state.features) == {"split": Feature("split", state.epoch, None)}
    assert refusal(state, node(4)) == "feature_missing"
    assert refusal(state, Join(NEW, (7,), SEED)) == "feature_missing"
    assert refusal(state, Replace(NEW, SECOND)) == "feature_missing"
    assert refusal(state, UpdateNode(FIRST, features=())) == "feature_missing"
    down = applied(state, DeclareDown(SECOND, "upgrade"), UpdateNode(SECOND, release="0.9"))
    assert refusal(down, DeclareUp(SECOND, "back")) == "feature_missing"
    assert not violations(down, state)
    up = applied(down, UpdateNode(SECOND, features=("split",)), DeclareUp(SECOND, "back"))
    joined = applied(up, UpdateNode(NEW, features=("split",)), Join(NEW, (7,), SEED))
    assert not violations(joined, state)


def test_a_required_feature_is_enabled_later() -> None:
    state = applied(supporting(FIRST), REQUIRED)
    assert refusal(state, SPLIT) == "feature_unsupported"
    able = applied(state, UpdateNode(SECOND, features=("split",)), SPLIT)
    assert dict(able.features) == {"split": Feature("split", state.epoch, able.epoch)}
    assert applied(able, REQUIRED).features is able.features


def test_a_requirement_is_withdrawn_until_it_is_enabled() -> None:
    state = applied(supporting(FIRST), REQUIRED, WITHDRAWN)
    assert not state.features
    assert applied(state, node(3), UpdateNode(FIRST, features=()), WITHDRAWN).nodes[NEW].state == "none"
    assert refusal(enabled(), WITHDRAWN) == "feature_enabled"


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4), st.booleans()), max_size=25))
def test_the_nodes_that_lack_a_required_feature_never_grow(drawn: list[tuple[int, int, bool]]) -> None:
    """The invariant holds after each command, relative to each earlier state."""
    states = [with_normal_nodes(founded(), 2)]
    for kind, number, able in drawn:
        one, supported = NODES[number - 1], ("split",) if able else ()
        command = (
            *(replace(node(number), features=supported), UpdateNode(one, features=supported)),
            *(Join(one, (number,), SEED), Replace(one, FIRST), DeclareDown(one, ""), DeclareUp(one, "")),
            *(UnregisterNode(one), REQUIRED, WITHDRAWN, SPLIT),
        )[kind]
        states.append(fold(states[-1], entry(states[-1], command)).state)
    for known in states:
        broken = [one for one in violations(states[-1], known) if one.invariant == "features"]
        assert not broken


@pytest.mark.parametrize("wrong", ["registered", "joined", "returned", "lost it"])
def test_the_invariant_detects_a_node_without_the_feature(wrong: str) -> None:
    known = applied(supporting(FIRST), node(3), DeclareDown(SECOND, ""), REQUIRED)
    planted = {
        "registered": replace(known.nodes[NEW], id=NODES[3], registered=known.epoch),
        "joined": replace(known.nodes[NEW], state="joining"),
        "returned": replace(known.nodes[SECOND], down=False),
        "lost it": replace(known.nodes[FIRST], features=()),
    }[wrong]
    state = replace(known, nodes=known.nodes.set(planted.id, planted))
    assert any("does not support split, which was required" in one.detail for one in violations(state, known))


def test_a_new_member_must_support_the_feature() -> None:
    joining = applied(supporting(FIRST, SECOND), node(3), Join(NEW, (7,), SEED))
    assert joining.nodes[NEW].state == "joining"
    assert refusal(joining, SPLIT) == "feature_unsupported"
    assert "split" in applied(joining, UpdateNode(NEW, features=("split",)), SPLIT).features


def test_a_node_without_the_feature_cannot_register() -> None:
    state = enabled()
    assert refusal(state, node(3)) == "feature_missing"
    assert applied(state, replace(node(3), features=("split",))).nodes[NEW].state == "none"


def test_a_node_without_the_feature_cannot_become_a_member() -> None:
    state = applied(supporting(FIRST, SECOND), node(3), SPLIT)
    assert refusal(state, Join(NEW, (7,), SEED)) == "feature_missing"
    assert refusal(state, Replace(NEW, FIRST)) == "feature_missing"
    able = applied(state, UpdateNode(NEW, capacity=7), UpdateNode(NEW, features=("split",)))
    assert applied(able, Join(NEW, (7,), SEED)).nodes[NEW].state == "joining"


def test_a_node_keeps_its_enabled_features() -> None:
    state = enabled()
    assert refusal(state, UpdateNode(FIRST, features=("other",))) == "feature_missing"
    assert applied(state, UpdateNode(FIRST, features=("split",))).nodes[FIRST].features == ("split",)


@pytest.mark.parametrize("name", ["", "-", "with space", "x" * 101])
def test_a_feature_name_is_valid(name: str) -> None:
    assert refusal(enabled(), EnableFeature(name)) == "bad_field"
    assert refusal(enabled(), RequireFeature(name)) == "bad_field"


def test_features_are_at_most_256() -> None:
    state = applied(founded(), *(EnableFeature(f"f{number}") for number in range(256)))
    assert refusal(state, EnableFeature("one-more")) == "too_many"
    assert applied(state, EnableFeature("f0")).features is state.features


def test_change_topics_contain_features() -> None:
    state = enabled()
    told = CHANGES_OF["features"](state.epoch, "split", state.epoch, state.epoch)
    assert project(state)["features", "split"] == told


def test_the_invariant_detects_a_disabled_feature() -> None:
    state = enabled()
    lost = replace(state, features=state.features.delete("split"))
    assert any("split is no longer enabled" in one.detail for one in violations(lost, state))

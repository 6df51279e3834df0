"""The last node with tokens may leave if no keyspace needs it, and a prepared generation is dropped with it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ringlog.kernel.commands.cdc.generations import RequestCdcGeneration
from ringlog.kernel.commands.topology.movements import Assassinate, Leave, Remove
from ringlog.kernel.commands.topology.nodes import DeclareDown
from ringlog.kernel.generations.describe import to_prepare
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.operations.rings import are_targets, target_tokens
from ringlog.kernel.operations.stages import FINISHED
from tests.kernel.operations.driver import SEED, admitted, applied, driven, joining
from tests.kernel.operations.test_rules import QUIET
from tests.kernel.ownership.rings import a_cluster


def left(state: ClusterState) -> ClusterState:
    return driven(*admitted(state, Leave("A")), FINISHED)


def removed(state: ClusterState) -> ClusterState:
    return driven(*admitted(applied(state, DeclareDown("A", "dead")), Remove("A")), FINISHED)


def assassinated(state: ClusterState) -> ClusterState:
    return applied(applied(state, DeclareDown("A", "dead")), Assassinate("A"))


@pytest.mark.parametrize("gone", [left, removed, assassinated])
def test_the_last_token_drops_the_preparation(gone: Callable[[ClusterState], ClusterState]) -> None:
    preparing = applied(a_cluster({"A": [100]}, factors=()), RequestCdcGeneration(SEED))
    assert preparing.prepared is not None
    after = gone(preparing)
    assert not after.token_owners
    assert after.prepared is None
    assert to_prepare(after) is None, "no writer could use it"


@pytest.mark.parametrize("gone", [left, removed, assassinated])
def test_another_node_with_tokens_keeps_the_preparation(gone: Callable[[ClusterState], ClusterState]) -> None:
    preparing = applied(a_cluster({"A": [100], "B": [200]}, factors=()), RequestCdcGeneration(SEED))
    after = gone(preparing)
    assert after.prepared == preparing.prepared


# The tokens required as range ends of a generation, computed from lists and from arrays.


def test_ends_are_the_targets_as_a_list_and_as_an_array() -> None:
    state, _ = joining(QUIET, "X", [150, -7])
    wanted = target_tokens(state)
    assert {150, -7, *QUIET.token_owners} == set(wanted)
    for ends, expected in (
        (wanted, True),
        (wanted[1:], False),
        ([*wanted, 9_999], False),
        ([*wanted[:-1], wanted[-1] + 1], False),
        (sorted(QUIET.token_owners), False),
    ):
        assert are_targets(state, ends) is expected
        assert are_targets(state, np.array(ends, dtype=np.int64)) is expected
        assert are_targets(QUIET, np.array(ends, dtype=np.int64)) is (ends == sorted(QUIET.token_owners))

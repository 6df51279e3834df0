"""The last node with tokens may go where no keyspace needs it; a generation that was being prepared goes with it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ringlog.kernel.commands.cdc import RequestCdcGeneration
from ringlog.kernel.commands.movements import Assassinate, Leave, Remove
from ringlog.kernel.commands.nodes import DeclareDown
from ringlog.kernel.generations.describe import to_prepare
from ringlog.kernel.operations.stages import FINISHED
from ringlog.kernel.state import ClusterState
from tests.kernel.operations.drive import SEED, applied, begun, driven
from tests.kernel.ownership.rings import a_cluster


def left(state: ClusterState) -> ClusterState:
    return driven(*begun(state, Leave("A")), FINISHED)


def removed(state: ClusterState) -> ClusterState:
    return driven(*begun(applied(state, DeclareDown("A", "dead")), Remove("A")), FINISHED)


def assassinated(state: ClusterState) -> ClusterState:
    return applied(applied(state, DeclareDown("A", "dead")), Assassinate("A"))


@pytest.mark.parametrize("gone", [left, removed, assassinated])
def test_with_the_last_token_goes_what_was_prepared(gone: Callable[[ClusterState], ClusterState]) -> None:
    preparing = applied(a_cluster({"A": [100]}, factors=()), RequestCdcGeneration(SEED))
    assert preparing.prepared is not None
    after = gone(preparing)
    assert not after.token_owners
    assert after.prepared is None
    assert to_prepare(after) is None, "nobody could describe it"


@pytest.mark.parametrize("gone", [left, removed, assassinated])
def test_while_another_node_has_tokens_it_stays(gone: Callable[[ClusterState], ClusterState]) -> None:
    preparing = applied(a_cluster({"A": [100], "B": [200]}, factors=()), RequestCdcGeneration(SEED))
    after = gone(preparing)
    assert after.prepared == preparing.prepared

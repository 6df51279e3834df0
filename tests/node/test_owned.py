"""What a node serves, worked out from what it served before: as if from nothing, and only where it has changed."""

from __future__ import annotations

import pytest

from ringlog.kernel.commands.cluster import Noop
from ringlog.kernel.commands.operations import CancelOperation
from ringlog.kernel.generations.admission import AdmissionRules, rules_of
from ringlog.kernel.operations.stages import FINISHED, WRITE_BOTH_READ_OLD
from ringlog.kernel.ownership.placements import placement_of_keyspace
from ringlog.kernel.state import ClusterState, Placement
from ringlog.node import holder as holders
from ringlog.node.holder import Holder
from ringlog.node.owned import NOTHING, Owned, Served, lost, owned_by
from ringlog.node.store import inside
from tests.kernel.entries import applied
from tests.kernel.operations.drive import report_of
from tests.node.world import begin_join, cluster, name_of, step


def journey() -> list[ClusterState]:
    """The states of a join; then those of one that is cancelled."""
    log = [cluster((1_000, -500), (2_000, 77), (-40,), factor=2)]
    state, operation = begin_join(log[0], 9, (100, 1_500))
    while state.operations[operation].stage != FINISHED:
        log.append(state)
        found = state.operations[operation]
        state = step(state, operation, (report_of(found),) if found.stage == WRITE_BOTH_READ_OLD else ())
    log += [state, applied(state, Noop())]
    state, operation = begin_join(log[-1], 8, (-1_000,))
    while state.operations[operation].stage != WRITE_BOTH_READ_OLD:
        state = step(state, operation)
    return [*log, state, applied(state, CancelOperation(operation, "not now"))]


LOG = journey()


def placed(state: ClusterState) -> Placement:
    found = placement_of_keyspace(state, "shop")
    assert found is not None
    return found


@pytest.mark.parametrize("number", [1, 2, 3, 8, 9])
def test_from_what_was_served_before_as_from_nothing(number: int) -> None:
    node = name_of(number)
    tokens = sorted({end + off for state in LOG for end in placed(state).ends for off in (0, 1)})
    for first in range(len(LOG)):
        for last in range(first, len(LOG)):
            was, now = placed(LOG[first]), placed(LOG[last])
            served: Served = (was, owned_by(was, node))
            owned = owned_by(now, node, served)
            assert owned == owned_by(now, node)
            for before, after in ((served[1], owned), (served[1], NOTHING), (None, owned), (None, NOTHING)):
                gone, took = lost(before, after), NOTHING if before is None else before
                for token in tokens:
                    wanted = (before is None or took.takes(token)) and not after.takes(token)
                    assert inside(token, gone) == wanted
    assert owned_by(placed(LOG[0]), node, (placed(LOG[0]), NOTHING)) is NOTHING, "nothing has changed"


def test_an_epoch_that_changes_nothing_of_it_works_out_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    worked_out: list[str] = []

    def noted(placement: Placement, node: str, before: Served | None = None) -> Owned:
        worked_out.append(placement.key)
        return owned_by(placement, node, before)

    def ruled(state: ClusterState, before: tuple[ClusterState, AdmissionRules] | None = None) -> AdmissionRules:
        worked_out.append("rules")
        return rules_of(state, before)

    monkeypatch.setattr(holders, "owned_by", noted)
    monkeypatch.setattr(holders, "rules_of", ruled)
    node = Holder(name_of(1))
    node.adopt(LOG[0])
    assert worked_out == ["rules", *sorted({placement.key for placement in LOG[0].placements.values()})]
    worked_out.clear()
    node.adopt(applied(LOG[0], Noop(), Noop()))
    assert worked_out == []

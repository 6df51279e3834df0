"""No order of events breaks the rules of reads and writes; each rule that is switched off has a counterexample."""

from __future__ import annotations

import pytest

from ringlog.kernel.commands.model import CancelOperation
from ringlog.kernel.operations.stages import FINISHED, PUBLISH_CDC_GENERATION, WRITE_BOTH_READ_OLD
from ringlog.kernel.state import ClusterState
from ringlog.sim.mutants.plant import Mutant, planted
from ringlog.sim.mutants.registers import EXPLORED, MUTANTS
from ringlog.wire.cells import Key
from tests.client.explorer.model import Explorer
from tests.kernel.entries import applied
from tests.kernel.operations.drive import report_of
from tests.node.world import begin_join, cluster, name_of, step

TOKEN, JOINER = 100, 9
KEY = Key("shop", TOKEN, b"k")
STATES_MAX, PART = 60_000, 6_000


def join_log(factor: int, cancelled: bool = False) -> list[ClusterState]:
    """The states of a join that takes over the range of ``TOKEN``, from just before it matters to readers and writers.

    ``cancelled``: a first attempt is called off while both are written.
    """
    state = cluster(*((1_000 * number,) for number in range(1, factor + 1)), factor=factor)
    log: list[ClusterState] = []
    if cancelled:
        log = _driven(state, WRITE_BOTH_READ_OLD)
        (operation,) = (o.id for o in log[-1].operations.values() if o.stage == WRITE_BOTH_READ_OLD)
        log.append(applied(log[-1], CancelOperation(operation, "not now")))
        state = log[-1]
    return log + _driven(state, FINISHED)


def _driven(state: ClusterState, stage: str) -> list[ClusterState]:
    state, operation = begin_join(state, JOINER, (TOKEN,))
    log = []
    while state.operations[operation].stage != stage:
        found = state.operations[operation]
        if found.stage == PUBLISH_CDC_GENERATION:
            log.append(state)
        state = step(state, operation, (report_of(found),) if found.stage == WRITE_BOTH_READ_OLD else ())
        if log:
            log.append(state)
    return log


def explorer(factor: int, cancelled: bool = False, **rules: object) -> Explorer:
    nodes = [name_of(number) for number in (*range(1, factor + 1), JOINER)]
    return Explorer(join_log(factor, cancelled), nodes, KEY, **rules)  # type: ignore[arg-type]


def test_one_replica_gives_way_and_no_order_loses_the_write() -> None:
    explored = explorer(1).explore(STATES_MAX)
    assert explored.states < STATES_MAX, "all of them were seen"
    assert explored.story == ()
    assert explored.reads > 100


def test_cancelled_and_again() -> None:
    explored = explorer(1, cancelled=True).explore(PART)
    assert explored.story == ()


def test_two_replicas() -> None:
    explored = explorer(2).explore(PART)
    assert explored.story == ()


BROKEN = {
    "R1: both groups": "new_group_not_needed",
    "R1: both groups, the other": "old_group_not_needed",
    "R2: epoch of the admission": "plans_epoch_answered",
    "R3: membership checked again": "membership_not_checked_again",
    "R3: no answers from the future": "future_answers_count",
    "R4: drained source": "source_not_drained",
    "R6: durable epochs": "restart_goes_back",
    "R7: reads before deletion": "deleted_before_read",
}


@pytest.mark.parametrize("rule", BROKEN)
def test_each_rule_that_is_switched_off_has_a_counterexample(rule: str) -> None:
    mutant: Mutant = next(mutant for mutant in (*MUTANTS, *EXPLORED) if mutant.name == BROKEN[rule])
    with planted(mutant):
        explored = explorer(1).explore(STATES_MAX)
    assert explored.story, f"{explored.states} states, {explored.reads} reads"


def test_without_gates_there_is_a_counterexample() -> None:
    explored = explorer(1, rule=lambda *_: True).explore(STATES_MAX)
    assert explored.story

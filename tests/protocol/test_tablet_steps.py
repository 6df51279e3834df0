"""One entry contains the steps of as many tablets as fit."""

from __future__ import annotations

from ringlog.kernel.commands.placement.tablets import AdvanceTablets, RevertTablets, TabletRevert
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.tablet_map import Transition, with_transitions
from ringlog.kernel.values import StreamReport, Witness, replace
from ringlog.protocol.coordinator.tablet_steps import tablet_steps
from ringlog.protocol.validator.values import ENTRY_BYTES_MAX
from ringlog.wire.commands import encode_command
from tests.kernel.tablets.clusters import TABLE, cluster, factor, register, with_table

COUNT = 4_096


def repaired() -> ClusterState:
    """Return a table with a repair of each tablet."""
    state = with_table(cluster(*map(register, range(1, 5))), factor(3), COUNT)
    tablets = state.tablets[TABLE]
    moving = {
        number: Transition(number, "repair", "repair", state.epoch, state.epoch, tablets.replicas(number))
        for number in range(COUNT)
    }
    return replace(state, tablets=state.tablets.set(TABLE, with_transitions(tablets, moving)))


def test_an_entry_contains_the_steps_of_as_many_tablets_as_fit() -> None:
    state = repaired()
    witnesses = [Witness(node, state.epoch, state.epoch) for node in state.nodes]
    names = [f"{TABLE}/{number}@{state.epoch}" for number in range(COUNT)]
    said = [StreamReport(node, name, 10**12, "ab" * 32) for name in names for node in state.nodes]
    (command,) = tablet_steps(state, witnesses, said)
    assert isinstance(command, AdvanceTablets)
    assert 1_000 < len(command.tablets) < COUNT
    assert len(encode_command(command)[2]) < ENTRY_BYTES_MAX
    reasons = dict.fromkeys(names, "é" * 500)
    (command, *_) = tablet_steps(state, witnesses, [], reasons)
    assert isinstance(command, RevertTablets)
    assert isinstance(command.tablets[0], TabletRevert)
    assert 500 < len(command.tablets) < COUNT
    assert len(encode_command(command)[2]) < ENTRY_BYTES_MAX

"""An agent tells when a state is not sound, and goes on."""

from __future__ import annotations

from dataclasses import replace

from structlog.testing import capture_logs

from ringlog.agents.soundness import BEATS, EPOCHS, Soundness
from ringlog.kernel.commands.cluster import Noop
from ringlog.kernel.state import ClusterState
from tests.kernel.entries import NODES, applied, founded, node


def _later(state: ClusterState, epochs: int) -> ClusterState:
    return applied(state, *[Noop()] * epochs)


def _rested(sound: Soundness, state: ClusterState) -> None:
    for _ in range(BEATS):
        sound.look(state)


def test_a_sound_state_is_nothing_to_tell() -> None:
    sound = Soundness("keeper")
    with capture_logs() as logs:
        sound.look(_later(founded(), 3))
    assert (sound.alarm, logs) == ("", [])


def test_what_is_broken_is_told_until_it_is_mended() -> None:
    sound = Soundness("keeper")
    state = applied(founded(), node(1))
    broken = replace(state, nodes=state.nodes.set(NODES[0], replace(state.nodes[NODES[0]], tokens=(5,))))
    with capture_logs() as logs:
        sound.look(broken)
    assert sound.alarm == "invariant_broken: nodes at epoch 2: n1 is none and has 1 tokens"
    assert [one["invariant"] for one in logs] == ["nodes", "tokens"]
    assert logs[0]["event"] == "invariant_broken"
    assert logs[0]["promise"]
    again = _later(broken, EPOCHS)
    _rested(sound, _later(broken, EPOCHS - 1))
    assert "epoch 2" in sound.alarm
    sound.look(again)
    assert f"epoch {again.epoch}" in sound.alarm
    sound.look(_later(state, 2 * EPOCHS))
    assert sound.alarm, "many epochs, but no time has passed"
    _rested(sound, _later(state, 2 * EPOCHS))
    assert sound.alarm == ""

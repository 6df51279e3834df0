"""Where the tablets of zones are asked to go."""

from __future__ import annotations

from dataclasses import replace

from ringlog.kernel.commands.tablets import AdvanceTablets
from ringlog.kernel.state import ClusterState
from ringlog.kernel.tablets.track import transitions
from ringlog.protocol.zone_tablets import migrations
from tests.kernel.zones.placed import TABLE, of_coordinator, with_data
from tests.kernel.zones.scenes import done, to


def led_to(state: ClusterState, stage: str) -> ClusterState:
    """The state when each tablet on its way is in that stage."""
    while any(one.stage != stage for _, one in transitions(state)):
        (command,) = of_coordinator(state)
        assert isinstance(command, AdvanceTablets)
        behind = [one for one in command.tablets if state.tablets[TABLE].transitions[one.tablet].stage != stage]
        state = done(state, replace(command, tablets=tuple(behind)))
    return state


def test_the_shards_of_a_node_take_turns_though_what_comes_has_not_arrived() -> None:
    """Four tablets come to B; each begins when the one before has streamed."""
    state = to(with_data("A", "B", partitions=4), "B")
    for _ in range(4):
        moves = migrations(state)
        assert moves is not None
        state = led_to(done(state, replace(moves, migrations=moves.migrations[:1])), "write_both_read_new")
    shards = [one.next[-1].shard for one in state.tablets[TABLE].transitions.values()]
    assert sorted(shards) == [0, 0, 1, 1]

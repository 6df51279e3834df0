"""The waits of a tablet and their ends: a tablet waits for its dead only replica until an operator abandons it.

The coordinator is named if and only if it would advance the tablet.
"""

from __future__ import annotations

import json
import re
import shlex

import pytest

from ringlog.kernel.balance.advice import advise
from ringlog.kernel.commands.placement.tablets import RevertTablets, TabletRevert
from ringlog.kernel.commands.topology.movements import Assassinate, Remove
from ringlog.kernel.commands.topology.nodes import DeclareDown
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.tablets.stages import ALLOW, MIGRATION, STAGES, STREAMING, USE_NEW, WRITE_BOTH_READ_NEW, session
from ringlog.kernel.values import replace
from ringlog.operator.intents.json_commands import from_json
from ringlog.operator.rehearsal.rehearsal import acknowledgements
from ringlog.operator.views.tablets import explained, explanation, troubles_view
from ringlog.operator.views.waiting import COORDINATOR, tablet_waiting
from ringlog.protocol.coordinator.tablet_steps import tablet_steps
from ringlog.protocol.coordinator.witnesses import valid_reports, witnesses_of
from ringlog.runtime.draw import SeededDraw
from ringlog.wire.records import NodeAck
from tests.cli.known_commands import unknown
from tests.kernel.entries import applied
from tests.kernel.tablets.clusters import TABLE, factor, migration, started, tablet, three_racks, with_table

START = with_table(three_racks(), factor(1), 2)
MOVE = migration(START)


def acks_of(state: ClusterState) -> dict[str, NodeAck]:
    """Return the acknowledgements of the live nodes."""
    return {node: ack for node, ack in acknowledgements(state, 0).items() if not state.nodes[node].down}


def advanced(state: ClusterState) -> ClusterState:
    """Advance the tablet as far as the coordinator can."""
    while True:
        acks = acks_of(state)
        said = [one for node, ack in acks.items() for one in valid_reports(state, node, ack)]
        steps = tuple(tablet_steps(state, witnesses_of(state, acks), said))
        here = tablet(state)
        if here.transition is not None:
            found = tablet_waiting(state, state.tablets[TABLE], here, acks)
            assert (found.text == COORDINATOR) == bool(steps) or isinstance(steps[0], RevertTablets)
        if not steps:
            return state
        state = applied(state, *steps)


@pytest.mark.parametrize(
    ("stage", "role", "way"),
    [
        (WRITE_BOTH_READ_NEW, "source", "remove"),
        (WRITE_BOTH_READ_NEW, "target", "remove"),
        (USE_NEW, "target", "assassinate"),
    ],
)
def test_a_tablet_waits_for_its_dead_replica_until_it_is_abandoned(stage: str, role: str, way: str) -> None:
    """Only the dead node knows whether it still serves reads, or only it has the newest rows."""
    shard = MOVE.from_ if role == "source" else MOVE.to
    assert shard is not None
    state = advanced(applied(started(START, MOVE, stage), DeclareDown(shard.node, "burnt")))
    moving, name = tablet(state).transition, state.nodes[shard.node].name
    assert moving is not None
    view = explanation(state, advise(state, {}), state.tablets[TABLE], 0, acks_of(state))
    told = list(explained(view))
    assert f"it is in {moving.stage} of a migration since epoch {moving.stage_epoch}" in told[1]
    assert told[2].startswith(f"waits for witnesses: epoch {moving.stage_epoch} ({moving.stage}) waits for {name}")
    assert told[3] == f"  start {name} again, which was declared down"
    assert f"ringlog node {way} {name}" in told[4]
    assert [found for found in told if "assassinate" in found] == (told[4:] if way == "assassinate" else [])
    given_up = advanced(applied(state, {"remove": Remove, "assassinate": Assassinate}[way](shard.node)))
    assert tablet(given_up).transition is None


@pytest.mark.parametrize("role", ["source", "target"])
@pytest.mark.parametrize("stage", [stage for stage in MIGRATION.stages if stage not in (WRITE_BOTH_READ_NEW, USE_NEW)])
def test_other_stages_of_a_tablet_wait_for_no_dead_node(stage: str, role: str) -> None:
    shard = MOVE.from_ if role == "source" else MOVE.to
    assert shard is not None
    assert tablet(advanced(applied(started(START, MOVE, stage), DeclareDown(shard.node, "burnt")))).transition is None


def test_every_remedy_is_a_valid_command() -> None:
    state = started(START, MOVE, ALLOW)
    found = tablet_waiting(state, state.tablets[TABLE], tablet(state), {})
    shown = [shlex.split(one) for way in found.ways_out for one in re.findall("ringlog .*", way)]
    assert [unknown(words) for words in shown] == [None] * 2
    back = from_json(state, json.loads(shown[0][-1]), SeededDraw(b"x"))
    assert isinstance(back, RevertTablets)
    moving = tablet(applied(state, back)).transition
    assert moving is not None
    assert moving.stage == STAGES[ALLOW].back


def test_reasons_have_the_names_of_nodes() -> None:
    state = started(START, MOVE, ALLOW)
    node = max(state.nodes)
    state = applied(state, RevertTablets((TabletRevert(TABLE, tablet(state).index, f"{node} is full"),)))
    view = explanation(state, advise(state, {}), state.tablets[TABLE], tablet(state).index, {})
    reasons = [view["moves"]["why"], *(one["reason"] for one in troubles_view(state, {}))]
    assert reasons == [f"{state.nodes[node].name} is full"] * 2


def test_an_unusable_report_is_shown_at_the_waiting_tablet() -> None:
    state = started(START, MOVE, STREAMING)
    moving = tablet(state).transition
    assert moving is not None
    assert MOVE.to is not None
    target, own = MOVE.to.node, session(TABLE, tablet(state).index, moving)
    acks = acks_of(state)
    assert tablet_waiting(state, state.tablets[TABLE], tablet(state), acks).text == COORDINATOR
    wrong = tuple(replace(one, checksum="") if one.operation == own else one for one in acks[target].reports)
    acks[target] = replace(acks[target], reports=wrong)
    found = tablet_waiting(state, state.tablets[TABLE], tablet(state), acks)
    name = state.nodes[target].name
    assert found.nodes == (target,)
    assert found.text.startswith(f"{name} to report that its work (")
    assert f"; bad_field: report of {name} is malformed: checksum '' must be" in found.text
    assert not [one for one in valid_reports(state, target, acks[target]) if one.operation == own]

"""``ringlog service show``: the state accepts each command that it prints as a remedy."""

from __future__ import annotations

import json

from ringlog.kernel.commands.cluster.service import AddServiceMember, ReconfigureService
from ringlog.kernel.commands.topology.movements import Leave
from ringlog.kernel.service import GATED, next_step
from ringlog.operator.rehearsal.rehearsal import acknowledgements
from ringlog.operator.views import views
from ringlog.operator.views.service import service_status
from ringlog.operator.views.waiting import waiting
from ringlog.operator.views.ways_out import state_after, submit
from tests.kernel.commands.test_service import ONE, THREE, TWO, of, settled, step
from tests.kernel.entries import applied


def test_the_printed_command_is_accepted() -> None:
    state = settled(applied(of(3), ReconfigureService(1)))
    state = applied(state, AddServiceMember(TWO))
    _, way = service_status(state, {})["ways_out"]
    printed = way.partition("ringlog submit ")[2].strip("'")
    assert state_after(state, submit(json.loads(printed))) is not None


def test_an_operation_that_waits_for_the_service_names_the_silent_members() -> None:
    """``ringlog status`` shows this wait, so its summary links the operation to the silent nodes."""
    state = applied(settled(applied(of(4), ReconfigureService(3))), Leave(ONE))
    while (ahead := next_step(state)) is not None and ahead.to not in GATED:
        state = applied(state, step(state))
    (leave,) = state.operations.values()
    assert waiting(state, leave, acknowledgements(state, 0)).nodes == ()
    silent = {TWO, THREE}
    acks = {node: ack for node, ack in acknowledgements(state, 0).items() if node not in silent}
    view = views.operation(state, leave, acks)
    assert view["waits_for"].startswith("n1 to leave the metadata service (see: ringlog service show); ")
    assert set(view["waits_for_nodes"]) == {"n2", "n3"}
    assert view["ways_out"][0].startswith("if n2, n3 have stopped, start them again")
    assert "operation cancel" in view["ways_out"][-1]

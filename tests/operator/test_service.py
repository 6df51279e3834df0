"""``ringlog service show``: each command that it prints as a way out is accepted by the state."""

from __future__ import annotations

import json

from ringlog.kernel.commands.cluster.service import AddServiceMember, ReconfigureService
from ringlog.operator.views.service import service_status
from ringlog.operator.views.ways_out import submit, tried
from tests.kernel.commands.test_service import TWO, of, settled
from tests.kernel.entries import applied


def test_the_command_of_a_way_out_is_accepted_as_it_is_printed() -> None:
    state = settled(applied(of(3), ReconfigureService(1)))
    state = applied(state, AddServiceMember(TWO))
    _, way = service_status(state, {})["ways_out"]
    printed = way.partition("ringlog submit ")[2].strip("'")
    assert tried(state, submit(json.loads(printed))) is not None

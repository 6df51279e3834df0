"""Whose word counts for a role: that of the newest term, and that of an instance which is about to take over; and how
what was said last is shown.
"""

from __future__ import annotations

import pytest

from ringlog.agents.status import newest, view
from ringlog.wire.records import AgentStatus


def status(term: int) -> AgentStatus:
    return AgentStatus("validator", f"instance-{term}", term, 1, "active", 1)


@pytest.mark.parametrize(("last", "said", "believed"), [(5, 5, 5), (5, 6, 6), (5, 4, 5), (5, 0, 0), (0, 3, 3)])
def test_a_replaced_instance_is_not_believed(last: int, said: int, believed: int) -> None:
    assert newest(status(last), status(said)) == status(believed)


def test_the_first_word_counts() -> None:
    assert newest(None, status(3)) == status(3)


@pytest.mark.parametrize(
    ("state", "why", "epoch", "age_s", "standing"),
    [
        ("active", "", 10, 1, "caught up"),
        ("active", "", 7, 1, "3 epochs behind"),
        ("active", "", 10, 6, "silent for 6 s"),
        ("active", "", 7, 6, "3 epochs behind, silent for 6 s"),
        ("starting", "", 0, 600, "starting, 10 epochs behind, silent for 600 s"),
        ("halted", "", 10, 600, "stopped"),
        ("halted", "log_truncated: …", 10, 600, "halted"),
    ],
)
def test_what_keeps_an_agent_from_being_caught_up_is_said(
    state: str, why: str, epoch: int, age_s: int, standing: str
) -> None:
    said = AgentStatus("keeper", "one", 1, epoch, state, 0, (), why)
    assert view(said, 10, age_s * 1_000_000).standing == standing

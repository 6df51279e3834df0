"""Whose word counts for a role: that of the newest term, and that of an instance which is about to take over."""

from __future__ import annotations

import pytest

from ringlog.agents.status import newest
from ringlog.wire.records import AgentStatus


def status(term: int) -> AgentStatus:
    return AgentStatus("validator", f"instance-{term}", term, 1, "active", 1)


@pytest.mark.parametrize(("last", "said", "believed"), [(5, 5, 5), (5, 6, 6), (5, 4, 5), (5, 0, 0), (0, 3, 3)])
def test_a_replaced_instance_is_not_believed(last: int, said: int, believed: int) -> None:
    assert newest(status(last), status(said)) == status(believed)


def test_the_first_word_counts() -> None:
    assert newest(None, status(3)) == status(3)

"""How often nodes ask for a later settled time: what that costs the log does not depend on how many they are."""

from __future__ import annotations

import heapq
import random
from dataclasses import replace

import pytest

from ringlog.kernel.commands.verdicts import SettleVerdicts
from ringlog.kernel.fold import fold
from ringlog.kernel.outcome import OutcomeKind
from ringlog.kernel.settings import setting
from ringlog.kernel.values import Micros
from ringlog.node.settling import next_settled
from tests.kernel.entries import entry, founded, uuid

START: Micros = 1_700_000_000_000_000
LEADS = 12
TURN: Micros = 100_000
"""Between two looks of a node."""
LATENCY: Micros = 30_000
"""From a question to the moment at which all nodes know its entry."""


@pytest.mark.parametrize("nodes", [1, 3, 30, 100])
@pytest.mark.parametrize("seed", range(3))
def test_all_nodes_together_cost_about_two_entries_for_each_lead(nodes: int, seed: int) -> None:
    draw, state = random.Random(seed), founded()
    lead = setting(state, "verdicts_lead_us")
    looks = [(START + draw.randrange(TURN), f"look {uuid(number, space=7)}") for number in range(nodes)]
    heapq.heapify(looks)
    coming: list[tuple[Micros, int]] = []
    asking: dict[str, Micros] = {}
    applied = asked = 0
    began: Micros | None = None
    while looks[0][0] < START + LEADS * lead:
        now, node = heapq.heappop(looks)
        while coming and coming[0][0] <= now:
            _, until = heapq.heappop(coming)
            folded = fold(state, entry(state, SettleVerdicts(until)))
            applied += folded.outcome.kind is OutcomeKind.APPLIED
            state = folded.state
        if began is not None and now > began + LATENCY + 1:
            assert state.settled.until > now, "no record that comes in time has to wait"
        wanted = next_settled(state, now, None, True, node)
        if wanted is not None and asking.get(node, 0) <= now:
            began, asked = began or now, asked + 1
            asking[node] = now + LATENCY
            heapq.heappush(coming, (now + LATENCY, wanted.until))
        heapq.heappush(looks, (now + TURN + draw.randrange(TURN // 4), node))
    assert LEADS <= applied <= 3 * LEADS
    assert asked <= 2 * (applied + nodes)


def test_what_a_record_needs_is_asked_for_whatever_the_clock_says() -> None:
    state = founded()
    far = START + 10 * setting(state, "verdicts_lead_us")
    assert next_settled(state, START, far, False, "n") == SettleVerdicts(far + 1)
    later = replace(state, settled=replace(state.settled, until=far + 1))
    assert next_settled(later, START, far, False, "n") is None
    assert next_settled(state, START, None, False, "n") is None

"""One suite for all stores of a plan chain: the folder on disk, and the simulator's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ringlog.kernel.values import Value
from ringlog_cdc.errors import ChainBroken, ChainMoved
from ringlog_cdc.plan.chain import StoredChain, canonical, context_name
from ringlog_cdc.plan.plan import GENESIS, close_entry
from ringlog_cdc.plan.store import PlanStore
from ringlog_sim.actors.cdc.checkpoint import Checkpoint
from ringlog_sim.actors.cdc.job import SimCdcJob
from ringlog_sim.devices.world import Chance, SimWorld
from ringlog_sim.simulation import Simulation
from tests.cdc.test_plan_store import part
from tests.sim.step_runner import run_steps


class Place(Value, dict=True):
    """A store of plan chains. ``open`` returns the chain for a new driver; ``do`` performs a storing generator."""

    open: Callable[[], StoredChain[Any, Any]]
    do: Callable[[Any], Any]


def folder(path: Path) -> Place:
    return Place(lambda: PlanStore(path), lambda done: done)


def simulated(_: Path) -> Place:
    world = SimWorld(1)
    sim, disk = Simulation(world, "cluster", ()), world.host("spark")
    sim.shared["job"] = SimCdcJob(sim, disk)

    def opened() -> Checkpoint:
        return Checkpoint(sim, disk, disk, Chance(1, "writes"), lambda _: None)

    return Place(opened, lambda steps: run_steps(world, disk, steps))


@pytest.fixture(params=[folder, simulated], ids=lambda make: make.__name__)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    made: Place = request.param(tmp_path)
    return made


def test_a_chain_is_read_back(place: Place) -> None:
    store = place.open()
    assert store.head is GENESIS
    place.do(store.append(part(store.head, 0, 3)))
    place.do(store.append(close_entry(store.head, generations=["g"], low_watermark=2, epoch=1, incarnation="i")))
    place.do(store.append(part(store.head, 1, 5)))
    again = place.open()
    assert again.head == store.head != GENESIS
    assert again.parts(1) == (store.head,)
    assert again.parts(2) == ()


def test_an_entry_is_stored_once(place: Place) -> None:
    mine, other = place.open(), place.open()
    first = part(GENESIS, 0, 3)
    place.do(mine.append(first))
    for end in (3, 4):
        with pytest.raises(ChainMoved):
            place.do(other.append(part(GENESIS, 0, end)))
    assert other.head is GENESIS
    assert place.open().head == first


def test_an_invalid_successor_is_not_stored(place: Place) -> None:
    store = place.open()
    first = part(GENESIS, 0, 3)
    second = part(first, 1, 5)
    with pytest.raises(ChainBroken):
        place.do(store.append(second))
    place.do(store.append(first))
    with pytest.raises(ChainBroken):
        place.do(store.append(part(part(GENESIS, 0, 4), 1, 5)))
    assert store.head == place.open().head == first
    place.do(store.append(second))
    assert place.open().head == second


def test_durable_positions_stop_before_the_first_unmarked_part(place: Place) -> None:
    store = place.open()
    first = part(store.head, 0, 3)
    place.do(store.append(first))
    assert (store.durable_positions(), store.undone()) == ({}, (first,))
    place.do(store.mark_done(first))
    place.do(store.append(part(store.head, 1, 5)))
    assert store.durable_positions() == {0: 3}
    again = place.open()
    assert (again.is_done(first), again.is_done(again.head)) == (True, False)
    assert again.durable_positions() == {0: 3}
    place.do(again.mark_done(again.head))
    place.do(again.mark_done(again.head))
    assert again.durable_positions() == place.open().durable_positions() == {0: 5}


def test_contexts_are_stored_by_digest(place: Place) -> None:
    store = place.open()
    name = place.do(store.put_context({"b": 1, "a": [2]}))
    assert place.do(store.put_context({"a": [2], "b": 1})) == name == context_name(canonical({"a": [2], "b": 1}))
    other = place.do(store.put_context({"a": [3], "b": 1}))
    assert store.context(name) == place.open().context(name) == {"a": [2], "b": 1}
    assert place.open().context(other) == {"a": [3], "b": 1}
    with pytest.raises(ChainBroken, match="missing"):
        store.context("0" * 64)

"""Links are slow, lossy, cut one way or reset, for one kind of party at a time; the broker itself works."""

from __future__ import annotations

import pytest

from .proxy import CLEAN, Proxy, Shape
from .waiting import until
from .world import World

pytestmark = [pytest.mark.spark, pytest.mark.slow]

BAD = Shape(latency_s=0.02, jitter_s=0.05, loss=0.02, bytes_per_s=500_000)


@pytest.mark.parametrize("link", ["agents", "data", "clients"])
def test_a_slow_and_lossy_link(world: World, link: str) -> None:
    with world.under_load(f"slow, lossy link of {link}"):
        world.broker.links[link].shape(BAD)
        world.await_answers(30)
        world.broker.links[link].heal()


@pytest.mark.parametrize(
    ("link", "shape", "name"),
    [
        ("agents", Shape(cut_up=True), "agents cannot send"),
        ("agents", Shape(cut_down=True), "agents cannot hear"),
        ("clients", Shape(cut_down=True), "clients cannot hear"),
        ("data", Shape(cut_up=True), "nodes and driver cannot send"),
    ],
)
def test_a_link_cut_one_way(world: World, link: str, shape: Shape, name: str) -> None:
    """The cut outlasts the session timeout, so the broker releases the roles while no standby can take them."""
    with world.under_load(name):
        proxy = world.broker.links[link]
        proxy.shape(shape)
        world.await_silence(link)
        proxy.heal()
    assert proxy.is_clean


def test_connections_are_reset_again_and_again(world: World) -> None:
    with world.under_load("20 resets of every connection"):
        for _ in range(20):
            assert sum(link.reset() for link in world.broker.links.values()) > 0
            world.await_answers(1)


def test_the_agents_lose_redis(world: World) -> None:
    with world.under_load("agents cannot reach Redis"):
        link: Proxy = world.broker.links["redis"]
        link.shape(Shape(refuses=True))
        link.reset()
        epoch = world.observers.cache_epoch
        world.await_answers(30)
        until("the test", "the cache writer to log the outage", lambda: world.said("cache_unavailable"))
        assert world.observers.cache_epoch <= epoch + 5
        link.shape(CLEAN)

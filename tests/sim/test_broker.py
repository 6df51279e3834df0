"""Guarantees of the broker model, and its limits."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from ringlog_sim.devices.broker import Fenced, NotOwner, SimBroker
from ringlog_sim.devices.world import SECOND, SimHost, SimWorld, Unanswered


class Bench:
    """A broker with one topic, and a method that runs work on a host."""

    def __init__(self, seed: int = 1) -> None:
        self.world = SimWorld(seed)
        self.broker = SimBroker(self.world, {"t": 1})
        self.host = self.world.host("client")
        self.partition = self.broker.partition("t")

    def do(self, work: Generator[Any, bool, Any], host: SimHost | None = None) -> list[Any]:
        """Start ``work`` and return a list that gets its result or exception."""
        outcome: list[Any] = []

        def run() -> Generator[Any, bool, None]:
            try:
                outcome.append((yield from work))
            except (Unanswered, Fenced, NotOwner) as error:
                outcome.append(error)

        self.world.spawn(host or self.host, "bench", run())
        return outcome

    def values(self) -> list[Any]:
        """Return the values that a reader sees now."""
        return [record.value for record in self.partition.records[: self.partition.visible]]


def test_an_acknowledged_record_survives_every_change_of_leaders() -> None:
    for seed in range(40):
        bench = Bench(seed)
        acknowledged = []
        for number in range(20):
            outcome = bench.do(bench.broker.append(bench.host, "t", [("", number)]))
            bench.world.run(bench.world.now + 900 + 100 * (seed % 7))
            if number % 3 == 0:
                bench.broker.change_leader()
            if outcome and isinstance(outcome[0], int):
                acknowledged.append(number)
        bench.world.run(bench.world.now + SECOND)
        assert set(acknowledged) <= set(bench.values())


def test_a_leader_change_may_lose_an_unacknowledged_tail() -> None:
    lost = 0
    for seed in range(40):
        bench = Bench(seed)
        outcome = bench.do(bench.broker.append(bench.host, "t", [("", n) for n in range(5)]))
        bench.world.run(1_050)
        bench.broker.change_leader()
        bench.world.run(5 * SECOND)
        lost += len(bench.values()) < 5
        if len(bench.values()) < 5:
            assert isinstance(outcome[0], Unanswered)
    assert 0 < lost < 40


def test_readers_see_each_replicated_record_once_in_order() -> None:
    bench, seen = Bench(3), []
    bench.broker.tail(bench.host, "t", 0, 0, lambda records: seen.extend(record.value for record in records))
    for number in range(30):
        bench.do(bench.broker.append(bench.host, "t", [("", number)]))
        bench.world.run(bench.world.now + 700)
        assert len(seen) <= bench.partition.visible
        if number == 15:
            bench.broker.change_leader()
        if number == 20:
            bench.broker.stop()
        if number == 24:
            bench.broker.start()
    bench.world.run(bench.world.now + 5 * SECOND)
    assert seen == bench.values()


def test_a_fenced_producer_cannot_write_and_transactions_leave_gaps() -> None:
    bench = Bench()
    first = bench.do(bench.broker.initialise(bench.host, "id"))
    bench.world.run(SECOND)
    bench.do(bench.broker.transact(bench.host, "id", first[0], "t", [("", "a"), ("", "b")]))
    bench.world.run(2 * SECOND)
    second = bench.do(bench.broker.initialise(bench.host, "id"))
    bench.world.run(3 * SECOND)
    refused = bench.do(bench.broker.transact(bench.host, "id", first[0], "t", [("", "zombie")]))
    bench.do(bench.broker.transact(bench.host, "id", second[0], "t", [("", "c")]))
    bench.world.run(4 * SECOND)
    assert isinstance(refused[0], Fenced)
    assert bench.values() == ["a", "b", "c"]
    assert bench.partition.offsets == [0, 1, 3]


def test_a_partition_of_a_silent_owner_is_reassigned() -> None:
    bench = Bench()
    one, two = object(), object()
    owns = bench.do(bench.broker.poll(bench.host, "g", one, SECOND))
    bench.world.run(SECOND // 2)
    refused = bench.do(bench.broker.poll(bench.host, "g", two, SECOND))
    bench.world.run(SECOND)
    bench.broker.commit_offset(bench.host, "g", one, 7)
    bench.world.run(3 * SECOND)
    taken = bench.do(bench.broker.poll(bench.host, "g", two, SECOND))
    bench.world.run(4 * SECOND)
    bench.broker.commit_offset(bench.host, "g", one, 9)
    bench.world.run(5 * SECOND)
    late = bench.do(bench.broker.poll(bench.host, "g", one, 10 * SECOND))
    bench.world.run(6 * SECOND)
    assert owns == [0]
    assert isinstance(refused[0], NotOwner)
    assert taken == [7]
    assert isinstance(late[0], NotOwner)
    assert bench.broker.groups["g"].committed == 7


@pytest.mark.parametrize("way", ["there", "back"])
def test_an_append_without_answer_may_be_in_the_log(way: str) -> None:
    bench = Bench()
    link = ("client", "broker") if way == "there" else ("broker", "client")
    bench.world.link(*link).cut = True
    outcome = bench.do(bench.broker.append(bench.host, "t", [("", "x")]))
    bench.world.run(5 * SECOND)
    assert isinstance(outcome[0], Unanswered)
    assert bench.values() == ([] if way == "there" else ["x"])

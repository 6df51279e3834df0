"""The conformance suite of transactional producers: on Kafka, and on the simulator's broker; all tests share one
broker.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from tests.sim.step_runner import run_steps

from ringlog.agents.exits import Superseded
from ringlog.agents.fenced_producer import FencedProducer, TransactionRecord
from ringlog.agents.ports import TransactionalProducer
from ringlog.kernel.values import Value
from ringlog.log.errors import LogUnavailable
from ringlog.log.kafka.adapter import KafkaLog
from ringlog.log.kafka.topics import METADATA, RESULTS, admin_client, create_topics
from ringlog_sim.actors.role import SimTransactions
from ringlog_sim.devices.broker import SimBroker
from ringlog_sim.devices.world import SECOND, SimWorld

from .agents_world import until

DEADLINE_S = 60.0


class Place(Value, dict=True):
    """A topic.

    ``producer``: returns another producer with that id. ``record``: returns a record of a value. ``committed``: returns
    the readable values. ``settle``: waits until readers see that number of values.
    """

    producer: Callable[[str], TransactionalProducer[Any, None]]
    record: Callable[[bytes], Any]
    committed: Callable[[], list[bytes]]
    settle: Callable[[int], object]

    def began(self, name: str = "role") -> TransactionalProducer[Any, None]:
        """Return an initialised producer."""
        producer = self.producer(name)
        producer.initialise()
        return producer

    def records(self, *values: bytes) -> list[Any]:
        """Return a record of each value."""
        return [self.record(value) for value in values]

    def expect(self, *values: bytes) -> None:
        """Wait for the values: a broker may confirm a commit before its marker is in the partition."""
        self.settle(len(values))
        assert self.committed() == list(values)


class Performed:
    """A simulated producer on its own host whose steps run immediately."""

    def __init__(self, broker: SimBroker, name: str, number: int) -> None:
        self._world = broker.world
        self._host = self._world.host(f"h{number}")
        self._steps: TransactionalProducer[tuple[str, Any], Any] = SimTransactions(broker, self._host, name, "t")

    def initialise(self) -> None:
        run_steps(self._world, self._host, self._steps.initialise())

    def commit(self, records: Iterable[tuple[str, Any]]) -> None:
        run_steps(self._world, self._host, self._steps.commit(records))


def on_sim_broker() -> tuple[SimBroker, Place]:
    world = SimWorld(1)
    broker, reader = SimBroker(world, {"t": 1}), world.host("reader")
    made: list[Performed] = []

    def producer(name: str) -> Performed:
        made.append(Performed(broker, name, len(made)))
        return made[-1]

    def committed() -> list[bytes]:
        records = run_steps(world, reader, broker.read(reader, "t"))
        return [record.value for record in records]

    return broker, Place(producer, lambda value: ("", value), committed, lambda _: world.run(world.now + SECOND))


@pytest.fixture(params=["simulated", pytest.param("kafka", marks=pytest.mark.system)])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    if request.param == "simulated":
        yield on_sim_broker()[1]
        return
    servers, name = request.getfixturevalue("stack").bootstrap_servers, f"t{uuid.uuid4().hex[:10]}"
    create_topics(admin_client(servers), name, specs=[METADATA, RESULTS])
    results = KafkaLog(servers, name, RESULTS, isolation="read_committed")

    def committed() -> list[bytes]:
        end, tail = results.end_offset(), results.tail(0)
        found: list[bytes] = []
        while tail.position < end:
            found += [record.data for record in tail.poll(DEADLINE_S)]
        tail.close()
        return found

    yield Place(
        lambda role: FencedProducer(servers, f"{name}.{role}"),
        lambda value: TransactionRecord(results.name, None, value),
        committed,
        lambda count: until(lambda: len(committed()) >= count, f"{count} committed records"),
    )
    results.close()


class Interrupted:
    """Records with an action in between, each time they are iterated."""

    def __init__(self, records: list[Any], act: Callable[[], object]) -> None:
        self._records = records
        self._act = act

    def __iter__(self) -> Iterator[Any]:
        for record in self._records:
            yield record
            self._act()


def test_transactions_keep_their_order(place: Place) -> None:
    producer = place.began()
    producer.commit(place.records(b"a", b"b"))
    producer.commit(place.records())
    producer.commit(place.records(b"c"))
    place.expect(b"a", b"b", b"c")


def test_a_new_owner_of_the_id_fences_the_previous_one(place: Place) -> None:
    first = place.began()
    first.commit(place.records(b"before"))
    second = place.began()
    for _ in range(2):
        with pytest.raises(Superseded):
            first.commit(place.records(b"zombie"))
    second.commit(place.records(b"after"))
    third = place.began()
    with pytest.raises(Superseded):
        second.commit(place.records(b"zombie"))
    third.commit(place.records(b"last"))
    place.expect(b"before", b"after", b"last")


def test_another_id_fences_no_producer(place: Place) -> None:
    one, other = place.began("one"), place.began("other")
    one.commit(place.records(b"1"))
    other.commit(place.records(b"2"))
    one.commit(place.records(b"3"))
    place.expect(b"1", b"2", b"3")


def test_readers_see_nothing_of_an_open_transaction(place: Place) -> None:
    seen: list[list[bytes]] = []
    producer = place.began()
    producer.commit(place.records(b"before"))
    place.expect(b"before")
    producer.commit(Interrupted(place.records(b"half", b"whole"), lambda: seen.append(place.committed())))
    assert seen == [[b"before"]] * 2
    place.expect(b"before", b"half", b"whole")


def test_a_producer_replaced_in_a_transaction_leaves_nothing(place: Place) -> None:
    first = place.began()
    second: list[TransactionalProducer[Any, None]] = []
    with pytest.raises(Superseded):
        first.commit(Interrupted(place.records(b"half", b"whole"), lambda: second or second.append(place.began())))
    second[0].commit(place.records(b"after"))
    place.expect(b"after")


def test_failing_records_leave_nothing(place: Place) -> None:
    def fail() -> None:
        raise LookupError("meanwhile")

    producer = place.began()
    with pytest.raises(LookupError, match="meanwhile"):
        producer.commit(Interrupted(place.records(b"half", b"whole"), fail))
    producer.commit(place.records(b"after"))
    place.expect(b"after")


@pytest.mark.parametrize("way", ["there", "back"])
def test_without_an_answer_all_or_nothing_is_there(way: str) -> None:
    """Only the simulator loses an answer cheaply; on Kafka, ``tests/faults`` kill brokers and agents."""
    broker, place = on_sim_broker()
    first = place.began()
    links = [broker.world.link(*(("h0", "broker") if way == "there" else ("broker", "h0")))]
    links[0].cut = True
    with pytest.raises(LogUnavailable):
        first.commit(place.records(b"a", b"b"))
    links[0].cut = False
    place.expect(*([] if way == "there" else [b"a", b"b"]))
    place.began().commit(place.records(b"after"))
    assert place.committed()[-1:] == [b"after"]

"""The broker model: what a replicated Kafka cluster promises to a client, and everything that it does not.

Kept: a record that was acknowledged is never lost, and nobody reads one that could still be lost (readers see up to the
high watermark); one order for all readers; offsets ascend and have gaps where transactions end; a transaction is in
the topic whole or not at all, and a transactional id that was taken over writes nothing any more; append times of one
leader ascend.

Not kept, and so part of the model: an append whose answer is lost may have arrived, may arrive later, or never; sent
again it may be there twice, the copies in any order with what others sent; a leader that changes loses its
unacknowledged tail, from any place on, and the next leader's clock may be behind; a consumer group's member that was
replaced goes on reading, and handing out what it has, until it hears of it; for a while nobody answers at all.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ringlog.kernel.values import Micros
from ringlog_sim.devices.world import MS, SECOND, Chance, SimHost, SimWorld, Unanswered

METADATA, REQUESTS, RESULTS, ACKS, LOAD, CHANGES, MUTATIONS, CDC, DEAD, SNAPSHOTS = (
    "metadata",
    "requests",
    "results",
    "acks",
    "load",
    "changes",
    "mutations",
    "cdc",
    "dead-letters",
    "snapshots",
)
ANSWER_US: Micros = 400 * MS
"""How long clients wait for an answer."""
RETRY_US: Micros = 100 * MS

Answer = Callable[[Any], None]


class Fenced(Exception):
    """Another instance has initialised the transactional id since."""


class NotOwner(Exception):
    """The group has given the partition to another member."""


class SimRecord(NamedTuple):
    """A record of one partition. ``time``: the leader's append time in microseconds (whole milliseconds)."""

    offset: int
    key: str
    value: Any
    time: Micros

    @property
    def data(self) -> bytes:
        """Its value, in a topic of bytes."""
        data: bytes = self.value
        return data


@dataclass(eq=False, slots=True)
class Partition:
    """The leader's copy. ``records`` below ``high`` are replicated; ``waiting``: answers due when ``high`` is there.

    Nobody can read what is before ``begin``; for the checks it is there for ever.
    """

    topic: str
    number: int
    records: list[SimRecord] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    begin: int = 0
    end: int = 0
    high: int = 0
    visible: int = 0
    tails: list[SimTail] = field(default_factory=list)
    waiting: list[tuple[int, Answer]] = field(default_factory=list)
    last_time: Micros = 0
    generation: int = 0

    def append(self, values: Sequence[tuple[str, Any]], time: Micros) -> int:
        """Append at the leader; the end offset afterwards."""
        time = self.last_time = max(time - time % MS, self.last_time)
        for key, value in values:
            self.records.append(SimRecord(self.end, key, value, time))
            self.offsets.append(self.end)
            self.end += 1
        return self.end

    def raise_high(self, high: int) -> bool:
        """Everything below ``high`` is replicated; True if that is news."""
        if high <= self.high:
            return False
        self.high = high
        self.visible = bisect_left(self.offsets, high)
        return True

    def cut(self, end: int) -> None:
        """A new leader whose copy ends at ``end``, which is not below the high watermark."""
        assert end >= self.high, "acknowledged records are never lost"
        keep = bisect_left(self.offsets, end)
        del self.records[keep:], self.offsets[keep:]
        self.end = end
        self.generation += 1


def _nothing(_: list[SimRecord]) -> None:
    """What a closed reader does."""


class SimTail:
    """A reader of one partition, fed as the high watermark rises: ``take`` gets the new records, in order.

    ``position``: the offset it reads next. ``lag``: how long its fetches take longer than those of others, for each
    partition has a leader and a fetch session of its own.
    """

    __slots__ = (
        "_on_its_way",
        "_world",
        "broker",
        "closed",
        "host",
        "incarnation",
        "lag",
        "partition",
        "position",
        "take",
    )

    def __init__(
        self,
        broker: SimBroker,
        host: SimHost,
        partition: Partition,
        position: int,
        take: Callable[[list[SimRecord]], None],
        lag: Micros = 0,
    ) -> None:
        self.broker = broker
        self.host = host
        self.partition = partition
        self.position = position
        self.take = take
        self.lag = lag
        self.closed = False
        self._world = broker.world
        self.incarnation = host.incarnation
        self._on_its_way = False
        partition.tails.append(self)
        self.kick()

    def close(self) -> None:
        """Read no more."""
        self.closed = True
        self.take = _nothing
        if self in self.partition.tails:
            self.partition.tails.remove(self)

    def kick(self, _: object = None) -> None:
        """There may be something to read: fetch it, and try again while the broker cannot be reached."""
        if self.closed or self._on_its_way or self.position >= self.partition.high:
            return
        if self.host.incarnation != self.incarnation:
            self.close()
            return
        self._on_its_way = True
        if self.lag:
            self._world.on(None, self.lag, self._fetch)
        else:
            self._fetch()

    def _fetch(self, _: object = None) -> None:
        broker = self.broker
        if not broker.up or not self._world.send(broker.host, self.host, self._deliver):
            self._world.on(None, RETRY_US, self._again)

    def _again(self, _: object) -> None:
        self._on_its_way = False
        self.kick()

    def _deliver(self, _: object) -> None:
        self._on_its_way = False
        if self.closed or self.host.incarnation != self.incarnation:
            self.close()
            return
        partition = self.partition
        if self.position < partition.begin:
            self.close()
            self.broker.passed(self.host)
            return
        first = bisect_left(partition.offsets, self.position)
        records = partition.records[first : partition.visible]
        self.position = max(self.position, partition.high)
        self.take(records)


@dataclass(eq=False, slots=True)
class ConsumerGroup:
    """A consumer group on one partition: who owns it, and up to where it is committed."""

    owner: object = None
    committed: int = 0
    seen: Micros = 0


class SimBroker:
    """One Kafka cluster. ``partitions``: topic to number of partitions; ``passed``: hears of a host whose reader stands
    before a partition's beginning; ``let_go``: of a new beginning.
    """

    def __init__(self, world: SimWorld, partitions: dict[str, int]) -> None:
        self.world = world
        self.host = world.host("broker")
        self.up = True
        self.skew: Micros = 0
        self.topics = {name: [Partition(name, n) for n in range(count)] for name, count in partitions.items()}
        self.groups: dict[str, ConsumerGroup] = {}
        self.epochs: dict[str, int] = {}
        self.denied: dict[str, int] = {}
        self.replicated: Callable[[Partition], None] = lambda _: None
        self.appended: Callable[[SimHost, int], None] | None = None
        self.passed: Callable[[SimHost], None] = lambda _: None
        self.let_go: Callable[[int], None] = lambda _: None
        self._chance = Chance(world.seed, "broker")

    def close(self) -> None:
        """The end: nobody reads or waits any more."""
        for partitions in self.topics.values():
            for partition in partitions:
                for tail in tuple(partition.tails):
                    tail.close()
                partition.waiting.clear()
        vars(self).clear()

    def partition(self, topic: str, number: int = 0) -> Partition:
        """The partition of that number."""
        return self.topics[topic][number]

    def now(self) -> Micros:
        """The leader's wall clock."""
        return self.world.clock(self.host) + self.skew

    # -------------------------------------------------------------------------------------- for clients

    def try_append(self, host: SimHost, topic: str, values: Sequence[tuple[str, Any]]) -> Generator[Any, bool, None]:
        """Append once, whatever becomes of it."""
        with suppress(Unanswered):
            yield from self.append(host, topic, values)

    def append(
        self, host: SimHost, topic: str, values: Sequence[tuple[str, Any]], number: int = 0, timeout: Micros = ANSWER_US
    ) -> Generator[Any, bool, int]:
        """Append records (key, value) in this order; returns the end offset. Raises Unanswered."""
        partition, incarnation = self.topics[topic][number], host.incarnation

        def ask(answer: Answer) -> None:
            if self.up and incarnation > self.denied.get(host.name, -1):
                if self.appended is not None and topic == CDC:
                    self.appended(host, incarnation)
                end = partition.append(values, self.now())
                if end <= partition.high:
                    answer(end)  # of no records: nothing is left to replicate
                    return
                partition.waiting.append((end, answer))
                self._replicate(partition)

        end: int = yield from self.world.call(host, self.host, ask, timeout)
        return end

    def end(self, host: SimHost, topic: str, number: int = 0, timeout: Micros = ANSWER_US) -> Generator[Any, bool, int]:
        """The high watermark now. Raises Unanswered."""
        partition = self.topics[topic][number]

        def ask(answer: Answer) -> None:
            if self.up:
                answer(partition.high)

        high: int = yield from self.world.call(host, self.host, ask, timeout)
        return high

    def ends(self, host: SimHost, topic: str) -> Generator[Any, bool, dict[int, int] | None]:
        """Partition to high watermark, asked for one after the other; None without an answer."""
        found: dict[int, int] = {}
        try:
            for partition in self.topics[topic]:
                found[partition.number] = yield from self.end(host, topic, partition.number)
        except Unanswered:
            return None
        return found

    def first_at(self, host: SimHost, topic: str, number: int, time: Micros) -> Generator[Any, bool, int | None]:
        """Offset of the first record appended at ``time`` (rounded up to a millisecond) or later. Raises Unanswered."""
        partition = self.topics[topic][number]
        limit = -(-time // MS) * MS

        def ask(answer: Answer) -> None:
            if self.up:
                visible = partition.records[: partition.visible]
                answer(next((record.offset for record in visible if record.time >= limit), None))

        first: int | None = yield from self.world.call(host, self.host, ask, ANSWER_US)
        return first

    def read(self, host: SimHost, topic: str, number: int = 0, start: int = 0) -> Generator[Any, bool, list[SimRecord]]:
        """All records from ``start`` to the present high watermark. Raises Unanswered."""
        partition = self.topics[topic][number]

        def ask(answer: Answer) -> None:
            if self.up:
                first = bisect_left(partition.offsets, start)
                answer(partition.records[first : partition.visible])

        records: list[SimRecord] = yield from self.world.call(host, self.host, ask, ANSWER_US)
        return records

    def answers(self, host: SimHost | None) -> bool:
        """True if a question of that host would be answered now; None: of one that is wherever it must be."""
        if host is None:
            return True
        there, back = self.world.link(host.name, self.host.name), self.world.link(self.host.name, host.name)
        return self.up and not there.cut and not back.cut

    def add_partition(self, topic: str) -> None:
        """Add a partition to a topic; producers use it at once."""
        partitions = self.topics[topic]
        partitions.append(Partition(topic, len(partitions)))

    def put(self, topic: str, key: str, value: Any) -> int:
        """Append one record, replicated at once; its offset."""
        partition = self.topics[topic][0]
        end = partition.append([(key, value)], self.now())
        self._high(partition, end)
        return end - 1

    def delete_before(self, topic: str, offset: int) -> None:
        """Let go of the records before ``offset``, which is replicated."""
        partition = self.topics[topic][0]
        assert offset <= partition.high, "nothing beyond the high watermark can go"
        if offset > partition.begin:
            partition.begin = offset
            self.let_go(offset)

    def tail(
        self,
        host: SimHost,
        topic: str,
        number: int,
        position: int,
        take: Callable[[list[SimRecord]], None],
        lag: Micros = 0,
    ) -> SimTail:
        """A reader from ``position`` on, outside of any group."""
        return SimTail(self, host, self.topics[topic][number], position, take, lag)

    # ------------------------------------------------------------------------------------- transactions

    def initialise(self, host: SimHost, transactional_id: str) -> Generator[Any, bool, int]:
        """Take a transactional id: its new epoch; earlier holders write nothing any more. Raises Unanswered."""

        def ask(answer: Answer) -> None:
            if self.up:
                self.epochs[transactional_id] = self.epochs.get(transactional_id, 0) + 1
                answer(self.epochs[transactional_id])

        epoch: int = yield from self.world.call(host, self.host, ask, ANSWER_US)
        return epoch

    def transact(
        self, host: SimHost, transactional_id: str, epoch: int, topic: str, values: Sequence[tuple[str, Any]]
    ) -> Generator[Any, bool, None]:
        """Write all records and the marker after them, or nothing. Raises Fenced, Unanswered (nobody knows).

        The bug that does not fence is planted here: to fence is the broker's, and who does not take the id at all gets
        no transaction through.
        """
        partition = self.topics[topic][0]

        def ask(answer: Answer) -> None:
            if not self.up:
                return
            if self.epochs.get(transactional_id) != epoch:
                answer(Fenced(transactional_id))
                return
            # A transaction is decided at its coordinator: what is committed there is in the topic, also if it changes
            # its leader in this moment.
            end = partition.append(values, self.now())
            partition.end = end + 1
            partition.waiting.append((partition.end, answer))
            self._high(partition, partition.end)

        yield from self.world.call(host, self.host, ask, ANSWER_US)

    # -------------------------------------------------------------------------------------------- groups

    def poll(self, host: SimHost, group: str, member: object, session: Micros) -> Generator[Any, bool, int]:
        """A member's heartbeat: the committed offset if it owns the partition. Raises NotOwner, Unanswered.

        The partition goes to the next that asks when its owner has been silent for ``session``.
        """

        def ask(answer: Answer) -> None:
            if not self.up:
                return
            committed_group = self.groups.setdefault(group, ConsumerGroup())
            if committed_group.owner is not member and (
                committed_group.owner is None or self.world.now - committed_group.seen > session
            ):
                committed_group.owner = member
            if committed_group.owner is member:
                committed_group.seen = self.world.now
                answer(committed_group.committed)
            else:
                answer(NotOwner(group))

        committed: int = yield from self.world.call(host, self.host, ask, ANSWER_US)
        return committed

    def commit_offset(self, host: SimHost, group: str, member: object, offset: int) -> None:
        """Commit a consumer's offset, without waiting; one of a former owner is refused by the broker."""

        def ask(_: object) -> None:
            committed_group = self.groups.get(group)
            if self.up and committed_group is not None and committed_group.owner is member:
                committed_group.committed = max(committed_group.committed, offset)

        self.world.send(host, self.host, ask)

    # -------------------------------------------------------------------------------------------- faults

    def stop(self) -> None:
        """Nobody answers until ``start``; what is not replicated may be lost by then."""
        self.up = False

    def start(self) -> None:
        """Answer again, under new leaders."""
        self.change_leader()
        self.up = True
        for partitions in self.topics.values():
            for partition in partitions:
                self._notify(partition)

    def change_leader(self) -> None:
        """Every partition gets a leader that lost the unacknowledged tail from some place on; its clock may be off."""
        for partitions in self.topics.values():
            for partition in partitions:
                if partition.end > partition.high:
                    end = self._chance.between(partition.high, partition.end)
                    partition.cut(end)
                    partition.waiting = [(at, answer) for at, answer in partition.waiting if at <= end]
                    self._high(partition, end)
                partition.generation += 1
        self.skew = self._chance.between(-SECOND // 2, SECOND // 2)
        self.world.tell("broker", "changes its leaders")

    def hand_over(self, group: str) -> None:
        """Take the partition away from its owner, which does not know yet."""
        committed_group = self.groups.get(group)
        if committed_group is not None:
            committed_group.owner = None

    # ----------------------------------------------------------------------------------------- internals

    def _replicate(self, partition: Partition) -> None:
        """The followers fetch what is there now."""
        end, generation = partition.end, partition.generation

        def replicated(_: object) -> None:
            if self.up and partition.generation == generation:
                self._high(partition, end)

        self.world.on(None, self._chance.between(100, 1_500), replicated)

    def _high(self, partition: Partition, high: int) -> None:
        if not partition.raise_high(high):
            return
        self.replicated(partition)
        still = []
        for at, answer in partition.waiting:
            if at <= high:
                answer(at)
            else:
                still.append((at, answer))
        partition.waiting = still
        self._notify(partition)

    @staticmethod
    def _notify(partition: Partition) -> None:
        for tail in tuple(partition.tails):
            tail.kick()

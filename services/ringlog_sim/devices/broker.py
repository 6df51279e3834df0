"""The broker model: the guarantees of a replicated Kafka cluster to a client, and its possible failures.

Guaranteed: an acknowledged record is never lost, and readers see only records below the high watermark, which cannot be
lost. All readers see one order. Offsets ascend and have gaps at the ends of transactions. A transaction is in the topic
completely or not at all. A superseded transactional id writes nothing. Append times of one leader ascend.

Not guaranteed: an append with a lost answer may have arrived, may arrive later, or never. Repeated, it may be there
twice, and the copies may be interleaved with other records. A leader change loses a part of the unacknowledged tail,
and the next leader's clock may be behind. A replaced member of a consumer group continues to read and return records
until it learns of that. For some time the broker may not answer at all.
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
"""Time-out of clients in microseconds."""
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
        """Return the value, in a topic of bytes."""
        data: bytes = self.value
        return data


@dataclass(eq=False, slots=True)
class Partition:
    """The leader's copy. ``records`` below ``high`` are replicated. ``waiting``: answers to send when ``high`` is
    reached.

    Readers cannot read records before ``begin``. The checks can always read them.
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
        """Append at the leader. Return the end offset afterwards."""
        time = self.last_time = max(time - time % MS, self.last_time)
        for key, value in values:
            self.records.append(SimRecord(self.end, key, value, time))
            self.offsets.append(self.end)
            self.end += 1
        return self.end

    def raise_high(self, high: int) -> bool:
        """Replicate everything below ``high``. Return True if the high watermark has risen."""
        if high <= self.high:
            return False
        self.high = high
        self.visible = bisect_left(self.offsets, high)
        return True

    def cut(self, end: int) -> None:
        """Change to a leader whose copy ends at ``end``, which is not below the high watermark."""
        assert end >= self.high, "acknowledged records are never lost"
        keep = bisect_left(self.offsets, end)
        del self.records[keep:], self.offsets[keep:]
        self.end = end
        self.generation += 1


def _nothing(_: list[SimRecord]) -> None:
    """Ignore records, as a closed reader."""


class SimTail:
    """A reader of one partition, fed as the high watermark rises. ``take`` gets the new records in order.

    ``position``: the next offset. ``lag``: additional duration of its fetches, because each partition has its own
    leader and fetch session.
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
        """Close the reader."""
        self.closed = True
        self.take = _nothing
        if self in self.partition.tails:
            self.partition.tails.remove(self)

    def kick(self, _: object = None) -> None:
        """Fetch new records, if there are any. Retry while the broker cannot be reached."""
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
    """A consumer group on one partition: its owner and its committed offset."""

    owner: object = None
    committed: int = 0
    seen: Micros = 0


class SimBroker:
    """One Kafka cluster. ``partitions``: topic to number of partitions.

    ``passed`` is called with a host whose reader is before the first offset, ``let_go`` with a new first offset.
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
        """Close all readers and drop all waiting answers, at the end of the run."""
        for partitions in self.topics.values():
            for partition in partitions:
                for tail in tuple(partition.tails):
                    tail.close()
                partition.waiting.clear()
        vars(self).clear()

    def partition(self, topic: str, number: int = 0) -> Partition:
        """Return the partition with that number."""
        return self.topics[topic][number]

    def now(self) -> Micros:
        """Return the leader's wall clock."""
        return self.world.clock(self.host) + self.skew

    # -------------------------------------------------------------------------------------- for clients

    def try_append(self, host: SimHost, topic: str, values: Sequence[tuple[str, Any]]) -> Generator[Any, bool, None]:
        """Append once and ignore a missing answer."""
        with suppress(Unanswered):
            yield from self.append(host, topic, values)

    def append(
        self, host: SimHost, topic: str, values: Sequence[tuple[str, Any]], number: int = 0, timeout: Micros = ANSWER_US
    ) -> Generator[Any, bool, int]:
        """Append records (key, value) in this order. Return the end offset. Raise Unanswered."""
        partition, incarnation = self.topics[topic][number], host.incarnation

        def ask(answer: Answer) -> None:
            if self.up and incarnation > self.denied.get(host.name, -1):
                if self.appended is not None and topic == CDC:
                    self.appended(host, incarnation)
                end = partition.append(values, self.now())
                if end <= partition.high:
                    answer(end)  # no records, so there is nothing to replicate
                    return
                partition.waiting.append((end, answer))
                self._replicate(partition)

        end: int = yield from self.world.call(host, self.host, ask, timeout)
        return end

    def end(self, host: SimHost, topic: str, number: int = 0, timeout: Micros = ANSWER_US) -> Generator[Any, bool, int]:
        """Return the current high watermark. Raise Unanswered."""
        partition = self.topics[topic][number]

        def ask(answer: Answer) -> None:
            if self.up:
                answer(partition.high)

        high: int = yield from self.world.call(host, self.host, ask, timeout)
        return high

    def ends(self, host: SimHost, topic: str) -> Generator[Any, bool, dict[int, int] | None]:
        """Return partition to high watermark, read one after the other, or None without an answer."""
        found: dict[int, int] = {}
        try:
            for partition in self.topics[topic]:
                found[partition.number] = yield from self.end(host, topic, partition.number)
        except Unanswered:
            return None
        return found

    def first_at(self, host: SimHost, topic: str, number: int, time: Micros) -> Generator[Any, bool, int | None]:
        """Return the offset of the first record at or after ``time``, rounded up to a millisecond. Raise Unanswered."""
        partition = self.topics[topic][number]
        limit = -(-time // MS) * MS

        def ask(answer: Answer) -> None:
            if self.up:
                visible = partition.records[: partition.visible]
                answer(next((record.offset for record in visible if record.time >= limit), None))

        first: int | None = yield from self.world.call(host, self.host, ask, ANSWER_US)
        return first

    def read(self, host: SimHost, topic: str, number: int = 0, start: int = 0) -> Generator[Any, bool, list[SimRecord]]:
        """Return all records from ``start`` to the current high watermark. Raise Unanswered."""
        partition = self.topics[topic][number]

        def ask(answer: Answer) -> None:
            if self.up:
                first = bisect_left(partition.offsets, start)
                answer(partition.records[first : partition.visible])

        records: list[SimRecord] = yield from self.world.call(host, self.host, ask, ANSWER_US)
        return records

    def answers(self, host: SimHost | None) -> bool:
        """Return True if the broker would answer that host now. None means a host without a network fault."""
        if host is None:
            return True
        there, back = self.world.link(host.name, self.host.name), self.world.link(self.host.name, host.name)
        return self.up and not there.cut and not back.cut

    def add_partition(self, topic: str) -> None:
        """Add a partition to a topic. Producers use it at once."""
        partitions = self.topics[topic]
        partitions.append(Partition(topic, len(partitions)))

    def put(self, topic: str, key: str, value: Any) -> int:
        """Append one record, replicated at once. Return its offset."""
        partition = self.topics[topic][0]
        end = partition.append([(key, value)], self.now())
        self._high(partition, end)
        return end - 1

    def delete_before(self, topic: str, offset: int) -> None:
        """Delete the records before ``offset``, which is replicated."""
        partition = self.topics[topic][0]
        assert offset <= partition.high, "only records below the high watermark are deleted"
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
        """Return a reader from ``position`` on, outside of any group."""
        return SimTail(self, host, self.topics[topic][number], position, take, lag)

    # ------------------------------------------------------------------------------------- transactions

    def initialise(self, host: SimHost, transactional_id: str) -> Generator[Any, bool, int]:
        """Initialise a transactional id. Return its new epoch. Earlier epochs can no longer write. Raise Unanswered."""

        def ask(answer: Answer) -> None:
            if self.up:
                self.epochs[transactional_id] = self.epochs.get(transactional_id, 0) + 1
                answer(self.epochs[transactional_id])

        epoch: int = yield from self.world.call(host, self.host, ask, ANSWER_US)
        return epoch

    def transact(
        self, host: SimHost, transactional_id: str, epoch: int, topic: str, values: Sequence[tuple[str, Any]]
    ) -> Generator[Any, bool, None]:
        """Write all records and the marker after them, or nothing. Raise Fenced, or Unanswered for an unknown outcome.

        The planted bug that does not fence is here, because the broker does the fencing. A process that does not
        initialise the id cannot commit a transaction.
        """
        partition = self.topics[topic][0]

        def ask(answer: Answer) -> None:
            if not self.up:
                return
            if self.epochs.get(transactional_id) != epoch:
                answer(Fenced(transactional_id))
                return
            # The transaction coordinator decides: a committed transaction survives a leader change at this moment.
            end = partition.append(values, self.now())
            partition.end = end + 1
            partition.waiting.append((partition.end, answer))
            self._high(partition, partition.end)

        yield from self.world.call(host, self.host, ask, ANSWER_US)

    # -------------------------------------------------------------------------------------------- groups

    def poll(self, host: SimHost, group: str, member: object, session: Micros) -> Generator[Any, bool, int]:
        """Send a member's heartbeat. Return the committed offset if it owns the partition. Raise NotOwner, Unanswered.

        The partition goes to the next caller after its owner has been silent for ``session``.
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
        """Commit a consumer's offset, without waiting. The broker rejects a commit of a former owner."""

        def ask(_: object) -> None:
            committed_group = self.groups.get(group)
            if self.up and committed_group is not None and committed_group.owner is member:
                committed_group.committed = max(committed_group.committed, offset)

        self.world.send(host, self.host, ask)

    # -------------------------------------------------------------------------------------------- faults

    def stop(self) -> None:
        """Stop answering until ``start``. Records that are not replicated may be lost."""
        self.up = False

    def start(self) -> None:
        """Answer again, with new leaders."""
        self.change_leader()
        self.up = True
        for partitions in self.topics.values():
            for partition in partitions:
                self._notify(partition)

    def change_leader(self) -> None:
        """Change all leaders. A part of the unacknowledged tail is lost, and the new clock may be wrong."""
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
        """Take the partition away from its owner, which does not know it yet."""
        committed_group = self.groups.get(group)
        if committed_group is not None:
            committed_group.owner = None

    # ----------------------------------------------------------------------------------------- internals

    def _replicate(self, partition: Partition) -> None:
        """Let the followers fetch the current records."""
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

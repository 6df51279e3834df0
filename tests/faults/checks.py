"""The checks after each fault compare the observations of clients, nodes and consumers with the topics.

All faults share these checks. A check continues reading each topic at its previous end, over the plain listener. The
audit of the CDC log belongs to the product and shares no routing code with the job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from ringlog.cache.projection import Fields, project
from ringlog.client.client import Client
from ringlog.kernel.changes import EPOCHS, EpochChange
from ringlog.kernel.encoding.encoder import digest
from ringlog.kernel.fold import fold
from ringlog.kernel.model.outcome import Entry, OutcomeKind
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState
from ringlog.kernel.ownership.placements import group_at, nodes_of, placement_of_keyspace
from ringlog.kernel.ring.murmur3 import token_of
from ringlog.log.kafka.adapter import reader_config
from ringlog.log.kafka.topics import topic_name
from ringlog.protocol.submission.results import AppliedResult, RejectedResult
from ringlog.wire.changes import decode_change
from ringlog.wire.entries import decode_entry
from ringlog.wire.records import (
    REJECTED,
    decode_cdc_row,
    decode_dead_letter,
    decode_mutation,
    decode_node_ack,
    decode_result,
)
from ringlog_audit.sources.topics import KafkaTopics
from ringlog_audit.verify import Expected, audit

from .broker import Broker
from .load import KEYSPACE, Asked, Commands, Mutations
from .observers import CacheSeen, Observers
from .waiting import WaitedInVain, until

HARMLESS = {OutcomeKind.APPLIED, OutcomeKind.DUPLICATE, OutcomeKind.STALE, OutcomeKind.EXPIRED}
"""The permitted outcomes in a log: late copies and lost races. Any other outcome is a defect of its writer."""
Place = tuple[int, int]
"""Partition and offset."""


class TopicReader:
    """Reads a topic of a cluster in steps, each record once."""

    def __init__(self, bootstrap: str, topic: str, *, committed: bool = True) -> None:
        self._topic = topic
        isolation: Any = "read_committed" if committed else "read_uncommitted"
        self._consumer = Consumer(reader_config(bootstrap, isolation))
        self._positions: dict[int, int] = {}

    def ends(self) -> dict[int, int]:
        """Return the current end of each partition."""
        partitions = self._consumer.list_topics(self._topic, timeout=30).topics[self._topic].partitions
        places = [TopicPartition(self._topic, partition) for partition in sorted(partitions)]
        return {place.partition: self._consumer.get_watermark_offsets(place, timeout=30)[1] for place in places}

    def fresh(self) -> list[Message]:
        """Return the records since the last call, one partition after another."""
        ends = self.ends()
        for partition in ends:
            if partition not in self._positions:
                low, _ = self._consumer.get_watermark_offsets(TopicPartition(self._topic, partition), timeout=30)
                self._positions[partition] = low
        open_ones = {p: self._positions[p] for p, end in ends.items() if self._positions[p] < end}
        if not open_ones:
            return []
        self._consumer.assign([TopicPartition(self._topic, p, offset) for p, offset in open_ones.items()])
        found: list[Message] = []

        def all_read() -> bool:
            for message in self._consumer.consume(5_000, 0.05):
                self._take(message, found)
            return all(self._positions[p] >= ends[p] for p in open_ones)

        until("the checker", f"{self._topic} to be read up to {ends}", all_read, why_not=lambda: self._positions)
        self._consumer.unassign()
        return sorted(found, key=lambda message: (message.partition() or 0, message.offset() or 0))

    def _take(self, message: Message, found: list[Message]) -> None:
        error, partition, offset = message.error(), message.partition() or 0, message.offset() or 0
        if error is None:
            if offset >= self._positions[partition]:
                found.append(message)
                self._positions[partition] = offset + 1
        elif error.code() == KafkaError._PARTITION_EOF:
            self._positions[partition] = max(self._positions[partition], offset)

    def close(self) -> None:
        self._consumer.close()


class Checker:
    """Contains all topic records so far and compares them with the observations."""

    def __init__(self, broker: Broker, cluster: str) -> None:
        self._bootstrap, self._cluster = broker.bootstrap, cluster
        self._readers: dict[str, TopicReader] = {}
        self._states: list[ClusterState] = [EMPTY_STATE]
        self._applied: dict[str, int] = {}
        self._outcomes: Counter[OutcomeKind] = Counter()
        self._rejected: set[str] = set()
        self._published = 0
        self._acks: dict[str, int] = {}
        self._mutations: dict[Place, bytes] = {}
        self._rows: dict[Place, list[bytes]] = {}
        self._letters: set[Place] = set()
        self._cache_seen: set[CacheSeen] = set()

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()

    @property
    def repeated_rows(self) -> int:
        """Return the CDC rows that their topic contains twice."""
        return sum(len(values) - 1 for values in self._rows.values())

    def ends(self, suffix: str) -> dict[int, int]:
        """Return the current end of each partition of a topic."""
        return self._reader(suffix).ends()

    def made_again(self, suffix: str) -> None:
        """Read a topic from its beginning, because a test deleted it and the topic was created again."""
        reader = self._readers.pop(suffix, None)
        if reader is not None:
            reader.close()
        if suffix == EPOCHS:
            self._published = 0

    def missing_rows(self) -> int:
        """Return the mutations that have neither a CDC row nor a dead letter yet."""
        self._read_cdc()
        return len(self._mutations.keys() - self._rows.keys() - self._letters)

    def check(
        self, commands: Commands, mutations: Mutations, observers: Observers, client: Client, nodes: Iterable[str]
    ) -> None:
        """Compare everything after the load has passed all parts.

        The driver's write leases still create epochs, so records that follow the log are read before the log.

        Raises:
            AssertionError: The message contains all differences.
        """
        state = client.read_barrier()
        published = self._published_up_to(state.epoch)
        followers = {suffix: self._reader(suffix).fresh() for suffix in ("results", "acks")}
        cache, self._cache_seen = observers.newest_cache(), self._cache_seen | observers.take_cache_seen()
        self._read_log()
        wrong = [*mutations.failed, *observers.take_contradictions(), *self._command_faults(commands)]
        if digest(state) != digest(self._states[state.epoch]):
            wrong.append(f"the client's state at epoch {state.epoch} is not that of the log")
        wrong += self._published_faults(published)
        wrong += self._result_faults(followers["results"])
        wrong += self._ack_faults(followers["acks"])
        wrong += self._cache_faults(cache)
        self._read_cdc()
        wrong += self._mutation_faults(mutations)
        wrong += self._node_faults(observers, nodes)
        if "spark" in state.writers:
            wrong += self._cdc_faults()
        assert not wrong, "\n".join(wrong[:30])

    def check_answers(self, commands: Commands) -> None:
        """Check only the answers and the log of a cluster without other parts."""
        results = self._reader("results").fresh()
        self._read_log()
        wrong = [*self._command_faults(commands), *self._result_faults(results)]
        assert not wrong, "\n".join(wrong[:30])

    # ------------------------------------------------------------------------------------------- reading

    def _reader(self, suffix: str, *, committed: bool = True) -> TopicReader:
        if suffix not in self._readers:
            topic = topic_name(self._cluster, suffix)
            self._readers[suffix] = TopicReader(self._bootstrap, topic, committed=committed)
        return self._readers[suffix]

    def _read_log(self) -> None:
        for message in self._reader("metadata", committed=False).fresh():
            entry = decode_entry(message.value() or b"")
            before = self._states[-1]
            folded = fold(before, entry)
            self._outcomes[folded.outcome.kind] += 1
            if folded.outcome.kind is OutcomeKind.APPLIED:
                assert isinstance(entry, Entry)
                assert entry.request_id not in self._applied, f"{entry.request_id} was applied twice"
                self._states.append(folded.state)
                self._applied[entry.request_id] = folded.state.epoch

    def _read_cdc(self) -> None:
        for message in self._reader("mutations").fresh():
            self._mutations[(message.partition() or 0, message.offset() or 0)] = message.value() or b""
        for message in self._reader("cdc").fresh():
            value = message.value() or b""
            row = decode_cdc_row(value)
            self._rows.setdefault((row.source_partition, row.source_offset), []).append(value)
        for message in self._reader("dead-letters").fresh():
            letter = decode_dead_letter(message.value() or b"")
            self._letters.add((letter.partition, letter.offset))

    # ------------------------------------------------------------------------------------------- metadata

    def _command_faults(self, commands: Commands) -> list[str]:
        wrong = [*commands.broken, *self._log_faults()]
        for asked in commands.asked:
            wrong += self._answer_faults(asked)
        return wrong

    def _log_faults(self) -> list[str]:
        return [f"{count} entries are {kind.value}" for kind, count in self._outcomes.items() if kind not in HARMLESS]

    def _answer_faults(self, asked: Asked) -> list[str]:
        """An applied request is at its epoch, a rejected one is nowhere, and each request has an answer."""
        epoch = self._applied.get(asked.request_id)
        match asked.answer:
            case None:
                return [f"{asked.command} was never answered ({asked.tries} tries)"]
            case AppliedResult() as answer if epoch != answer.epoch:
                return [f"{asked.command}: answered as applied at epoch {answer.epoch}, the log says {epoch}"]
            case RejectedResult() as answer if epoch is not None:
                return [f"{asked.command}: rejected ({answer.code}) and applied at epoch {epoch}"]
        return []

    def _published_up_to(self, epoch: int) -> list[EpochChange]:
        """Return the published epochs up to this one. The topic is published concurrently, so the epoch may be new."""
        found: list[EpochChange] = []

        def last() -> int:
            return found[-1].epoch if found else self._published

        def is_there() -> bool:
            for message in self._reader(EPOCHS).fresh():
                change = decode_change(message.value() or b"")
                assert isinstance(change, EpochChange)
                found.append(change)
            return last() >= epoch

        until("the checker", f"epoch {epoch} to be published", is_there, why_not=last, left=last)
        return found

    def _published_faults(self, changes: list[EpochChange]) -> list[str]:
        """The topic of epochs contains each epoch once, in order, with the state of the log."""
        wrong = []
        for change in changes:
            if change.epoch != self._published + 1 or change.state_id != self._states[change.epoch].state_id:
                wrong.append(f"epoch {change.epoch} was published after {self._published}")
            self._published = change.epoch
        return wrong

    def _result_faults(self, messages: list[Message]) -> list[str]:
        """No request with a published rejection was applied before or after."""
        for message in messages:
            result = decode_result(message.value() or b"")
            if result.outcome == REJECTED:
                self._rejected.add(result.request_id)
        both = sorted(self._rejected & self._applied.keys())
        return [f"{len(both)} published rejections were applied, the first is {both[0]}"] if both else []

    def _ack_faults(self, messages: list[Message]) -> list[str]:
        """Acknowledged epochs of a node never decrease, also over restarts, and the log contains each of them."""
        wrong = []
        for message in messages:
            ack = decode_node_ack(message.value() or b"")
            last = self._acks.get(ack.node, 0)
            if not last <= ack.applied <= self._states[-1].epoch:
                wrong.append(f"{ack.node} acknowledged epoch {ack.applied} after {last}")
            self._acks[ack.node] = ack.applied
        return wrong

    def _cache_faults(self, newest: tuple[int, Mapping[str, Fields]]) -> list[str]:
        """All contents of the cache match the log, and the newest content is the projection of its epoch."""
        wrong = []
        for seen in self._cache_seen:
            state = self._states[seen.epoch] if seen.epoch < len(self._states) else None
            if state is None or state.state_id != seen.state_id or digest(state) != seen.digest:
                wrong.append(f"the cache showed epoch {seen.epoch} with state {seen.state_id}, which the log has not")
        self._cache_seen = set()
        epoch, parts = newest
        if epoch < len(self._states) and parts != project(self._states[epoch]):
            wrong.append(f"the cache's content is not the projection of its epoch {epoch}")
        return wrong

    # ---------------------------------------------------------------------------------------------- rows

    def _mutation_faults(self, mutations: Mutations) -> list[str]:
        """Each acknowledged mutation is at its acknowledged offset, and no other offset contains it again."""
        wrong = [
            f"the mutation acknowledged at {place} is not there"
            for place, value in mutations.acknowledged.items()
            if self._mutations.get(place) != value
        ]
        copies = len(self._mutations) - len(set(self._mutations.values()))
        return [*wrong[:5], *([f"{copies} mutations are there twice"] if copies else [])]

    def _node_faults(self, observers: Observers, nodes: Iterable[str]) -> list[str]:
        """Each node holds all rows of its placement except dead letters."""
        state = self._states[-1]
        placement = placement_of_keyspace(state, KEYSPACE)
        assert placement is not None
        per_key = Counter(
            decode_mutation(value).partition_key[0] or b""
            for place, value in self._mutations.items()
            if place not in self._letters
        )
        wanted: Counter[str] = Counter()
        for key, count in per_key.items():
            for node in nodes_of(group_at(placement, token_of(key)).read):
                wanted[node] += count
        names = list(nodes)

        def differing() -> list[str]:
            found = {name: observers.statuses[name].rows for name in names}
            return [
                f"{name} holds {rows} rows, the placement gives it {wanted[state.node_names[name]]}"
                for name, rows in found.items()
                if rows != wanted[state.node_names[name]]
            ]

        try:
            until("the checker", "the nodes' rows", lambda: not differing(), 60)
        except WaitedInVain:
            return differing()
        return []

    def _cdc_faults(self) -> list[str]:
        """The audit passes, also for batches that killed drivers repeat."""
        wrong = []
        report = audit(KafkaTopics(self._bootstrap, self._cluster), Expected(), lambda _: None)
        for check in report.checks:
            if not check.ok:
                wrong.append(f"audit: {check.statement}: {check.failures} times not, e.g. {check.examples[:2]}")
        return wrong

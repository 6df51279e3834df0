"""In-memory topics of a cluster for the audit, and a CDC job that fills them with the production rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ringlog.kernel.changes import EPOCHS, ChangeRecord, project
from ringlog.kernel.fold import fold
from ringlog.kernel.generations.describe import generate
from ringlog.kernel.generations.verdicts import widest_leeway
from ringlog.kernel.model.outcome import OutcomeKind
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState, Generation
from ringlog.kernel.sections import CDC_GENERATIONS, CDC_STREAMS, SCHEMA
from ringlog.kernel.values import Command, replace
from ringlog.wire.changes import encode_change_record
from ringlog.wire.entries import author_entry
from ringlog.wire.records import Mutation, encode_mutation
from ringlog_cdc.definition.decision import Input, Outgoing, PartContext, decide, read_mutation
from ringlog_cdc.definition.image_tables import images_end, tables_with_images
from ringlog_cdc.definition.reasons import ROUTED
from ringlog_cdc.plan.decisions import context_of, table_of
from ringlog_schemas import published
from ringlog_sim.checks.cdc.audited import AuditedRecord
from tests.cdc.images.memory import MemoryStates
from tests.kernel.entries import CLUSTER, uuid
from tests.record_keys import record_key

SOURCE = "c.mutations"


class MemoryTopics:
    """Records by topic."""

    def __init__(self) -> None:
        self.all: dict[str, list[AuditedRecord]] = {}
        for key, text in published():
            self.add("schemas", key.encode(), text.encode())

    def name(self, suffix: str) -> str:
        return f"c.{suffix}"

    def records(self, suffix: str, since: Mapping[int, int] | None = None) -> Iterator[AuditedRecord]:
        first = since or {}
        found = self.all.get(suffix, [])
        yield from (record for record in found if record.offset() >= first.get(record.partition(), 0))

    def add(self, suffix: str, key: bytes | None, value: bytes | None, partition: int = 0, at: int = 0) -> int:
        known = self.all.setdefault(suffix, [])
        offset = sum(record.partition() == partition for record in known)
        known.append(AuditedRecord((partition, offset), (key, value), at))
        return offset


@dataclass
class MemoryCluster:
    """A cluster that keeps its log, mutations and CDC log in memory.

    Args:
        starts: start timestamps of the generations.
        leeway: allowed lateness of a commit.
        closed: number of sealed generations.
    """

    starts: tuple[int, ...]
    leeway: int
    topics: MemoryTopics = field(default_factory=MemoryTopics)
    state: ClusterState = EMPTY_STATE
    closed: int = 0
    row_bytes_max: int = 100_000
    pending: list[Input] = field(default_factory=list)
    states: MemoryStates = field(default_factory=MemoryStates)
    kept: tuple[tuple[str, str], ...] = ()
    written: list[list[tuple[str, int, bytes, bytes]]] = field(default_factory=list)

    def enter(self, *commands: Command) -> None:
        """Append entries to the metadata log and assert that each one applies."""
        for command in commands:
            number = self.state.epoch + 1
            ids = uuid(number), self.state.state_id or None, uuid(number, space=1)
            made = author_entry(CLUSTER, *ids, self.state.epoch, "test", number * 1_000_000, command)
            folded = fold(self.state, made.entry)
            assert folded.outcome.kind is OutcomeKind.APPLIED, folded.outcome
            self.topics.add("metadata", None, made.data)
            self.state = folded.state

    def is_refused(self, command: Command) -> bool:
        """Return True if the command does not apply."""
        number = self.state.epoch + 1
        ids = uuid(number), self.state.state_id or None, uuid(number, space=1)
        made = author_entry(CLUSTER, *ids, self.state.epoch, "test", 0, command)
        return fold(self.state, made.entry).outcome.kind is not OutcomeKind.APPLIED

    def write(self, mutation: Mutation | bytes, now: int, partition: int = 0, key: bytes | None = None) -> None:
        """Append a record to the mutations topic at time ``now``. ``key``: None for the right one."""
        value = mutation if isinstance(mutation, bytes) else encode_mutation(mutation)
        key = record_key(value) if key is None else key
        offset = self.topics.add("mutations", key, value, partition, now)
        self.pending.append(Input(partition, offset, now, key, value, read_mutation(value)))

    def carry_out(self, most: int = 1_000) -> None:
        """Process at most ``most`` mutations below the validation watermark.

        The job validates them with the newest state, although they were appended at an earlier epoch.
        """
        settled = self.state.settled.until
        ready = 0
        while ready < min(len(self.pending), most) and self.pending[ready].use(widest_leeway(self.state)) < settled:
            ready += 1
        inputs, self.pending = self.pending[:ready], self.pending[ready:]
        if not inputs:
            return
        state = self.with_generations()
        context = context_of(state, SOURCE, 8, self.row_bytes_max)
        closed = [generation.id for generation in state.generations if generation.closed is not None]
        part = PartContext(SOURCE, "w", state.epoch, self.row_bytes_max)
        kept = tables_with_images(context)
        for name in set(self.kept) - set(kept):
            self.states.forget(*name)
        self.kept = kept
        table, states = table_of(context, closed, state), self.states if kept else None
        out = [one for item in inputs for one in decide(table, item, part, states)]
        for name, table, since in images_end(context):
            if since <= inputs[-1].appended:
                self.states.forget(name, table)
        self.send([_addressed(one) for one in out if one.reason >= ROUTED])

    def send(self, records: list[tuple[str, int, bytes, bytes]]) -> None:
        """Write the output records of a batch to the topics."""
        self.written.append(records)
        for suffix, partition, key, value in records:
            self.topics.add(suffix, key, value, partition)

    def with_generations(self) -> ClusterState:
        """Return the state with its generations added, because no entry creates them in this cluster."""
        owners = dict(self.state.token_owners)
        made = tuple(
            Generation(
                uuid(number, space=7),
                start,
                generate(owners, self.state.nodes, bytes([number]) * 16),
                "closed" if number < self.closed else "published",
                1,
                1,
                1 if number < self.closed else None,
                (),
                leeway=self.leeway,
            )
            for number, start in enumerate(self.starts)
        )
        return replace(self.state, generations=made)

    def publish(self) -> None:
        """Write the change records of the publisher."""
        for (topic, key), value in project(self.with_generations()).items():
            if topic in (SCHEMA, CDC_GENERATIONS, CDC_STREAMS, EPOCHS):
                _, name, data = encode_change_record(ChangeRecord(topic, key, value))
                self.topics.add(topic, name, data)


def _addressed(one: Outgoing) -> tuple[str, int, bytes, bytes]:
    return ("cdc" if one.reason == ROUTED else "dead-letters", one.partition, one.key, one.value)

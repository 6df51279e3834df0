"""The CDC log checked against the true log.

Each applied write must be logged once, in the generation that the log determines, below all writers' write leases. The
check knows the raw mutations, the applied entries, the times at which plan parts and closings were stored, and the CDC
and dead-letter topics. It computes acceptance, generation and stream a second time, by linear search and plain integers
from ScyllaDB's definitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from zlib import crc32

from ringlog.kernel.commands.cdc.clock import LowerCdcWriter, WithdrawCdcGeneration
from ringlog.kernel.commands.cdc.expiry import ExpireCdcGeneration, ForgetCdcGeneration
from ringlog.kernel.commands.cdc.generations import CloseCdcGeneration, CommitCdcGeneration
from ringlog.kernel.commands.cdc.writers import AdvanceCdcWriter, FenceCdcWriter, RegisterCdcWriter
from ringlog.kernel.model.outcome import Entry, Outcome, OutcomeKind, UnreadableEntry
from ringlog.kernel.model.state import ClusterState, Generation, in_order
from ringlog.kernel.model.tables import Table
from ringlog.kernel.ring.murmur3 import token_of
from ringlog.kernel.values import Micros, Value, replace
from ringlog.wire.errors import WireError
from ringlog.wire.records import CdcRow, DeadLetter, Mutation
from ringlog_sim.checks.base import Check
from ringlog_sim.checks.cdc.accepted import Name, Place, faults_of
from ringlog_sim.checks.cdc.judge import Reaches, VerdictTimes, judged, stream_for, window_of
from ringlog_sim.devices.broker import CDC, DEAD, MUTATIONS, Partition, SimRecord
from ringlog_sim.devices.memo import cached_mutation
from ringlog_sim.devices.world import SECOND, SimHost

if TYPE_CHECKING:
    from ringlog_sim.simulation import Simulation


class DecidedMutation(Value):
    """A mutation whose outcome a stored plan part has decided, with the log up to ``epoch``."""

    epoch: int
    use: Micros


class Closing(Value):
    """The ends of the mutations when a closing was stored, which claims durability below ``low_watermark``.

    ``skewed``: the clock that the writer used was ahead.
    """

    low_watermark: Micros
    ends: Mapping[int, int]
    skewed: bool


class Cdc(Check):
    """Rows, dead letters, write leases and closed generations, compared with the raw mutations and the true log."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._incarnations: dict[str, str] = {}
        self._horizon: dict[str, Micros] = {}
        self._floor: dict[str, Micros] = {}
        self._low: dict[str, Micros] = {}
        self._used: Micros = 0
        self._decided: dict[Place, DecidedMutation] = {}
        self._earlier: dict[Place, list[DecidedMutation]] = {}
        self._silent: set[Place] = set()
        self._found: dict[int, int] = {}
        self._letters_found = 0
        self._closings: list[Closing] = []
        self._rows: dict[Name, tuple[Place, CdcRow]] = {}
        self._begun: set[Place] = set()
        self._complete: set[Place] = set()
        self._letters: dict[Place, DeadLetter] = {}
        self._letters_at: dict[Place, int] = {}
        self._read: dict[int, int] = {}
        self._letters_read = 0
        self._last: dict[tuple[bytes, str, tuple[bytes, ...], int], Place] = {}
        self._mutations: dict[Place, tuple[SimRecord, Mutation | None]] = {}
        self._ended: set[str] = set()
        self._fenced: set[str] = set()
        self._without: set[Micros] = set()
        self._forgotten: dict[str, Generation] = {}
        self._reaches = Reaches()
        self._times = VerdictTimes()

    # --------------------------------------------------------------------------------------------- promises

    def entry(
        self, before: ClusterState, after: ClusterState, item: Entry | UnreadableEntry, outcome: Outcome, offset: int
    ) -> None:
        """Check write leases and generations when they are applied."""
        self._reaches.observe(before)
        self._reaches.observe(after)
        self._times.observe(before, after)
        if outcome.kind is not OutcomeKind.APPLIED or not isinstance(item, Entry):
            return
        match item.command:
            case RegisterCdcWriter(writer, incarnation):
                if incarnation in self._ended or incarnation in self._incarnations.values():
                    self.sim.broken("cdc_incarnation", f"{incarnation} registered again (offset {offset})")
                if writer in self._incarnations:
                    self._ended.add(self._incarnations[writer])
                else:
                    first = next((g.timestamp for g in before.generations if g.closed is None), 0)
                    self._horizon[writer] = self._low[writer] = first
                self._incarnations[writer] = incarnation
                if writer in self._fenced:
                    self._register(before, writer)
                self._floor[writer] = self._horizon[writer]
            case FenceCdcWriter(writer, incarnation):
                if self._incarnations.get(writer) != incarnation or writer in self._fenced:
                    self.sim.broken("cdc_fence", f"{incarnation} of {writer} is fenced, but has already ended")
                self._fenced.add(writer)
            case LowerCdcWriter(writer, incarnation, horizon):
                if self._incarnations.get(writer) != incarnation or writer not in self._fenced:
                    self.sim.broken("cdc_fence", f"the lease of {writer} is lowered, but it may route writes")
                if self._used and horizon <= self._used:
                    self.sim.broken("cdc_horizon", f"a lease is lowered to {horizon}, but {self._used} was routed")
                self._horizon[writer] = horizon
            case WithdrawCdcGeneration(generation):
                start = before.generations[-1].timestamp
                if before.generations[-1].id != generation or self._used >= start:
                    self.sim.broken("cdc_switch", f"{generation} is withdrawn, but {self._used} was routed")
            case AdvanceCdcWriter() as command:
                self._advance(before, command)
            case CommitCdcGeneration(_, timestamp, _):
                if before.generations and timestamp <= before.generations[-1].timestamp:
                    self.sim.broken("cdc_switch", f"a generation starts at {timestamp}, not after the previous one")
                if timestamp <= self._used:
                    self.sim.broken("cdc_switch", f"a generation starts at {timestamp}, but {self._used} was routed")
                if timestamp < before.settled.until:
                    text = f"a generation starts at {timestamp}, the validation watermark is {before.settled.until}"
                    self.sim.broken("cdc_settled", text)
                behind = [name for name, horizon in sorted(self._horizon.items()) if timestamp <= horizon]
                if behind:
                    self.sim.broken("cdc_switch", f"a generation starts at {timestamp}, not above {behind}")
                self._has_tablets(after)
            case CloseCdcGeneration(generation):
                self._close(before, after, generation)
            case ExpireCdcGeneration(generation, expired_at):
                self._expire(before, generation, expired_at)
            case ForgetCdcGeneration(generation):
                self._forget(before, after, generation)
            case _:
                pass

    def _has_tablets(self, after: ClusterState) -> None:
        """Check that the new generation has a stream for each tablet, with the tablets that this entry leaves."""
        wanted = {}
        for table in after.tables.values():
            if table.cdc.enabled and table.tablets is not None:
                cut = after.tablets[f"{table.keyspace}.{table.tablets.base or table.name}"]
                wanted[table.id] = tuple(tablet.end for tablet in cut)
        found = {described.table: described.ends for described in after.generations[-1].tables}
        if found != wanted:
            self.sim.broken("cdc_tablets", f"a generation contains the tablets {found}, the tables have {wanted}")

    def _register(self, before: ClusterState, writer: str) -> None:
        """Update the model after a fence: the writer has finished exactly the closed generations. Its lease does not
        decrease.
        """
        self._fenced.discard(writer)
        first = next((g.timestamp for g in before.generations if g.closed is None), 0)
        self._low[writer], self._horizon[writer] = first, max(self._horizon[writer], first)

    def _advance(self, before: ClusterState, command: AdvanceCdcWriter) -> None:
        if self._incarnations.get(command.writer) != command.incarnation or command.writer in self._fenced:
            self.sim.broken("cdc_incarnation", f"{command.incarnation} of {command.writer} ended, but moves its lease")
        if self._decided and command.horizon <= self._used:
            self.sim.broken("cdc_horizon", f"the write lease falls to {command.horizon}, but {self._used} was routed")
        if command.horizon < self._floor[command.writer]:
            self.sim.broken("cdc_horizon", f"the lease falls to {command.horizon}, below that at registration")
        if before.prepared is not None and command.horizon > self._horizon[command.writer]:
            self.sim.broken("cdc_horizon", "a write lease rises while a generation is prepared")
        if command.low_watermark < self._low[command.writer] or command.low_watermark > command.horizon:
            self.sim.broken("cdc_low_watermark", f"{command.low_watermark} decreased, or is above the lease")
        self._horizon[command.writer] = command.horizon
        if command.low_watermark > self._low[command.writer]:
            self._low[command.writer] = command.low_watermark
            self._is_durable(before, command)

    def _is_durable(self, state: ClusterState, command: AdvanceCdcWriter) -> None:
        """Check that all mutations below the low watermark are in the CDC log, below the positions."""
        if not any(closing.low_watermark == command.low_watermark for closing in self._closings):
            self.sim.broken("cdc_low_watermark", f"{command.low_watermark} was reported without a close")
        positions = {position.partition: position.offset for position in command.positions}
        for name, (where, row) in sorted(self._rows.items()):
            if row.timestamp < command.low_watermark and where[1] >= positions.get(where[0], 0):
                self.sim.broken("cdc_low_watermark", f"the row of {name[:2]} is not below the reported positions")
        for place, decision in sorted(self._decided.items()):
            verdict = self._expected(place, decision, state.generations)
            below = self._mutation(place)[1]
            if self._before(place, "skipped", state.generations):
                continue
            if verdict == "" and below is not None and below.timestamp < command.low_watermark:
                letter = self._letters.get(place)
                if place not in self._complete and (letter is None or letter.reason != "generation_closed"):
                    self.sim.broken("cdc_low_watermark", f"{place} is below {command.low_watermark}, but not durable")

    def _close(self, before: ClusterState, after: ClusterState, name: str) -> None:
        index = next(number for number, found in enumerate(before.generations) if found.id == name)
        if index + 1 >= len(before.generations):
            self.sim.broken("cdc_close", f"{name} closes without a following generation")
        following, closed = before.generations[index + 1], after.generations[index]
        behind = [writer for writer, low in sorted(self._low.items()) if low < following.timestamp]
        if not self._fenced.issuperset(behind):
            self.sim.broken("cdc_close", f"{name} closes, but {behind} have not finished it")
        if behind:
            self._without.add(closed.timestamp)
        if not self._low and any(table.cdc.enabled for table in before.tables.values()):
            self.sim.broken("cdc_close", f"{name} closes without any writer")
        positions = {position.partition: position.offset for position in closed.positions}
        for (number, offset), row in self._rows.values():
            if row.generation == closed.timestamp and offset >= positions.get(number, 0):
                self.sim.broken("cdc_close", f"a row at {number}/{offset} is after the end positions of {name}")

    def _expire(self, before: ClusterState, name: str, expired_at: Micros) -> None:
        """Check that the rows have outlived every TTL that a table had at any epoch since the commit."""
        index, found = self._generation(before, name)
        states = self.sim.log.states[found.committed : before.epoch + 1]
        ttls = {table.cdc.ttl for state in states for table in state.tables.values() if table.cdc.enabled}
        begin = max(found.closed_at, before.generations[index + 1].timestamp)
        if found.closed is None or 0 in ttls or expired_at < begin + max(ttls, default=0) * SECOND:
            self.sim.broken("cdc_expiry", f"{name} expires at {expired_at}, but has the TTLs {sorted(ttls)} s")

    def _forget(self, before: ClusterState, after: ClusterState, name: str) -> None:
        """Check that only streams are deleted, and only those of expired generations."""
        index, found = self._generation(before, name)
        if found.expired is None:
            self.sim.broken("cdc_expiry", f"the streams of {name} are deleted, but it has not expired")
        rest = replace(after.generations[index], ranges=found.ranges, tables=found.tables, forgotten=None)
        if rest != found or [g.id for g in after.generations] != [g.id for g in before.generations]:
            self.sim.broken("cdc_expiry", f"more of {name} is deleted than its streams")
        self._forgotten[name] = found

    def _generation(self, state: ClusterState, name: str) -> tuple[int, Generation]:
        return next((number, found) for number, found in enumerate(state.generations) if found.id == name)

    def _whole(self, generations: Sequence[Generation]) -> list[Generation]:
        """Return the generations with their original streams."""
        return [self._forgotten.get(found.id, found) for found in generations]

    # ------------------------------------------------------------------------------------------- decisions

    def claimed(self) -> None:
        """Model a checkpoint that replaces a lost one: all is decided again, and no process writes for the old one."""
        if self._incarnations.keys() - self._fenced:
            self.sim.broken("cdc_fence", "a new checkpoint starts, but the writer of the earlier one is not fenced")
        state = self.sim.log.state
        settled = {place.partition: place.offset for _, found in in_order(state.writers) for place in found.decided}
        for place, decision in self._decided.items():
            self._earlier.setdefault(place, []).append(decision)
            if place[1] < settled.get(place[0], 0) and self._expected(place, decision, state.generations) == "skipped":
                self._silent.add(place)
        self._decided = {}
        self._found = {partition.number: partition.high for partition in self.sim.broker.topics[CDC]}
        self._letters_found = self.sim.broker.partition(DEAD).high
        incarnations = {name: host.incarnation for name, host in self.sim.world.hosts.items()}

        def appended(host: SimHost, incarnation: int) -> None:
            if incarnation < incarnations.get(host.name, 0):
                self.sim.broken("cdc_fence", f"rows from {host.name} arrive after another checkpoint has started")

        self.sim.broker.appended = appended

    def routed(self, incarnation: str, epoch: int, records: list[tuple[int, SimRecord]]) -> None:
        """Check a stored plan part: its mutations were undecided, and below the lease by its author's view and the
        log's.
        """
        known = self.sim.log.states[epoch]
        writer = next((w for _, w in sorted(known.writers.items()) if w.incarnation == incarnation), None)
        if writer is None:
            self.sim.broken("cdc_incarnation", f"{incarnation} routes at epoch {epoch}, which ended it")
            return
        for partition, record in records:
            place = (partition, record.offset)
            mutation = self._mutation(place)[1]
            use = record.time
            if mutation is not None and mutation.timestamp <= record.time + window_of(known):
                use = max(use, mutation.timestamp)
            if use >= known.settled.until:
                self.sim.broken("cdc_settled", f"{place} uses {use}, the watermark is {known.settled.until} ({epoch})")
            if use >= min(writer.horizon, self._horizon[writer.name]):
                self.sim.broken("cdc_horizon", f"{place} uses {use}, not below the lease {writer.horizon} ({epoch})")
            if place in self._decided:
                self.sim.broken("cdc_twice", f"{place} was decided twice")
            self._decided[place] = DecidedMutation(epoch, use)
            self._used = max(self._used, use)

    def closing(self, low_watermark: Micros, read: Mapping[int, int] | None) -> None:
        """Check a stored closing: all mutations below it are decided.

        A clock that is ahead may close out mutations appended after the writer read the ends.
        """
        partitions = self.sim.broker.topics[MUTATIONS]
        ends = {partition.number: partition.high for partition in partitions} if read is None else dict(read)
        limit = low_watermark + self._reaches.at(low_watermark)
        for partition in partitions:
            for record in partition.records:
                place = (partition.number, record.offset)
                if record.time < limit and record.offset < ends.get(partition.number, 0) and place not in self._decided:
                    mutation = self._mutation(place)[1]
                    if mutation is not None and mutation.timestamp < low_watermark:
                        self.sim.broken("cdc_low_watermark", f"{place} was not decided before the watermark passed it")
        self._closings.append(Closing(low_watermark, ends, read is not None))

    # ----------------------------------------------------------------------------------------------- topics

    def rows(self, partition: Partition) -> None:
        """Check arriving rows: new rows are in order and in open generations, and copies are equal."""
        start = self._read.get(partition.number, 0)
        for record in partition.records[start : partition.visible]:
            row: CdcRow = record.value
            name = (row.source_partition, row.source_offset, row.timestamp, row.batch_seq_no)
            if name in self._rows:
                (number, offset), first = self._rows[name]
                if offset < self._found.get(number, 0) <= record.offset:
                    self.sim.broken("cdc_once", f"the row {name} existed before this checkpoint, but was written again")
                if (first, number) != (row, partition.number):
                    self.sim.broken("cdc_rows", f"the row {name} was written again with other content: {first}, {row}")
                continue
            self._rows[name] = (partition.number, record.offset), row
            self._begun.add(name[:2])
            if row.end_of_batch:
                self._complete.add(name[:2])
            self._new_row(name[:2], row, partition.number)
        self._read[partition.number] = partition.visible

    def _is_readable(self, place: Place, row: CdcRow, decided: int) -> bool:
        """Return True if the row's epoch has the table version that reads the write."""
        states, (record, mutation) = self.sim.log.states, self._mutation(place)
        if not states[decided].settled.until:
            return row.epoch == decided
        version = states[row.epoch].tables.get(f"{row.keyspace}.{row.table}")
        meant = "" if mutation is None else self._times.table_of(mutation, record.time)
        return version is not None and isinstance(meant, Table) and version.version == meant.version

    def _new_row(self, place: Place, row: CdcRow, partition: int) -> None:
        if place not in self._decided:
            self.sim.broken("cdc_rows", f"{place} has a row without a plan")
        elif not self._is_readable(place, row, self._decided[place].epoch):
            # A reader finds the table by name and epoch, also after the name was reused.
            decided = self._decided[place].epoch
            self.sim.broken("cdc_rows", f"the row of {place} was decided at epoch {decided}, but has epoch {row.epoch}")
        if place in self._letters:
            self.sim.broken("cdc_rows", f"{place} has both a row and a dead letter")
        generation = next((g for g in self.sim.log.state.generations if g.timestamp == row.generation), None)
        if generation is None or generation.closed is not None:
            self.sim.broken("cdc_close", f"{place} got a row of generation {row.generation}, closed or unknown")
        if partition != crc32(row.stream_id) % len(self.sim.broker.topics[CDC]):
            self.sim.broken("cdc_rows", f"stream {row.stream_id.hex()} is in partition {partition}")
        key = (row.stream_id, f"{row.keyspace}.{row.table}", row.partition_key, place[0])
        if place < self._last.get(key, (-1, -1)):
            self.sim.broken("cdc_order", f"the row of {place} arrives after that of {self._last[key]}")
        self._last[key] = place
        self._compare(place, row, self.sim.log.state.generations)

    def _compare(self, place: Place, row: CdcRow, generations: Sequence[Generation]) -> None:
        """Check that the row is that of its mutation, in the stream that the log determines."""
        mutation = self._mutation(place)[1]
        if mutation is None or (mutation.mutation_id, mutation.timestamp, mutation.partition_key) != (
            row.mutation_id,
            row.timestamp,
            row.partition_key,
        ):
            self.sim.broken("cdc_rows", f"the row of {place} does not match its mutation")
            return
        token = token_of(b"".join(row.partition_key))
        table = self.sim.log.states[row.epoch].tables.get(f"{row.keyspace}.{row.table}")
        operating, stream = stream_for(
            self._whole(generations), row.timestamp, token, "" if table is None else table.id
        )
        if (operating, stream) != (row.generation, row.stream_id):
            self.sim.broken(
                "cdc_generation",
                f"{place} at {row.timestamp} (token {token}) is in generation {row.generation}, stream "
                f"{row.stream_id.hex()}; the log has {operating}, {stream.hex()}",
            )

    def letters(self, partition: Partition) -> None:
        """Check arriving dead letters."""
        for record in partition.records[self._letters_read : partition.visible]:
            letter: DeadLetter = record.value
            place = (letter.partition, letter.offset)
            first = self._letters.setdefault(place, letter)
            if self._letters_at.setdefault(place, record.offset) < self._letters_found <= record.offset:
                self.sim.broken(
                    "cdc_once", f"the dead letter of {place} existed before this checkpoint, but was sent again"
                )
            if first.reason != letter.reason:
                self.sim.broken("cdc_letters", f"{place} is rejected as {first.reason} and as {letter.reason}")
            if place in self._complete or place not in self._decided:
                self.sim.broken("cdc_letters", f"{place} has a dead letter, but also all rows, or no plan")
        self._letters_read = partition.visible

    # ----------------------------------------------------------------------------------------------- at rest

    def quiet(self) -> None:
        """Check that every decided mutation has its row or its dead letter, as the final log determines."""
        generations = self.sim.log.state.generations
        if not self._earlier.keys() <= self._decided.keys() and not self.sim.shared["job"].refused:
            self.sim.broken("cdc_rows", "writes planned by a lost checkpoint are not planned again")
        for place, decision in sorted(self._decided.items()):
            expected = self._expected(place, decision, generations)
            letter = self._letters.get(place)
            reason = letter.reason if letter is not None else ""
            was_row, was_letter = (self._before(place, verdict, generations) for verdict in ("", reason))
            if (place in self._begun and was_row) or (reason and was_letter):
                # Output for a lost checkpoint is kept, unless its generation closed in the middle of a write.
                expected = "" if reason == "generation_closed" else reason
            elif place not in self._begun and letter is None and self._before(place, "skipped", generations):
                expected = "skipped"
            if place in self._silent and (place in self._begun or letter is not None):
                self.sim.broken("cdc_settled", f"{place} must have no row, but is below the decided positions")
            if expected == "" and reason == "generation_closed":
                self._was_late(place)
            elif expected == "":
                if place not in self._complete:
                    self._missing(place, reason)
            elif expected == "skipped":
                if letter is not None or place in self._begun:
                    self.sim.broken("cdc_rows", f"{place} must have no row, but was written")
            elif place in self._begun or (reason != expected and not self.sim.shared["job"].refused):
                self.sim.broken("cdc_letters", f"{place} must be rejected as {expected}, not {reason!r}")
        for name, (_, row) in sorted(self._rows.items()):
            self._compare(name[:2], row, generations)
        seen = {name: row for name, (_, row) in self._rows.items()}
        for fault in faults_of(self.sim.shared["consumer"].stored, seen, self._complete):
            self.sim.broken("cdc_consumer", fault)

    def _missing(self, place: Place, reason: str) -> None:
        if reason or not self.sim.shared["job"].refused:
            self.sim.broken("cdc_rows", f"{place} was accepted, but has {reason or 'nothing'} instead of a row")

    def _was_late(self, place: Place) -> None:
        """Check a mutation that was rejected because its generation was closed.

        It must have come after the stored closing, or the generation was closed without a fenced writer.
        """
        timestamp = self._mutations[place][1].timestamp  # type: ignore[union-attr]  # else it was refused before
        operating = max(g.timestamp for g in self.sim.log.state.generations if g.timestamp <= timestamp)
        if operating in self._without:
            return
        closings = [closing for closing in self._closings if timestamp < closing.low_watermark]
        if not any(place[1] >= closing.ends.get(place[0], 0) for closing in closings):
            self.sim.broken("cdc_letters", f"{place} was rejected as generation_closed, but is older than the close")
        if not any(closing.skewed for closing in closings):
            self.sim.broken("cdc_letters", f"{place} was rejected as generation_closed, although the clock was right")

    def _expected(self, place: Place, decision: DecidedMutation, generations: Sequence[Generation]) -> str:
        record, mutation = self._mutation(place)
        known = self.sim.log.states[decision.epoch]
        table: Table | str = "unknown_table"
        if known.settled.until:
            known = self._times.at(record.time)
            table = table if mutation is None else self._times.table_of(mutation, record.time)
        elif mutation is not None:
            table = known.tables.get(f"{mutation.keyspace}.{mutation.table}", table)
        verdict = judged(mutation, record.time, known, table, generations, self._reaches, record.key)
        return "skipped" if verdict == "" and isinstance(table, Table) and _is_empty(mutation, table) else verdict

    def _before(self, place: Place, verdict: str, generations: Sequence[Generation]) -> bool:
        """Return True if a lost checkpoint had this decision for a mutation."""
        return any(self._expected(place, one, generations) == verdict for one in self._earlier.get(place, ()))

    def _mutation(self, place: Place) -> tuple[SimRecord, Mutation | None]:
        known = self._mutations.get(place)
        if known is None:
            partition = self.sim.broker.partition(MUTATIONS, place[0])
            record = partition.records[partition.offsets.index(place[1])]
            try:
                mutation: Mutation | None = cached_mutation(record.value)
            except WireError:
                mutation = None
            known = self._mutations[place] = record, mutation
        return known


def _is_empty(mutation: Mutation | None, table: Table) -> bool:
    """Return True if an update changes nothing, and has no row because the table has stored column names."""
    return mutation is not None and mutation.operation == "UPDATE" and not mutation.cells and bool(table.stored)

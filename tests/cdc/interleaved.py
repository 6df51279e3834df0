"""Nodes and a CDC job around a log and a topic in memory; a test runs their actions one after another.

The nodes perform ``ringlog.node.protocol.mutation_loop`` on rows on disk and in memory. The job performs
``ringlog_cdc.protocol.batch`` with its plans, contexts, routing and rows. Each actor acts on the state that it has
folded so far. No actor waits: a held batch, or the batch of an ended driver, is assigned again. A reader never changes
its verdict on a record, and all readers agree.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from ringlog.client.data.row_merge import merged
from ringlog.kernel.commands.cdc.generations import (
    CommitCdcGeneration,
    PublishCdcGeneration,
    RequestCdcGeneration,
    parts_of,
)
from ringlog.kernel.commands.cdc.verdicts import SettleVerdicts
from ringlog.kernel.commands.cluster.cluster import ChangeSettings
from ringlog.kernel.commands.schema.tables import AlterTable, CreateTable, DropTable
from ringlog.kernel.fold import fold
from ringlog.kernel.generations.admission import refused, rules_of
from ringlog.kernel.generations.describe import generate, generate_for, ranges_digest, to_prepare
from ringlog.kernel.generations.statements import shape_of_table
from ringlog.kernel.model.outcome import OutcomeKind
from ringlog.kernel.model.state import Generation
from ringlog.kernel.values import CdcOptions, Column, ColumnRename, Command, Micros, Value, replace
from ringlog.node.protocol.mutation_loop import (
    MayAcknowledge,
    MutationLoop,
    ReadAcknowledgedEpoch,
    ReadMutations,
    Spawn,
    TailItem,
)
from ringlog.node.rows.disk_rows import DiskRows
from ringlog.node.rows.memory_rows import MemoryRows
from ringlog.node.rows.replica import DROPPED, HELD, KEPT, NOT_OWNED, RowReplica
from ringlog.node.rows.store import RowStore, reads_from
from ringlog.node.servers.http_server import shown
from ringlog.protocol.effects import CatchUp, Newest, Now, Steps, WallClock
from ringlog.protocol.submission.submission import SubmitCommand
from ringlog.runtime.draw import SeededDraw
from ringlog.wire.records import Cell, decode_mutation, encode_mutation
from ringlog_audit.copies import LoggedPartition, answered, deviations
from ringlog_audit.rules.compound import AuditColumns
from ringlog_cdc.definition.decision import Input
from tests.cdc.interleaved_job import MS, PARTITIONS, SECOND, Job, Place
from tests.kernel.entries import applied, entry, uuid
from tests.node.world import APPENDED, TABLE, cluster, name_of, write
from tests.record_keys import record_key

FAR: Micros = APPENDED + 1_000_000 * SECOND
COLUMNS = ("note", "other", "third")
KEYS = ("ann", "bob", "eve")
Act = tuple[str, int, int, int]
"""The kind of an action and three numbers that parametrise it."""


class Record(Value):
    """A record of the mutations topic; ``item`` is the record as the job reads it."""

    value: bytes
    appended: Micros
    item: Input


class Disagreement(AssertionError):
    """Two readers reported different verdicts on one record, or one reader changed its verdict."""


class Cluster:
    """The log as its states, the topic, and the verdicts per record; ``met`` counts what happened."""

    def __init__(self, folder: Path) -> None:
        state = cluster((0,), (2**62,), factor=2, cdc=True)
        first = generate(dict(state.token_owners.items()), state.nodes, bytes(16))
        made = Generation("g1", APPENDED - 100 * SECOND, first, "published", 1, 1, None, ())
        self.state = applied(replace(state, generations=(made,)), SettleVerdicts(APPENDED + SECOND))
        self.versions = [self.state.tables[TABLE].version]
        self.ids = [self.state.tables[TABLE].id]
        self.topic: list[list[Record]] = [[] for _ in range(PARTITIONS)]
        self.now: Micros = APPENDED
        self.said: dict[Place, str] = {}
        self.rows: dict[Place, list[dict[str, Any]]] = {}
        self.met: Counter[str] = Counter()
        self.nodes = [Node(self, name_of(1), folder), Node(self, name_of(2), None)]
        self.job = Job(self)

    def act(self, act: Act) -> None:
        """Perform one action."""
        what, *how = act
        happens = {
            "node": self.nodes[how[0] % 2].turn,
            "restart": self.nodes[how[0] % 2].restart,
            "job": self.job.batch,
            "job restart": self.job.restart,
            "promise": self.job.promise,
        }.get(what) or getattr(self, what)
        happens(*(how if what not in ("node", "restart") else how[1:]))

    # ------------------------------------------------------------------------------------------- the log

    def submit(self, command: Command) -> bool:
        """Apply a command to the newest state and return whether it is accepted."""
        folded = fold(self.state, entry(self.state, command))
        if folded.outcome.kind is not OutcomeKind.APPLIED:
            self.met[f"refused {type(command).__name__}"] += 1
            return False
        self.state = folded.state
        self.met[type(command).__name__] += 1
        if TABLE in self.state.tables:
            table = self.state.tables[TABLE]
            self.versions += [table.version] if table.version not in self.versions else []
            self.ids += [table.id] if table.id not in self.ids else []
        return True

    def alter(self, how: int, one: int, other: int) -> None:
        """Add, drop or rename a column if a table allows it."""
        name, to = COLUMNS[one % 3], COLUMNS[other % 3]
        command = (
            AlterTable("shop", "orders", add_columns=(Column(name, "text"),)),
            AlterTable("shop", "orders", drop_columns=(name,)),
            AlterTable("shop", "orders", rename_columns=(ColumnRename(name, to),)),
        )[how % 3]
        self.submit(command)

    def drop(self, *_: int) -> None:
        """Drop the table, or create it if it does not exist."""
        if TABLE in self.state.tables:
            self.submit(DropTable("shop", "orders"))
            return
        key = Column("customer", "text"), Column("number", "bigint")
        columns = *key, *(Column(name, "text") for name in COLUMNS[:2])
        table = uuid(len(self.ids) + 1, space=9)
        self.submit(CreateTable("shop", "orders", table, columns, ("customer",), ("number",), CdcOptions(enabled=True)))

    def leeway(self, seconds: int, *_: int) -> None:
        """Change the acceptance window."""
        self.submit(ChangeSettings((("cdc_leeway_us", (1 + seconds % 7) * SECOND),)))

    def switch(self, shards: int, ahead: int, _: int) -> None:
        """Advance towards the next generation by one step."""
        wanted = to_prepare(self.state)
        if wanted is None:
            if self.state.generations[-1].published is None:
                self.submit(PublishCdcGeneration(self.state.generations[-1].id))
                return
            # a member cannot change its shard count, so this starts another generation
            one = self.state.nodes[name_of(1)]
            self.state = replace(self.state, nodes=self.state.nodes.set(one.id, replace(one, shards=2 + shards % 5)))
            self.submit(RequestCdcGeneration(len(self.state.generations).to_bytes(16, "big")))
            return
        name, seed = wanted
        ranges = generate_for(self.state, seed)
        if self.state.prepared is None or self.state.prepared.id != name or not self._is_whole():
            for part in parts_of(name, ranges):
                self.submit(part)
            return
        floor = max(self.state.settled.until, *(writer.horizon for writer in self.state.writers.values()))
        self.submit(CommitCdcGeneration(name, floor + (1 + ahead % 3) * SECOND, ranges_digest(ranges)))

    def _is_whole(self) -> bool:
        prepared = self.state.prepared
        return prepared is not None and 0 < prepared.parts == len(prepared.received)

    # --------------------------------------------------------------------------------------------- writes

    def write(self, what: int, named: int, when: int) -> None:
        """Append a write of a random kind; it may name an epoch, a table id or a table version."""
        self.now += when % 5 * 400 * MS
        appended = (self.now - when % 3 * 300 * MS) // MS * MS
        names: dict[str, Any] = ({}, {}, {"epoch": named % (self.state.epoch + 1)},
                                 {"table_id": self.ids[named % len(self.ids)]},
                                 {"table_version": self.versions[named % len(self.versions)]})[named % 5]  # fmt: skip
        value = f"v{what}".encode() if what % 4 else None
        cells: tuple[Cell, ...] = (Cell(COLUMNS[(what // 3) % 3], value), Cell(COLUMNS[what % 2], b"w"))[: 1 + what % 2]
        operation = ("INSERT", "UPDATE", "INSERT", "UPDATE", "ROW_DELETE", "INSERT", "PARTITION_DELETE")[what % 7]
        clustering = (int(what % 2).to_bytes(8, "big"),)
        if operation.endswith("DELETE"):
            cells, clustering = (), clustering if operation == "ROW_DELETE" else ()
        timestamp = appended + (-300, -20, -4, -1, 0, 0, 1, 4, 20)[when % 9] * SECOND + what
        made = write(KEYS[what % 3], 0, timestamp, operation=operation, cells=cells, clustering_key=clustering, **names)
        partition = what % 3 % PARTITIONS
        value_of, place = encode_mutation(made), len(self.topic[partition])
        item = Input(partition, place, appended, record_key(made), value_of, made)
        self.topic[partition].append(Record(value_of, appended, item))

    def say(self, who: str, place: Place, code: str) -> None:
        """Record a verdict. Raises Disagreement."""
        known = self.said.setdefault(place, code)
        self.met[f"{who} says {code or 'accepted'}"] += 1
        if known != code:
            raise Disagreement(f"{who} says {code!r} of {place}, and somebody said {known!r}")

    # ---------------------------------------------------------------------------------------------- rest

    def rest(self) -> None:
        """Complete all work: all readers have the same verdicts, and the nodes have the rows of the log."""
        while to_prepare(self.state) is not None or self.state.generations[-1].published is None:
            self.switch(0, 0, 0)
        self.submit(SettleVerdicts(FAR))
        self.job.raise_horizon(FAR)
        ends = {number: len(records) for number, records in enumerate(self.topic)}
        for one in self.nodes:
            while any(one.row_replica.positions.get(number, 0) < end for number, end in ends.items()):
                one.turn(1_000, 1)
        while self.job.is_behind():
            self.job.batch(1_000, 0, 0)
        self._look_at_verdicts()
        for one in self.nodes:
            one.turn(0)
            self._compare(one)

    def _look_at_verdicts(self) -> None:
        rules = rules_of(self.state)
        for number, records in enumerate(self.topic):
            for offset, record in enumerate(records):
                self.say(
                    "a reader that begins now",
                    (number, offset),
                    refused(rules, decode_mutation(record.value), record.appended)[0],
                )

    def _compare(self, one: Node) -> None:
        """Compare the rows of a node with the rows that the log derives from the writes to the current table."""
        table = self.state.tables.get(TABLE)
        if table is None:
            assert len(one.row_replica.store) == 0
            return
        lives = self.state.table_lives.get(TABLE, ())
        born = lives[-1].versions[0].since if lives else 0
        logged = dict(shape_of_table(table).stored)
        own = frozenset(logged.get(column.name, column.name) for column in table.columns[2:])
        columns = AuditColumns(("text",), ("bigint",), frozenset(), {})
        for key in KEYS:
            partition = LoggedPartition(columns)
            for (number, offset), rows in self.rows.items():
                record = self.topic[number][offset]
                if record.item.mutation is not None and record.item.mutation.partition_key == (key.encode(),):
                    for row in rows if record.appended >= born else ():
                        partition.put(row)
            writes = [decode_mutation(version.value) for version in one.row_replica.partition(TABLE, key.encode())]
            answer = shown(merged(writes, one.row_replica.shape(TABLE), FAR))
            found = deviations(partition, answered(answer, columns, logged), own, FAR, FAR)
            assert found == [], (one.name, key, found)
            self.met["rows compared"] += len(answer["rows"])


class Observed(RowReplica):
    """A row replica that reports its verdicts."""

    def __init__(self, world: Cluster, node: str, store: RowStore) -> None:
        super().__init__(node, store)
        self._world = world
        self._last = HELD

    def validate_record(self, value: bytes, append_time_us: int, key: bytes | None) -> str:
        self._last = super().validate_record(value, append_time_us, key)
        return self._last

    def advance_position(self, partition: int, position: int) -> None:
        if self._last != HELD:
            code = "" if self._last in (KEPT, NOT_OWNED, DROPPED) else self._last
            self._world.say(f"node {self.node[7]}", (partition, position - 1), code)
        self._last = HELD
        super().advance_position(partition, position)


class Node:
    """A node and its rows; ``folder`` is their path, None for rows in memory."""

    def __init__(self, world: Cluster, name: str, folder: Path | None) -> None:
        self.world, self.name = world, name
        self._folder, self._files = folder, 0
        self._store: RowStore = MemoryRows() if folder is None else DiskRows(folder / "0.sqlite", name)
        self._known = world.state
        self.restart()

    def restart(self, wiped: int = 1, *_: int) -> None:
        """Restart with the rows of the last commit, or (each third time) without rows."""
        if wiped % 3 == 0:
            self._files += 1
            self.world.met["node wiped"] += 1
        if isinstance(self._store, DiskRows):
            assert self._folder is not None
            self._store.close()
            self._store = DiskRows(self._folder / f"{self._files}.sqlite", self.name)
        elif isinstance(self._store, MemoryRows):
            self._store.crash(0)
            self._store = MemoryRows() if wiped % 3 == 0 else self._store
        self.row_replica = Observed(self.world, self.name, self._store)
        begin = dict.fromkeys(range(PARTITIONS), 0)
        self._read = reads_from(begin, self.row_replica.positions)
        ends = {number: len(records) for number, records in enumerate(self.world.topic)}
        self._steps = MutationLoop(self.row_replica, SeededDraw(bytes(16)), begin, ends).run()
        self._asked: list[Any] = []
        self._outcome: Any = None
        self._to_take()
        self.world.met["node begun"] += 1

    def turn(self, count: int, late: int = 1, _: int = 0) -> None:
        """Read some records of each partition and perform the steps that follow.

        Further requests of the node are served before its next turn, or (``late``, each third time) later.
        """
        if late % 3:
            asked, self._asked = self._asked, []
            for start in asked:
                self._finish(start())
        self._outcome = []
        for number, records in enumerate(self.world.topic):
            first = self._read[number]
            for offset in range(first, min(first + count, len(records))):
                record = records[offset]
                self._outcome.append(
                    TailItem(number, offset, record.value, record.appended // MS, record_key(record.value))
                )
                self._read[number] = offset + 1
            if self._read[number] == len(records):
                self._outcome.append(TailItem(number, len(records), None))
        self._to_take()

    def _to_take(self) -> None:
        """Perform the steps until they request records."""
        while not isinstance(effect := self._steps.send(self._outcome), ReadMutations):
            self._outcome = self._perform(effect)

    def _perform(self, effect: Any) -> Any:
        match effect:
            case CatchUp() | Newest():
                # A node that has read nothing uses its previous knowledge.
                self._known = self.world.state if isinstance(effect, CatchUp) else self._known
                return self._known
            case WallClock() | Now():
                return self.world.now
            case ReadAcknowledgedEpoch():
                return 0
            case Spawn():
                self._asked.append(effect.start)
            case MayAcknowledge():
                self.row_replica.commit(sync=True)
            case SubmitCommand():
                return object() if self.world.submit(effect.command) else None
        return None

    def _finish(self, steps: Steps[None]) -> None:
        outcome: Any = None
        try:
            while True:
                outcome = self._perform(steps.send(outcome))
        except StopIteration:
            return

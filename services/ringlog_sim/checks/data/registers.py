"""Registers and the log, as clients see them: one order explains every answer, and nothing that was promised is lost.

What replicas said is compared with a ledger of our own: which writes each of them has admitted and not answered, and
what it acknowledged. At the end each register and the log must be linearizable. And from the moment at which a write or
a read at QUORUM or ALL succeeds every majority of those who may be read has what it had: a reader who knows the newest
epoch may ask just these.

Where a partition of a zone was reset, the survivor of a tablet has, before he is read, what was there at the reset with
anybody who has been alive since. Nothing is lost if these are most of those who had it, or if nobody has admitted a
loss. Else what was done by who had not heard of the reset may be lost, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from ringlog.client.data.plans import Level
from ringlog.kernel.commands.placement.rebalances import ResetPartitions
from ringlog.kernel.commands.placement.tablets import AdvanceTablets
from ringlog.kernel.model.outcome import Entry
from ringlog.kernel.model.state import ClusterState, RangeGroup
from ringlog.kernel.model.zones import HIGH_AVAILABILITY
from ringlog.kernel.tablets.groups import group_of, is_dead
from ringlog.kernel.values import Epoch
from ringlog.node.registers.registers import PLACED_BY, Behind, Reply, Taken
from ringlog.protocol.submission.results import AppliedResult, RejectedResult, Submitted
from ringlog.protocol.submission.submission import Asked
from ringlog.wire.data import NOT_READY, Key
from ringlog.wire.records import NodeAck
from ringlog_sim.actors.cdc.producer import REUSED
from ringlog_sim.actors.nodes.coordinator_path import is_of_reused
from ringlog_sim.checks.base import Check
from ringlog_sim.checks.ring.layout import holds, key_of
from ringlog_sim.checks.ring.movements import movements
from ringlog_sim.devices.listener import LOG
from ringlog_testing.histories.check import decide
from ringlog_testing.histories.events import Event, Op
from ringlog_testing.histories.operations import is_register
from ringlog_testing.histories.verdict import Linearizability

if TYPE_CHECKING:
    from ringlog_sim.simulation import Simulation

FORGIVEN = "forgiven registers"
"""The names of registers that may have lost writes with the reset of their partition."""

NOBODY: tuple[int, list[str]] = (0, [])
"""Who serves a register that does not exist."""

Where = tuple[str, int]
"""Table and number of a tablet."""


@dataclass(slots=True)
class Salvage:
    """A tablet whose survivor is not read yet. ``epoch``: of the reset; ``group``: who had it; ``alive``: of these who
    has been so all the while; ``held``: what each of them had at the reset.
    """

    epoch: Epoch
    group: list[str]
    alive: set[str]
    held: dict[str, dict[Key, int]]
    is_admitted: bool


class Histories(Check):
    """Records the log's commits; when all is quiet, decides every key of the run's history."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._begun: dict[tuple[str, str, str], Event] = {}

    def asked(self, client: str, asked: Asked, kind: str) -> None:
        """A commit begins, or another attempt at it: the one before stays open."""
        name = _name(asked.request_id, asked.digest)
        self._begun[client, asked.request_id, asked.digest] = self.sim.recording.invoke(client, Op.COMMIT, LOG, name)

    def answered(self, client: str, asked: Asked, answer: Submitted) -> None:
        """It is known what became of it, unless the answer is that nobody can know any more."""
        begun = self._begun.pop((client, asked.request_id, asked.digest))
        if isinstance(answer, AppliedResult):
            self.sim.recording.ok(begun, answer.epoch)
        elif isinstance(answer, RejectedResult):
            self.sim.recording.fail(begun, answer.code)

    def quiet(self) -> None:
        """Every key has an order that explains it."""
        recording, log = self.sim.recording, self.sim.log
        whole = recording.invoke("end", Op.APPLIED, LOG)
        entries = enumerate(log.entries)
        applied = tuple((_name(entry.request_id, entry.digest), epoch) for epoch, entry in entries if entry)
        recording.ok(whole, applied)
        for key, operations in recording.history().keys:
            _, decision = decide(operations)
            forfeited = is_register(operations) and (movements(self.sim).forfeited or key in self.sim.shared[FORGIVEN])
            if decision.verdict is not Linearizability.LINEARIZABLE and not forfeited:
                rule = "linearizable" if is_register(operations) else "log_linearizable"
                culprits = "; ".join(f"{o.process} {o.op} {o.asked} {o.type} {o.answer}" for o in decision.culprits)
                self.sim.broken(rule, f"{key}: {decision.why} (line {decision.line}): {culprits}")


def _name(request_id: str, digest: str) -> str:
    """What tells one command from another that uses its request id again."""
    return f"{request_id}/{digest[:8]}"


class RegistersCheck(Check):
    """What replicas admit, answer and acknowledge; what is there in the end."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._admitted: dict[str, dict[int, int]] = {}
        self._acked: dict[str, int] = {}
        self._begun: dict[Key, int] = {}
        self._promised: dict[Key, list[tuple[Epoch, int]]] = {}
        self._salvages: dict[Where, Salvage] = {}
        self._lossy: dict[Where, Epoch] = {}
        self._reused: dict[Key, set[Epoch]] = {}
        self.sim.shared[FORGIVEN] = set[str]()

    def began(self, node: str) -> None:
        """What was not on its disk is gone; it never was answered."""
        self._admitted[node] = {}

    def serves(self, node: str, state: ClusterState) -> None:
        """A replica serves under states that the log had, none below one that it acknowledged, in whatever life."""
        epoch = state.epoch
        if not self._is_of_the_log(state):
            self.sim.broken("another_log", f"{node} serves under a state of epoch {epoch} that the log never had")
        if epoch < self._acked.get(node, 0):
            self.sim.broken("served_below_ack", f"{node} serves under {epoch}, acknowledged {self._acked[node]}")
        if self._reused:
            self._check_reused(node, state)

    def admitted(self, node: str, number: int, epoch: int, is_write: bool, planned: ClusterState) -> None:
        """One more request in hand; it was planned on a state that the log had."""
        if not self._is_of_the_log(planned):
            self.sim.broken("other_history", f"{node} takes a request of epoch {planned.epoch} of another history")
        if is_write:
            self._admitted[node][number] = epoch

    def came(
        self,
        node: str,
        state: ClusterState,
        key: Key,
        is_write: bool,
        planned: ClusterState,
        found: Taken,
    ) -> None:
        """Who is behind answers as one who is not, or waits, and not for what does not matter."""
        if is_write and key.keyspace == REUSED:
            self._reused.setdefault(key, set()).add(planned.keyspaces[REUSED].made)
        if state.epoch >= planned.epoch or not self._is_of_the_log(planned):
            return
        if isinstance(found, Behind):
            mattered = max(planned.changed.get(part, 0) for part in PLACED_BY)
            if max(mattered, planned.history.first) <= state.epoch:
                self.sim.broken("waits_in_vain", f"{node} at {state.epoch} waits for {found.epoch}, of {mattered}")
        elif isinstance(found, int) or found.refused != NOT_READY:
            here, there = _serves(state, key, is_write), _serves(planned, key, is_write)
            if here == there == NOBODY:
                return  # its name begins with the id of a table that was dropped; another one has the table's name
            between = [_serves(one, key, is_write) for one in self.sim.log.states[state.epoch : planned.epoch + 1]]
            stays = all(made == there[0] and node in group for made, group in between)
            if not stays or not (is_write or here == there):
                at = f"{node} at {state.epoch}, planned at {planned.epoch}"
                self.sim.broken("asked_in_vain", f"{at}: {found} by {here}, not by {there}")

    def replied(self, node: str, reply: Reply) -> None:
        """A write is on disk, or was refused; its answer is no older than the epoch at which it was taken."""
        taken = self._admitted[node].pop(reply.number, 0)
        if reply.epoch < taken:
            self.sim.broken("answered_as_of", f"{node} took a write at epoch {taken}, and answers as of {reply.epoch}")

    def acked(self, ack: NodeAck) -> None:
        """A replica that has drained an epoch has no write from below it in hand."""
        below = [number for number, epoch in sorted(self._admitted.get(ack.node, {}).items()) if epoch < ack.drained]
        if below:
            self.sim.broken(
                "ack_before_drained", f"{ack.node} drained {ack.drained}, but has {len(below)} older writes"
            )
        self._acked[ack.node] = max(ack.applied, self._acked.get(ack.node, 0))

    def wrote(self, key: Key, timestamp: int, level: Level, epoch: Epoch | None) -> None:
        """A write begins, or succeeded."""
        if epoch is None:
            self._begun[key] = timestamp
        elif level is not Level.ONE:
            self._promise(key, timestamp, epoch)

    def found(self, key: Key, timestamp: int | None, level: Level, epoch: Epoch) -> None:
        """A read succeeded: no level gives away what nobody wrote."""
        if timestamp is not None and timestamp > self._begun.get(key, 0):
            self.sim.broken("out_of_thin_air", f"{key.name.decode()} = {timestamp} was read and never written")
        if level is not Level.ONE:
            self._promise(key, timestamp or 0, epoch)

    def applied(self, before: ClusterState, after: ClusterState, item: Entry, offset: int) -> None:
        """Who may be read changes with placements and tablets, and with the reset of a partition what is promised."""
        if isinstance(item.command, ResetPartitions):
            self._is_reset(item.command, before, after)
        elif isinstance(item.command, AdvanceTablets):
            self._is_salvaged(item.command, before)
        for salvage in self._salvages.values() if before.nodes is not after.nodes else ():
            before_, salvage.alive = salvage.alive, {n for n in salvage.alive if not is_dead(after.nodes[n])}
            stuck = 2 * len(salvage.alive) <= len(salvage.group) < 2 * len(before_) and not salvage.is_admitted
            self.sim.did["zone data", "stuck, no loss admitted"] += stuck
        if before.placements is not after.placements or before.tablets is not after.tablets:
            self.quiet()

    def quiet(self) -> None:
        """Each choice of a majority of a key's readers holds what was promised, unless a node was assassinated."""
        if movements(self.sim).forfeited:
            return
        for key, done in sorted(self._promised.items()):
            since = self._lossy.get(self._tablet(key), 0) if self._lossy else 0
            promised = max([timestamp for epoch, timestamp in done if epoch >= since], default=0)
            readers = _readers(self.sim.log.state, key)
            values = {node: self._holds(node, key) for node in readers if not self.sim.shared["nodes"][node].is_lost}
            for chosen in combinations(values, len(readers) // 2 + 1):
                if all(values[node] < promised for node in chosen):
                    self.sim.broken(
                        "write_lost", f"{key.name.decode()} = {promised} was promised, readers hold {values}"
                    )

    # ------------------------------------------------------------------------------------------------ resets

    def _is_reset(self, command: ResetPartitions, before: ClusterState, after: ClusterState) -> None:
        """A salvage begins of each tablet of a partition. No reset by itself gives up what nobody alive has."""
        zone = before.zones[command.zone]
        for name, tablets in after.tablets.items():
            if before.keyspaces[name.partition(".")[0]].replication.zone != zone.name:
                continue
            for number in range(zone.partitions):
                where = f"{zone.name}/{number}"
                if before.zone_partitions[where] is after.zone_partitions[where]:
                    continue
                group = [replica.node for replica in tablets.replicas(number)]
                alive = {node for node in group if not is_dead(before.nodes[node])}
                if not alive and command.mode == "automatic":
                    self.sim.broken("salvage", f"{where} is reset by itself, and nobody alive has {name}")
                keys = [key for key in self._begun if self._tablet(key) == (name, number)]
                held = {
                    node: {key: self._holds(node, key) for key in keys}
                    for node in sorted(alive)
                    if not self.sim.shared["nodes"][node].is_lost
                }
                is_admitted = command.admits_loss or zone.mode == HIGH_AVAILABILITY
                self._salvages[name, number] = Salvage(after.epoch, group, alive, held, is_admitted)
                most = "resets" if 2 * len(alive) <= len(group) else "resets of most"
                self.sim.did["zone data", most if is_admitted else f"{most}, no loss admitted"] += 1

    def _is_salvaged(self, command: AdvanceTablets, state: ClusterState) -> None:
        """The survivor has what those had who are alive, and what may be lost is known."""
        for one in command.tablets:
            where = (one.table, one.tablet)
            transition = state.tablets[one.table].transitions.get(one.tablet)
            salvage = self._salvages.pop(where, None) if one.to == "salvaged" else None
            if salvage is None or transition is None:
                continue
            (survivor,) = [replica.node for replica in transition.next]
            for node in sorted(salvage.alive.intersection(salvage.held)):
                for key, timestamp in salvage.held[node].items():
                    if self._holds(survivor, key) < timestamp:
                        detail = f"{key.name.decode()} = {timestamp}, {survivor} is the survivor"
                        self.sim.broken("salvage", f"{one.table}/{one.tablet}: {node} had {detail} and lacks it")
            self.sim.did["zone data", "salvaged"] += len(salvage.held) > 1
            if salvage.is_admitted and 2 * len(salvage.alive) <= len(salvage.group):
                self._lossy[where] = salvage.epoch
                self._forgive(key for key in self._begun if self._tablet(key) == where)

    def _forgive(self, keys: Iterable[Key]) -> None:
        self.sim.shared[FORGIVEN].update(key.name.decode() for key in keys)

    def _tablet(self, key: Key) -> tuple[str, int]:
        """Table and number of the tablet of a register; -1: it is in none."""
        state = self.sim.log.state
        table = state.tables.get(key.keyspace)
        if table is None or table.tablets is None:
            return "", -1
        base = f"{table.keyspace}.{table.tablets.base or table.name}"
        return base, next(one.index for one in state.tablets[base] if holds(one.start, one.end, key.token))

    def _check_reused(self, node: str, state: ClusterState) -> None:
        """A node has no register of a keyspace that was dropped in the next keyspace of the same name."""
        keyspace = state.keyspaces.get(REUSED)
        for key in self._reused:
            cell = self.sim.shared["nodes"][node].registers.value.durable.cells.get(key)
            self.sim.did["register", "in a keyspace created again"] += cell is not None
            if cell is not None and keyspace is not None and keyspace.made not in self._reused[key]:
                at = f"at {state.epoch}, whose keyspace is of {keyspace.made}"
                self.sim.broken("namesake", f"{node} has {key.name.decode()} {at}")

    def _is_of_the_log(self, state: ClusterState) -> bool:
        states = self.sim.log.states
        return state.epoch < len(states) and states[state.epoch].state_id == state.state_id

    def _promise(self, key: Key, timestamp: int, epoch: Epoch) -> None:
        if self._lossy and epoch < self._lossy.get(self._tablet(key), 0):
            self._forgive([key])
        self._promised.setdefault(key, []).append((epoch, timestamp))
        self.quiet()

    def _holds(self, node: str, key: Key) -> int:
        cell = self.sim.shared["nodes"][node].registers.value.durable.cells.get(key)
        return cell.timestamp if cell is not None else 0


def _serves(state: ClusterState, key: Key, is_write: bool) -> tuple[int, list[str]]:
    """The epoch that created the keyspace or table of a register, and the nodes that serve it."""
    keyspace, group = state.keyspaces.get(key.keyspace.partition(".")[0]), _group(state, key)
    if keyspace is None or group is None:
        return NOBODY
    table = state.tables.get(key.keyspace)
    return max(keyspace.made, 0 if table is None else table.made), sorted(
        replica.node for replica in (group.write if is_write else group.read)
    )


def _readers(state: ClusterState, key: Key) -> list[str]:
    """Return the nodes that may be read; none once the table or the keyspace of a register was dropped."""
    if key.keyspace == REUSED and not is_of_reused(state, key):
        return []
    group = _group(state, key)
    return [] if group is None else sorted(replica.node for replica in group.read)


def _group(state: ClusterState, key: Key) -> RangeGroup | None:
    """Who serves a register, found the slow way. What the groups of tablets are the check of tablets says."""
    if "." in key.keyspace:
        table = state.tables.get(key.keyspace)
        if table is None or table.tablets is None or not key.name.startswith(table.id.encode()):
            return None
        base = f"{table.keyspace}.{table.tablets.base or table.name}"
        groups = [group_of(one) for one in state.tablets[base]]
        return next(group for group in groups if holds(group.start, group.end, key.token))
    keyspace = state.keyspaces.get(key.keyspace)
    placement = None if keyspace is None else state.placements[keyspace.placement or key_of(keyspace.replication)]
    if placement is None or not placement.ends:
        return None
    ends = sorted(group.end for group in placement.ranges)
    end = min((end for end in ends if end >= key.token), default=ends[0])
    return next(group for group in placement.ranges if group.end == end)

"""Registers and the log from the clients' view: histories are linearizable, and guaranteed writes are not lost.

The replicas' answers are compared with the check's own ledger: each replica's admitted and unanswered writes, and its
acknowledgements. At the end, each register and the log must be linearizable. After a successful
write or read at QUORUM or ALL, every majority of the current readers must have its value. A reader at the newest epoch
may ask exactly these replicas.

After a reset of a zone partition, the survivor of a tablet must have, before it is read, all values that the replicas
up since then had at the reset. No write may be lost if these are a majority of the group, or if the reset does not
admit loss. Otherwise, only writes of clients that did not know the reset may be lost.
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
from ringlog.node.registers.registers import PLACED_BY, Admission, Behind, Reply
from ringlog.protocol.submission.results import AppliedResult, RejectedResult, Submitted
from ringlog.protocol.submission.submission import RequestKey
from ringlog.wire.data import NOT_READY, Key
from ringlog.wire.records import NodeAck
from ringlog_sim.actors.cdc.producer import REUSED
from ringlog_sim.actors.nodes.coordinator_path import is_of_reused
from ringlog_sim.checks.base import Check
from ringlog_sim.checks.ring.movements import movements
from ringlog_sim.devices.listener import LOG
from ringlog_testing.histories.check import decide
from ringlog_testing.histories.events import Event, Op
from ringlog_testing.histories.operations import is_register
from ringlog_testing.histories.verdict import Linearizability
from ringlog_testing.placement.layout import holds, key_of

if TYPE_CHECKING:
    from ringlog_sim.simulation import Simulation

FORGIVEN = "forgiven registers"
"""Names of registers that may have lost writes with the reset of their partition."""

NOBODY: tuple[int, list[str]] = (0, [])
"""The replicas of a register that does not exist."""

Where = tuple[str, int]
"""Table and number of a tablet."""


@dataclass(slots=True)
class Salvage:
    """A tablet whose survivor is not read yet. ``epoch``: epoch of the reset. ``group``: the replicas at the reset.

    ``alive``: replicas that have been up since then. ``held``: the values of each of them at the reset.
    """

    epoch: Epoch
    group: list[str]
    alive: set[str]
    held: dict[str, dict[Key, int]]
    is_admitted: bool


class Histories(Check):
    """The history of the log's commits. At the end, it decides every key of the run's history."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._begun: dict[tuple[str, str, str], Event] = {}

    def asked(self, client: str, key: RequestKey, kind: str) -> None:
        """Record that a commit, or another attempt at it, begins. The earlier attempt stays open."""
        name = _name(key.request_id, key.digest)
        self._begun[client, key.request_id, key.digest] = self.sim.recording.invoke(client, Op.COMMIT, LOG, name)

    def answered(self, client: str, key: RequestKey, answer: Submitted) -> None:
        """Record the outcome of a commit, unless it is permanently unknown."""
        begun = self._begun.pop((client, key.request_id, key.digest))
        if isinstance(answer, AppliedResult):
            self.sim.recording.ok(begun, answer.epoch)
        elif isinstance(answer, RejectedResult):
            self.sim.recording.fail(begun, answer.code)

    def quiet(self) -> None:
        """Check that every key is linearizable."""
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
    """Return a name that distinguishes commands with the same request id."""
    return f"{request_id}/{digest[:8]}"


class RegistersCheck(Check):
    """The replicas' admissions, answers and acknowledgements, and the values at the end."""

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
        """Forget the node's admitted writes. They were not on its disk and were never answered."""
        self._admitted[node] = {}

    def serves(self, node: str, state: ClusterState) -> None:
        """Check that a replica serves states of the log, and none below an acknowledged one, also after a restart."""
        epoch = state.epoch
        if not self._is_of_the_log(state):
            self.sim.broken("another_log", f"{node} serves a state of epoch {epoch} that the log never had")
        if epoch < self._acked.get(node, 0):
            self.sim.broken("served_below_ack", f"{node} serves {epoch}, but acknowledged {self._acked[node]}")
        if self._reused:
            self._check_reused(node, state)

    def admitted(self, node: str, number: int, epoch: int, is_write: bool, planned: ClusterState) -> None:
        """Record an admitted request. Check that it was planned on a state of the log."""
        if not self._is_of_the_log(planned):
            self.sim.broken("other_history", f"{node} accepts a request of epoch {planned.epoch} of another history")
        if is_write:
            self._admitted[node][number] = epoch

    def came(
        self,
        node: str,
        state: ClusterState,
        key: Key,
        is_write: bool,
        planned: ClusterState,
        found: Admission,
    ) -> None:
        """Check that a replica that is behind waits only for relevant changes, and otherwise answers like a current
        one.
        """
        if is_write and key.keyspace == REUSED:
            self._reused.setdefault(key, set()).add(planned.keyspaces[REUSED].made)
        if state.epoch >= planned.epoch or not self._is_of_the_log(planned):
            return
        if isinstance(found, Behind):
            mattered = max(planned.changed.get(part, 0) for part in PLACED_BY)
            if max(mattered, planned.history.first) <= state.epoch:
                self.sim.broken("waits_in_vain", f"{node} at {state.epoch} waits for {found.epoch}, needed: {mattered}")
        elif isinstance(found, int) or found.refused != NOT_READY:
            here, there = _serves(state, key, is_write), _serves(planned, key, is_write)
            if here == there == NOBODY:
                return  # the key names a dropped table by its id, and another table has that name now
            between = [_serves(one, key, is_write) for one in self.sim.log.states[state.epoch : planned.epoch + 1]]
            stays = all(made == there[0] and node in group for made, group in between)
            if not stays or not (is_write or here == there):
                at = f"{node} at {state.epoch}, planned at {planned.epoch}"
                self.sim.broken("asked_in_vain", f"{at}: {found} with {here}, but not with {there}")

    def replied(self, node: str, reply: Reply) -> None:
        """Check an answer. Its epoch must not be older than that of the admission."""
        taken = self._admitted[node].pop(reply.number, 0)
        if reply.epoch < taken:
            self.sim.broken(
                "answered_as_of", f"{node} accepted a write at {taken}, but answers with epoch {reply.epoch}"
            )

    def acked(self, ack: NodeAck) -> None:
        """Check that a replica that has drained an epoch has no open write from below it."""
        below = [number for number, epoch in sorted(self._admitted.get(ack.node, {}).items()) if epoch < ack.drained]
        if below:
            self.sim.broken(
                "ack_before_drained", f"{ack.node} drained {ack.drained}, but has {len(below)} older writes"
            )
        self._acked[ack.node] = max(ack.applied, self._acked.get(ack.node, 0))

    def wrote(self, key: Key, timestamp: int, level: Level, epoch: Epoch | None) -> None:
        """Record that a write begins, or has succeeded."""
        if epoch is None:
            self._begun[key] = timestamp
        elif level is not Level.ONE:
            self._promise(key, timestamp, epoch)

    def found(self, key: Key, timestamp: int | None, level: Level, epoch: Epoch) -> None:
        """Check that a successful read returned a value that was written, at any level."""
        if timestamp is not None and timestamp > self._begun.get(key, 0):
            self.sim.broken("out_of_thin_air", f"{key.name.decode()} = {timestamp} was read, but never written")
        if level is not Level.ONE:
            self._promise(key, timestamp or 0, epoch)

    def applied(self, before: ClusterState, after: ClusterState, item: Entry, offset: int) -> None:
        """Check the readers after a change of placements or tablets, and update the guarantees after a reset."""
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
        """Check that each majority of a key's readers has the guaranteed value, unless a node was assassinated."""
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
                        "write_lost", f"{key.name.decode()} = {promised} was acknowledged, but readers have {values}"
                    )

    # ------------------------------------------------------------------------------------------------ resets

    def _is_reset(self, command: ResetPartitions, before: ClusterState, after: ClusterState) -> None:
        """Record a salvage for each tablet of the partition. An automatic reset must not drop data without a live
        replica.
        """
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
                    self.sim.broken("salvage", f"{where} is reset automatically, but no live node has {name}")
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
        """Check that the survivor has the values of the live replicas. Record which loss is allowed."""
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
                        self.sim.broken("salvage", f"{one.table}/{one.tablet}: {node} lost {detail}")
            self.sim.did["zone data", "salvaged"] += len(salvage.held) > 1
            if salvage.is_admitted and 2 * len(salvage.alive) <= len(salvage.group):
                self._lossy[where] = salvage.epoch
                self._forgive(key for key in self._begun if self._tablet(key) == where)

    def _forgive(self, keys: Iterable[Key]) -> None:
        self.sim.shared[FORGIVEN].update(key.name.decode() for key in keys)

    def _tablet(self, key: Key) -> tuple[str, int]:
        """Return (table, tablet number) of a register, with number -1 if it is in no tablet."""
        state = self.sim.log.state
        table = state.tables.get(key.keyspace)
        if table is None or table.tablets is None:
            return "", -1
        base = f"{table.keyspace}.{table.tablets.base or table.name}"
        return base, next(one.index for one in state.tablets[base] if holds(one.start, one.end, key.token))

    def _check_reused(self, node: str, state: ClusterState) -> None:
        """Check that a node has no register of a dropped keyspace in the next keyspace of the same name."""
        keyspace = state.keyspaces.get(REUSED)
        for key in self._reused:
            cell = self.sim.shared["nodes"][node].registers.value.durable.cells.get(key)
            self.sim.did["register", "in a keyspace created again"] += cell is not None
            if cell is not None and keyspace is not None and keyspace.made not in self._reused[key]:
                at = f"at {state.epoch}, whose keyspace was created at {keyspace.made}"
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
    """Return the epoch that created the keyspace or table of a register, and the nodes that serve it."""
    keyspace, group = state.keyspaces.get(key.keyspace.partition(".")[0]), _group(state, key)
    if keyspace is None or group is None:
        return NOBODY
    table = state.tables.get(key.keyspace)
    return max(keyspace.made, 0 if table is None else table.made), sorted(
        replica.node for replica in (group.write if is_write else group.read)
    )


def _readers(state: ClusterState, key: Key) -> list[str]:
    """Return the nodes that may be read, or none after the register's table or keyspace was dropped."""
    if key.keyspace == REUSED and not is_of_reused(state, key):
        return []
    group = _group(state, key)
    return [] if group is None else sorted(replica.node for replica in group.read)


def _group(state: ClusterState, key: Key) -> RangeGroup | None:
    """Return the group of a register by linear search. The tablet check covers the groups of tablets."""
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

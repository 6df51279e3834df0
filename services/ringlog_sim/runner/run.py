"""One run: create a cluster, play the script, end the faults, and wait until the cluster is quiet.

Every check runs after every event. After the faults, the cluster gets time to become quiet: all replicas at the last
epoch, every request answered, every operation ended or waiting for a named condition. A run with too little activity
also fails, because it would prove nothing.
"""

from __future__ import annotations

import hashlib
import time
import traceback
from collections import Counter
from typing import Any

from ringlog.kernel.balance.advice import advise
from ringlog.kernel.balance.reports import Reports
from ringlog.kernel.changes import EpochChange
from ringlog.kernel.commands.cluster.cluster import InitializeCluster
from ringlog.kernel.operations.gates import stopped_by
from ringlog.kernel.operations.stages import in_flight
from ringlog.kernel.values import Micros, Value
from ringlog.operator.rehearsal.balance_history import BalanceHistory, history_of
from ringlog.protocol.balancer.load_book import ReceivedLoad, measured, take
from ringlog.protocol.coordinator.ack_book import AckBook
from ringlog.protocol.rebalancer.core import RebalancerView, propose
from ringlog.protocol.rebalancer.data_nodes import Timers, new_data_nodes, updated_timers
from ringlog.protocol.rebalancer.zone_groups import session_reports
from ringlog.protocol.roles import ROLES
from ringlog_sim.actors.cdc.consumer import SimConsumer
from ringlog_sim.actors.cdc.job import SECOND_HOST, SimCdcJob
from ringlog_sim.actors.cdc.producer import SimProducer
from ringlog_sim.actors.controllers import BalancerWorker, CoordinatorWorker, decoded_acks, decoded_loads, plain_worker
from ringlog_sim.actors.keeper import CacheWriterWorker
from ringlog_sim.actors.nodes.coordinator_path import SimApplication, disturb, register_keys
from ringlog_sim.actors.nodes.node import SimNode
from ringlog_sim.actors.nodes.outsider import SimOutsider
from ringlog_sim.actors.nodes.row_reads import WRITTEN
from ringlog_sim.actors.publisher import PublisherWorker
from ringlog_sim.actors.role import Worker, member
from ringlog_sim.actors.validator import ValidatorWorker
from ringlog_sim.client import ANSWER_APPLIED
from ringlog_sim.devices.broker import ACKS, CHANGES, LOAD, MUTATIONS
from ringlog_sim.devices.keys import KeyRing
from ringlog_sim.devices.memo import cached_change
from ringlog_sim.devices.world import EPOCH_START, MS, SECOND, BrokenPromise, Chance, SimHost, SimWorld
from ringlog_sim.families import CHECKS
from ringlog_sim.operator import SimOperator
from ringlog_sim.prefix import (
    cluster_id_of,
    prefix_of,
    registration,
    schema_commands,
    settings_of,
    tokens_of,
)
from ringlog_sim.replica import SimAuthor, SimReplica, Step, draw_of
from ringlog_sim.runner.actions import perform
from ringlog_sim.runner.faults import Faults
from ringlog_sim.runner.rest import (
    helpless,
    unended_service,
    unended_tablets,
    unended_zones,
    waits_for_lost,
    waits_for_tablets,
)
from ringlog_sim.runner.script import Action, Script, trace_line
from ringlog_sim.simulation import Simulation
from ringlog_sim.stories.story import AGENT_HOSTS, APPLICATIONS, CONSUMER, OPERATOR, OUTSIDER, PRODUCER, WRITER
from ringlog_sim.stories.truncation import unarchived, unended_snapshots

REST_US: Micros = 120 * SECOND
"""Virtual time for a cluster to become quiet after the last fault."""
SLICE_US: Micros = 500 * MS
ENTRIES_MIN = 6
"""Entries that a run must at least add to the log."""

_SHELLS: tuple[type[Worker], ...] = (
    ValidatorWorker,
    CoordinatorWorker,
    PublisherWorker,
    CacheWriterWorker,
    BalancerWorker,
)
WORKERS: dict[str, type[Worker]] = {
    **{shell.role: shell for shell in _SHELLS},
    **{row.name: plain_worker(row) for row in ROLES.values() if row.steps},
}


def workers_of(script: Script) -> tuple[type[Worker], ...]:
    """Return the workers of each agent host. Workers of an optional role are included only if the script
    requests it.
    """
    asked = {action.arguments for action in script.actions if action.what in ("hand_over", "with_role")}
    return tuple(WORKERS[name] for name, row in ROLES.items() if not row.is_optional or (name,) in asked)


class RunReport(Value):
    """The result of a run. ``rule`` is empty if no invariant was broken. ``digest``: hash of all records and events.

    ``seconds``: processor time. ``history``: the clients' operations and answers, as lines, and ``chart``: the history
    of the tablets, both only on request.
    """

    seed: int
    profile: str
    rule: str
    detail: str
    digest: str
    events: int
    entries: int
    virtual: Micros
    seconds: float
    did: Counter[tuple[str, ...]]
    story: tuple[str, ...] = ()
    history: tuple[str, ...] = ()
    chart: BalanceHistory | None = None


class Run:
    """One cluster and its actions."""

    def __init__(self, script: Script, tracing: bool = False) -> None:
        self.script = script
        self.world = SimWorld(script.seed, tracing)
        self.sim = Simulation(self.world, cluster_id_of(script.shape), CHECKS)
        self.faults = Faults(self)
        self.sim.moments.happen = self._happen
        self.started: set[str] = set()
        self.lost: set[str] = set()
        self.nodes: dict[str, SimNode] = {}
        self.by_id: dict[str, SimNode] = {}
        self.sim.shared["nodes"] = self.by_id
        roles = {worker.role for worker in workers_of(script)}
        self.sim.shared["balances"] = "balancer" in roles
        self.sim.shared["rebalances"] = "rebalancer" in roles
        asked = {action.what for action in script.actions}
        self.sim.shared["keeps_rows"], self.sim.shared["asks"] = "keep_rows" in asked, "ask_peers" in asked
        self.sim.shared["keeps_log"] = "keep_log" in asked
        self.sim.shared[ANSWER_APPLIED] = Chance(script.seed, ANSWER_APPLIED).happens(1 / 8)
        self.sim.shared["keys"] = KeyRing(self.sim.cluster_id) if script.shape.guarded else None
        self.sim.shared["mutations_begin"] = {}
        self.sim.shared["rows_failed"] = self._rows_failed
        self.sim.shared[WRITTEN] = []
        self.sim.log_ends.looked_after = "snapshot" in asked
        self.sim.log_ends.files = {} if "archive" in asked else None
        self.sim.broker.passed = self.faults.start_again
        self.operator = SimOperator(self.sim, self.world.host(OPERATOR))
        self.producer = SimProducer(self.sim, self.world.host(PRODUCER))
        self.applications = {name: SimApplication(self.sim, self.world.host(name)) for name in APPLICATIONS}
        self.outsider = SimOutsider(self.sim, self.world.host(OUTSIDER))
        self.job = self.sim.shared["job"] = SimCdcJob(self.sim, self.world.host(WRITER))
        self.consumer = self.sim.shared["consumer"] = SimConsumer(self.sim, self.world.host(CONSUMER))

    # --------------------------------------------------------------------------------------------- set-up

    def set_up(self) -> None:
        """Create everything that exists at the start of the run."""
        shape = self.script.shape
        prefix = prefix_of(shape)
        if prefix.records:
            self.sim.preload(prefix)
        for host in AGENT_HOSTS:
            self.boot(self.world.host(host))
        for number in range(1, shape.founded + shape.joining + 1):
            node = SimNode(
                self.sim, self.world.host(f"n{number}"), registration(shape, number), tokens_of(shape, number)
            )
            self.nodes[node.name] = self.by_id[node.registration.id] = node
        for number in range(1, shape.founded + 1):
            self.boot(self.world.host(f"n{number}"))
        for host in APPLICATIONS:
            self.boot(self.world.host(host))
        shape = self.script.shape
        numbers = range(shape.founded + 1, shape.founded + shape.joining + 1)
        self.registers = register_keys(
            self.script.seed, tuple(token for number in numbers for token in tokens_of(shape, number))
        )
        self.outsider.start(self.registers)
        disturb(self.sim, [one.host for one in self.applications.values()], [n.host for n in self.nodes.values()])
        self.boot(self.world.host(OPERATOR))
        self.boot(self.world.host(WRITER))
        self.boot(self.world.host(CONSUMER))
        if not prefix.records:
            for host in AGENT_HOSTS:
                self.world.spawn(self.world.host(host), "founder", self._found(self.world.host(host)))
            self.operator.insist(schema_commands(1, Chance(self.world.seed, "schema")))

    def _found(self, host: SimHost) -> Step:
        """Create the cluster. Two processes race to do so."""
        replica = SimReplica(self.sim, host, f"founder@{host.name}")
        direct = SimAuthor(replica, f"founder@{host.name}", draw_of(self.sim, f"founder@{host.name}"))
        try:
            yield from replica.barrier()
            if replica.state.epoch == 0:
                yield from direct.submit(InitializeCluster("simulated", settings_of(self.script.shape)))
        finally:
            replica.close()

    def boot(self, host: SimHost) -> None:
        """Start (again) the processes of the host."""
        if host.name in self.lost:
            return
        self.world.boot(host)
        if host.name in AGENT_HOSTS:
            for make in workers_of(self.script):
                self.world.spawn(host, f"{make.role}@{host.name}", member(self.sim, host, make))
            if self.sim.log.state.epoch == 0 and host.incarnation:
                self.world.spawn(host, "founder", self._found(host))
        elif host.name in self.nodes:
            if host.name in self.started or int(host.name[1:]) <= self.script.shape.founded:
                self.nodes[host.name].start()
        elif host.name == OPERATOR:
            self.operator.start()
        elif host.name in APPLICATIONS:
            self.applications[host.name].start()
        elif host.name == PRODUCER:
            self.producer.unfinished = 0
        elif host.name in (WRITER, SECOND_HOST):
            self.job.start(host)
        elif host.name == CONSUMER:
            self.consumer.start()

    # -------------------------------------------------------------------------------------------- playing

    def play(self, entries_min: int = ENTRIES_MIN) -> None:
        """Play the script, then wait until the cluster is quiet. Raise BrokenPromise."""
        self.set_up()
        before = len(self.sim.log.states)
        for action in self.script.actions:
            self.world.run(action.at)
            self.world.tell("script", trace_line(action))
            perform(self, action)
        self.world.run(self.script.calm)
        self.faults.stop()
        self.operator.call_off(self.by_id)
        deadline = self.world.now + REST_US
        while undone := unfinished_work(self):
            if self.world.now >= deadline:
                raise BrokenPromise("liveness", "; ".join(undone))
            self.world.run(self.world.now + SLICE_US)
        for check in self.sim.checks:
            check.quiet()
        entries = len(self.sim.log.states) - before
        if entries < entries_min:
            raise BrokenPromise("too_little", f"{entries} entries were applied, a valid run has at least {entries_min}")

    def _happen(self, number: int, kind: str, arguments: tuple[Any, ...]) -> None:
        perform(self, Action(number, self.world.now, kind, arguments))

    def _rows_failed(self, name: str) -> None:
        """Handle a node that has stopped because of its disk: it is lost, or it starts without rows."""
        lost = not self.faults.calm and Chance(self.world.seed, f"rows failed/{name}").happens(0.5)
        kind, arguments = ("lost", (name,)) if lost else ("crash", (name, 1_000))
        perform(self, Action(-1, self.world.now, kind, arguments))

    def close(self) -> None:
        """Drop all references at the end of the run.

        Thousands of objects refer to each other. The garbage collector would take several times as long to find them,
        in memory that is no longer cached.
        """
        self.world.close()
        self.sim.close()
        vars(self).clear()

    # --------------------------------------------------------------------------------------------- digest

    def digest(self) -> str:
        """Return a hash of all written records and events, in hex."""
        summed = hashlib.sha256(f"{self.world.events}/{self.world.fingerprint}/{self.world.now}".encode())
        for name, partitions in sorted(self.sim.broker.topics.items()):
            for partition in partitions:
                summed.update(f"{name}/{partition.number}/{partition.end}".encode())
                for record in partition.records:
                    value = record.value if type(record.value) is bytes else repr(record.value).encode()
                    summed.update(f"{record.offset}/{record.key}/{len(value)}:".encode() + value)
        return summed.hexdigest()


def _loads(run: Run) -> list[ReceivedLoad]:
    return decoded_loads(run.sim.broker.partition(LOAD).records)


def _to_balance(run: Run) -> str:
    """Return the balancer's next commands for the current reports and state."""
    state = run.sim.log.state
    reports = take(Reports(), _loads(run), state)
    return ", ".join(type(command).__name__ for command in advise(state, measured(reports, state)).commands)


def _to_rebalance(run: Run) -> list[str]:
    """Return the zones' unfinished waits, and the rebalancer's next commands for the current reports and state."""
    state = run.sim.log.state
    if not run.sim.shared["rebalances"] or not state.zones:
        return []
    acks = AckBook()
    for one in decoded_acks(run.sim.broker.partition(ACKS).records):
        acks.take(*one)
    expired = new_data_nodes(updated_timers(Timers(), state), state, EPOCH_START + run.world.now + REST_US)
    answers = session_reports(state, acks.newest(state))
    wanted = propose(RebalancerView(state, answers, expired))
    asked = [f"the rebalancer would still request {type(one.command).__name__}" for one in wanted]
    return asked + unended_zones(state, answers, run.by_id)


def unfinished_work(run: Run) -> list[str]:
    """Return a sentence for each unfinished item, or nothing if the cluster is quiet."""
    sim = run.sim
    state = sim.log.state
    undone = []
    if state.epoch == 0:
        undone.append("the cluster was not created")
    for replica in sim.replicas:
        if replica.is_alive() and replica.state.epoch != state.epoch:
            undone.append(f"{replica.name} is at epoch {replica.state.epoch}, the log at {state.epoch}")
    for operation in in_flight(state):
        if stopped_by(operation):
            continue  # it may wait forever, because no operator has decided
        reasons = (helpless(operation, run.by_id), waits_for_lost(state, operation, run.by_id))
        if not any(reasons) and not waits_for_tablets(state, operation, run.by_id):
            undone.append(f"{operation.id} is in {operation.stage}")
    undone += unended_tablets(state, run.by_id) + unended_service(state, run.by_id)
    if sim.shared["balances"] and (wanted := _to_balance(run)):
        undone.append(f"the balancer would still request {wanted}")
    undone += _to_rebalance(run) + unended_snapshots(sim) + unarchived(sim)
    if run.operator.unfinished:
        undone.append(f"{run.operator.unfinished} requests of the operator have no answer")
    undone += run.job.unfinished() + run.job.open_generations() + run.consumer.unfinished()
    if run.producer.unfinished:
        undone.append(f"{run.producer.unfinished} bursts are not written")
    last = next((record for record in reversed(sim.broker.partition(CHANGES).records) if record.key == "epochs"), None)
    published = last and cached_change(last.value)
    if not isinstance(published, EpochChange) or published.epoch != state.epoch:
        undone.append(f"the last published epoch is {published and published}, the log is at epoch {state.epoch}")
    confirmed = sim.cache.confirmed()
    cached = confirmed[0].epoch if confirmed else 0
    if cached != state.epoch:
        undone.append(f"the cache has epoch {cached}, the log {state.epoch}")
    ends = {partition.number: partition.high for partition in sim.broker.topics[MUTATIONS]}
    for node in run.nodes.values():
        read = node.row_replica.positions
        if node.starts and any(read.get(partition, 0) < end for partition, end in ends.items()):
            undone.append(f"{node.name} has validated the mutations up to {read} of {ends}")
        if node.starts and node.row_replica.state.epoch != state.epoch:
            undone.append(f"{node.name} serves epoch {node.row_replica.state.epoch}, the log is at {state.epoch}")
        if node.starts and node.side.acknowledgeable() != state.epoch:
            undone.append(f"{node.name} has open writes below {state.epoch}, or does not serve or store it yet")
        if node.starts and node.peers is not None and node.peers.claims.newest_epoch:
            undone.append(f"{node.name} knows an epoch only from a peer")
    return undone


def run_script(
    script: Script,
    tracing: bool = False,
    entries_min: int = ENTRIES_MIN,
    recording: bool = False,
    filming: bool = False,
) -> RunReport:
    """Play a script to its end. It never raises."""
    began = time.process_time()
    run = Run(script, tracing)
    rule, detail = "", ""
    try:
        run.play(entries_min)
    except BrokenPromise as violation:
        rule, detail = violation.rule, violation.detail
    except Exception as error:
        rule = "raised"
        where = traceback.extract_tb(error.__traceback__)[-1]
        detail = f"{type(error).__name__}: {error} ({where.name}, line {where.lineno})"
    story: tuple[str, ...] = tuple(run.world.story)
    report = RunReport(
        seed=script.seed,
        profile=script.profile,
        rule=rule,
        detail=detail,
        digest=run.digest(),
        events=run.world.events,
        entries=len(run.sim.log.states) - 1,
        virtual=run.world.now,
        seconds=time.process_time() - began,
        did=run.sim.did,
        story=story,
        history=tuple(run.sim.recording.lines()) if recording else (),
        chart=history_of(run.sim.log.states, _loads(run)) if filming else None,
    )
    run.close()
    return report

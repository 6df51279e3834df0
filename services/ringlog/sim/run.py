"""One run: a cluster is set up, the script happens to it, faults stop, and everything must come to rest.

While it runs every check looks at everything; when the faults have stopped the cluster gets time to become quiet:
everybody at the last epoch, every request answered, every operation ended or waiting for something that it names. A run
in which too little happened counts as failed as well: it would prove nothing.
"""

from __future__ import annotations

import hashlib
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from typing import Any

from ringlog.kernel.commands.cluster import InitializeCluster
from ringlog.kernel.values import Micros
from ringlog.protocol.roles import ROLES
from ringlog.sim.actors.cdc_job import SECOND_HOST, SimCdcJob
from ringlog.sim.actors.consumer import SimConsumer
from ringlog.sim.actors.coordinator import CoordinatorWorker
from ringlog.sim.actors.coordinator_path import SimApplication, disturb, level_of, register_keys
from ringlog.sim.actors.imaged import EXECUTOR
from ringlog.sim.actors.keeper import KeeperWorker
from ringlog.sim.actors.node import SimNode
from ringlog.sim.actors.operator import SimOperator
from ringlog.sim.actors.outsider import SimOutsider
from ringlog.sim.actors.plain import plain_worker
from ringlog.sim.actors.producer import SimProducer
from ringlog.sim.actors.publisher import PublisherWorker
from ringlog.sim.actors.role import Worker, member
from ringlog.sim.actors.validator import ValidatorWorker
from ringlog.sim.chance import Chance
from ringlog.sim.families import CHECKS
from ringlog.sim.faults import Faults
from ringlog.sim.imaging import changes
from ringlog.sim.prefix import cluster_id_of, prefix_of, registration, schema_commands, settings_of, tokens_of
from ringlog.sim.replica import SimAuthor, SimReplica, Step, draw_of
from ringlog.sim.rest import what_is_not_done
from ringlog.sim.script import (
    AGENT_HOSTS,
    APPLICATIONS,
    CONSUMER,
    OPERATOR,
    OUTSIDER,
    PRODUCER,
    WRITER,
    Action,
    Script,
    told,
)
from ringlog.sim.simulation import Simulation
from ringlog.sim.world import MS, SECOND, Host, Violation, World

REST_US: Micros = 120 * SECOND
"""How much virtual time a cluster has to become quiet after the last fault."""
SLICE_US: Micros = 500 * MS
ENTRIES_MIN = 6
"""Entries that a run must at least add to the log to count."""

_SHELLS: tuple[type[Worker], ...] = (ValidatorWorker, CoordinatorWorker, PublisherWorker, KeeperWorker)
WORKERS: dict[str, type[Worker]] = {shell.role: shell for shell in _SHELLS} | {
    row.name: plain_worker(row) for row in ROLES.values() if row.plain
}


def workers_of(script: Script) -> tuple[type[Worker], ...]:
    """The workers of each host of agents; those of an idle role only if the script hands it over."""
    asked = {action.arguments for action in script.actions if action.what == "hand_over"}
    return tuple(WORKERS[name] for name, row in ROLES.items() if not row.is_idle or (name,) in asked)


@dataclass(frozen=True, slots=True)
class Report:
    """What a run gave. ``rule`` is empty if nothing was broken; ``digest`` sums up all that happened.

    ``seconds``: of processor time. ``history``: what clients asked and were told, as lines, if it was asked for.
    """

    seed: int
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


class Run:
    """One cluster and what happens to it."""

    def __init__(self, script: Script, tracing: bool = False) -> None:
        self.script = script
        self.world = World(script.seed, tracing)
        self.sim = Simulation(self.world, cluster_id_of(script.shape), CHECKS)
        self.faults = Faults(self)
        self.sim.moments.happen = self._happen
        self.started: set[str] = set()
        self.lost: set[str] = set()
        self.nodes: dict[str, SimNode] = {}
        self.by_id: dict[str, SimNode] = {}
        self.sim.shared["nodes"] = self.by_id
        self.operator = SimOperator(self.sim, self.world.host(OPERATOR))
        self.producer = SimProducer(self.sim, self.world.host(PRODUCER))
        self.applications = {name: SimApplication(self.sim, self.world.host(name)) for name in APPLICATIONS}
        self.outsider = SimOutsider(self.sim, self.world.host(OUTSIDER))
        self.job = self.sim.shared["job"] = SimCdcJob(self.sim, self.world.host(WRITER))
        self.consumer = self.sim.shared["consumer"] = SimConsumer(self.sim, self.world.host(CONSUMER))

    # --------------------------------------------------------------------------------------------- set-up

    def set_up(self) -> None:
        """Everything that is there when the run begins."""
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

    def _found(self, host: Host) -> Step:
        """One of two founders who race."""
        replica = SimReplica(self.sim, host, f"founder@{host.name}")
        direct = SimAuthor(replica, f"founder@{host.name}", draw_of(self.sim, f"founder@{host.name}"))
        try:
            yield from replica.barrier()
            if replica.state.epoch == 0:
                yield from direct.submit(InitializeCluster("simulated", settings_of(self.script.shape)))
        finally:
            replica.close()

    def boot(self, host: Host) -> None:
        """Start (again) what belongs on the host."""
        if host.name in self.lost:
            return
        self.world.boot(host)
        if host.name in AGENT_HOSTS:
            for make in workers_of(self.script):
                self.world.spawn(host, f"{make.role}@{host.name}", member(self.sim, host, make))
            if self.sim.log.state.epoch == 0 and host.life:
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
        """Let the script happen, then wait until all is quiet. Raises Violation."""
        self.set_up()
        before = len(self.sim.log.states)
        for action in self.script.actions:
            self.world.run(action.at)
            self.world.tell("script", told(action))
            self.act(action)
        self.world.run(self.script.calm)
        self.faults.stop()
        self.operator.call_off(self.by_id)
        deadline = self.world.now + REST_US
        while undone := what_is_not_done(self):
            if self.world.now >= deadline:
                raise Violation("liveness", "; ".join(undone))
            self.world.run(self.world.now + SLICE_US)
        for check in self.sim.checks:
            check.quiet()
        entries = len(self.sim.log.states) - before
        if entries < entries_min:
            raise Violation("too_little", f"{entries} entries were applied, a run that counts has {entries_min}")

    def _happen(self, number: int, what: str, arguments: tuple[Any, ...]) -> None:
        self.act(Action(number, self.world.now, what, arguments))

    def act(self, action: Action) -> None:
        """One action of the script."""
        self.sim.did["action", action.what] += 1
        match action.what, action.arguments:
            case "start", (name,):
                if name not in self.started:
                    self.started.add(name)
                    if self.nodes[name].host.up:
                        self.nodes[name].start()
            case "replace", (name, founder):
                self.nodes[name].replaces = self.nodes[founder]
            case "lost", (name,):
                self.lost.add(name)
                self.world.crash(self.nodes[name].host, True)
                self.nodes[name].lose()
            case "burst", (count,):
                if self.producer.host.up:
                    self.producer.burst(count)
            case "late_burst", (count,):
                if self.producer.host.up:
                    self.producer.burst(count, late=True)
            case "set", (name, value):
                self.operator.change(name, value)
            case "read", ():
                self._read(action)
            case "register", (name, register, wish):
                access, level = level_of(wish)
                self.applications[name].operate(access, self.registers[register], level)
            case "when", (moment, nth, delay, what, *arguments):
                self.sim.moments.arm(action.number, moment, nth, delay, what, *arguments)
            case "imaged_burst", (count,):
                if self.producer.host.up:
                    self.producer.imaged_burst(action.number, count)
            case "images", (what, table):
                self.operator.images(changes(Chance(self.world.seed, f"images/{action.number}"), what, table))
            case "straggle", (delay,):
                self.job.straggle(delay)
            case "bury", (name, what):
                self.operator.bury(self.nodes[name].registration.id, what)
            case "fence", (away, closes):
                hosts = (WRITER, SECOND_HOST, EXECUTOR)
                self.operator.fence(lambda: self.faults.take_rights(hosts, away), self.job.again, closes=closes)
            case "call_off", ():
                self.operator.cancel()
            case "command", (kind, way):
                self.operator.command(action.number, kind, way)
            case what, arguments:
                self.faults.act(action.number, what, arguments)

    def _read(self, action: Action) -> None:
        """Read every key of the load's table from one node."""
        up = [node for name, node in sorted(self.nodes.items()) if node.lives and node.host.up]
        if up:
            self.world.tell("script", "reads")
            node = up[action.number % len(up)]
            self.producer.read_all(node)

    def close(self) -> None:
        """Let go of everything at the end. Thousands of objects know each other: without this they would wait for the
        garbage collector, which takes several times as long to find them, in memory that is long cold.
        """
        self.world.close()
        self.sim.close()
        vars(self).clear()

    # --------------------------------------------------------------------------------------------- digest

    def digest(self) -> str:
        """Everything that was written and every event, in one hex number."""
        summed = hashlib.sha256(f"{self.world.events}/{self.world.fingerprint}/{self.world.now}".encode())
        for name, partitions in sorted(self.sim.broker.topics.items()):
            for partition in partitions:
                summed.update(f"{name}/{partition.number}/{partition.end}".encode())
                for record in partition.records:
                    value = record.value if type(record.value) is bytes else repr(record.value).encode()
                    summed.update(f"{record.offset}/{record.key}/{len(value)}:".encode() + value)
        return summed.hexdigest()


def run_script(
    script: Script, tracing: bool = False, entries_min: int = ENTRIES_MIN, recording: bool = False
) -> Report:
    """Play a script to its end; never raises."""
    began = time.process_time()
    run = Run(script, tracing)
    rule, detail = "", ""
    try:
        run.play(entries_min)
    except Violation as violation:
        rule, detail = violation.rule, violation.detail
    except Exception as error:
        rule = "raised"
        where = traceback.extract_tb(error.__traceback__)[-1]
        detail = f"{type(error).__name__}: {error} ({where.name}, line {where.lineno})"
    story: tuple[str, ...] = tuple(run.world.story)
    report = Report(
        seed=script.seed,
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
    )
    run.close()
    return report

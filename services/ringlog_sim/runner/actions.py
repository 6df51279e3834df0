"""The actions of scripts: a table of their names and of the functions that perform them.

Many modules draw actions, each a name with arguments (``script``, ``scenarios``, ``images`` and others). A saved script
has them as text. Two modules once gave one name different meanings, so that a network fault never happened, and all
runs still passed. So a name has one entry in one table, and this module rejects tables that share a name when it is
imported. An unknown name is an error of the run. An action is counted after it was performed, and the test suite runs
seeds until each action was performed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.commands.control.pauses import PauseChanges, ResumeChanges
from ringlog.kernel.commands.placement.resizes import DecideResize
from ringlog.kernel.commands.schema.keyspaces import AlterKeyspace
from ringlog.kernel.model.modes import BALANCING, SPLITS
from ringlog.kernel.values import CdcOptions, Replication
from ringlog_sim.actors.cdc.images import EXECUTOR
from ringlog_sim.actors.cdc.job import SECOND_HOST
from ringlog_sim.actors.nodes.coordinator_path import level_of
from ringlog_sim.actors.nodes.kept_rows import retain
from ringlog_sim.actors.nodes.row_reads import operate as read_rows
from ringlog_sim.devices.broker import MUTATIONS
from ringlog_sim.devices.keys import ADMIN_NAME, OWN, WAYS, WRITER_NAME
from ringlog_sim.devices.world import Chance
from ringlog_sim.families.principals import (
    ASK,
    CHANGES,
    PEOPLE,
    RECODE,
    REPLAY,
    racing_change,
    racing_requests,
    wanted_command,
)
from ringlog_sim.families.zones import DRAWN, PLACING
from ringlog_sim.prefix import FIRST_PEOPLE, spread_commands
from ringlog_sim.runner import faults
from ringlog_sim.runner.script import Action
from ringlog_sim.shape import keyspace_in_racks
from ringlog_sim.stories import column_rename, truncation
from ringlog_sim.stories.images import changes
from ringlog_sim.stories.members import drawn_commands
from ringlog_sim.stories.moving_tablets import KEYSPACE as IN_TABLETS
from ringlog_sim.stories.moving_tablets import table_in_tablets
from ringlog_sim.stories.story import APPLICATIONS, WRITER
from ringlog_sim.stories.zones import (
    BURST,
    OUTAGE,
    PLACE,
    RETURN,
    ROWS_FAIL,
    STRIKE,
    VOTERS,
    node_with_failing_rows,
    outage,
    placed,
    returning,
    struck,
    voters_lost,
)
from ringlog_sim.stories.zones import KEYSPACE as IN_ZONE

if TYPE_CHECKING:
    from ringlog.wire.data import Key
    from ringlog_sim.actors.cdc.job import SimCdcJob
    from ringlog_sim.actors.cdc.producer import SimProducer
    from ringlog_sim.actors.nodes.coordinator_path import SimApplication
    from ringlog_sim.actors.nodes.node import SimNode
    from ringlog_sim.devices.world import SimWorld
    from ringlog_sim.operator import SimOperator
    from ringlog_sim.simulation import Simulation


class Acted(Protocol):
    """The parts of a run that actions use."""

    world: SimWorld
    sim: Simulation
    faults: faults.Faults
    operator: SimOperator
    producer: SimProducer
    job: SimCdcJob
    started: set[str]
    lost: set[str]
    nodes: dict[str, SimNode]
    applications: dict[str, SimApplication]
    registers: tuple[Key, ...]


Perform = Callable[..., None]
"""A function of the run, the action's number, and its arguments."""


def perform(run: Acted, action: Action) -> None:
    """Perform one action of the script.

    Raises ValueError for an unknown name, and TypeError for wrong arguments.
    """
    if action.what not in PERFORMED:
        raise ValueError(f"no actor performs {action.what} {action.arguments}")
    PERFORMED[action.what](run, action.number, *action.arguments)
    run.sim.did["action", action.what] += 1


def merged(*tables: Mapping[str, Perform]) -> Mapping[str, Perform]:
    """Return all entries of these tables. Raise ValueError for a name in two tables."""
    merged_actions: dict[str, Perform] = {}
    for table in tables:
        if twice := merged_actions.keys() & table.keys():
            raise ValueError(f"{', '.join(sorted(twice))}: two tables define this action")
        merged_actions.update(table)
    return merged_actions


def _from_the_beginning(_run: Acted, _number: int, *_: Any) -> None:
    """Do nothing. The run has read this action from the script before its start."""


# ------------------------------------------------------------------------------------ nodes and operators


def _start(run: Acted, _: int, name: str) -> None:
    if name not in run.started:
        run.started.add(name)
        if run.nodes[name].host.up:
            run.nodes[name].start()


def _replace(run: Acted, _: int, name: str, founder: str) -> None:
    run.nodes[name].replaces = run.nodes[founder]


def _lost(run: Acted, _: int, name: str) -> None:
    run.lost.add(name)
    run.world.crash(run.nodes[name].host, True)
    run.nodes[name].lose()


def _command(run: Acted, number: int, kind: str, way: str) -> None:
    run.operator.command(number, kind, way)


def _set(run: Acted, _: int, name: str, value: int) -> None:
    run.operator.change(name, value)


def _call_off(run: Acted, _: int) -> None:
    run.operator.cancel()


def _bury(run: Acted, _: int, name: str, what: str) -> None:
    run.operator.bury(run.nodes[name].registration.id, what)


def _fence(run: Acted, _: int, away: int, closes: bool) -> None:
    hosts = (WRITER, SECOND_HOST, EXECUTOR)
    run.operator.fence(lambda: run.faults.take_rights(hosts, away), run.job.again, closes=closes)


def _lower_settled(run: Acted, _: int) -> None:
    run.operator.lower_settled()


def _when(run: Acted, number: int, moment: str, nth: int, delay: int, what: str, *arguments: Any) -> None:
    run.sim.moments.arm(number, moment, nth, delay, what, *arguments)


# ------------------------------------------------------------------------------------- writes and reads


def _burst(run: Acted, _: int, count: int) -> None:
    if run.producer.host.up:
        run.producer.burst(count)


def _late_burst(run: Acted, _: int, count: int) -> None:
    if run.producer.host.up:
        run.producer.burst(count, late=True)


def _imaged_burst(run: Acted, number: int, count: int) -> None:
    if run.producer.host.up:
        run.producer.imaged_burst(number, count)


def _images(run: Acted, number: int, what: str, table: str) -> None:
    run.operator.images(changes(Chance(run.world.seed, f"images/{number}"), what, table))


def _in_racks(run: Acted, _: int, factor: int) -> None:
    run.operator.images([keyspace_in_racks(factor)])


def _read(run: Acted, number: int) -> None:
    """Read every key of the load's table from one node."""
    up = [node for name, node in sorted(run.nodes.items()) if node.starts and node.host.up]
    if up:
        run.world.tell("script", "reads")
        run.producer.read_all(up[number % len(up)])


def _read_rows(run: Acted, _: int, application: int, key: int, way: str) -> None:
    """Read a written key through an application."""
    read_rows(run.applications[APPLICATIONS[application]], key, way)


def _register(run: Acted, _: int, name: str, register: int, wish: str) -> None:
    access, level = level_of(wish)
    run.applications[name].operate(access, run.registers[register], level)


def _add_partition(run: Acted, _: int) -> None:
    """Add a partition to the mutations topic."""
    run.sim.broker.add_partition(MUTATIONS)


def _straggle(run: Acted, _: int, delay: int) -> None:
    run.job.straggle(delay)


def _retention(run: Acted, _: int) -> None:
    retain(run.sim)


# ------------------------------------------------------------------------------------- tablets and zones


def _spread(run: Acted, _: int, factor: int, count: int) -> None:
    run.operator.insist(spread_commands(factor, count, Chance(run.world.seed, "spread")))


def _tablets(run: Acted, number: int, factor: int, count: int) -> None:
    _make_tablets(run, number, factor, count, logged=False)


def _logged_tablets(run: Acted, number: int, factor: int, count: int) -> None:
    _make_tablets(run, number, factor, count, logged=True)


def _make_tablets(run: Acted, number: int, factor: int, count: int, *, logged: bool) -> None:
    chance = Chance(run.world.seed, f"tablets/{number}")
    run.operator.images(table_in_tablets(chance, factor, count, CdcOptions(enabled=logged)))


def _tablet_burst(run: Acted, number: int, count: int) -> None:
    if run.producer.host.up:
        run.producer.tablet_burst(number, count)


def _resize(run: Acted, _: int, decision: str, sequence: int) -> None:
    """Decide a resize of the table in tablets."""
    run.operator.images([DecideResize(f"{IN_TABLETS}.t", decision, sequence)])


def _hold(run: Acted, _: int, of: str) -> None:
    """Pause the balancer."""
    run.operator.images([PauseChanges((BALANCING, SPLITS), of, "upgrade")])


def _let_go(run: Acted, _: int, of: str) -> None:
    """Resume the balancer."""
    run.operator.images([ResumeChanges((BALANCING, SPLITS), of)])


def _factor(run: Acted, _: int, keyspace: str, factor: int) -> None:
    """Change the number of replicas of a keyspace."""
    run.operator.images([AlterKeyspace(keyspace, Replication("tablets", factor))])


def _zone(run: Acted, number: int, kind: str) -> None:
    """Perform an action on zones, drawn for their current state."""
    chance = Chance(run.world.seed, f"zones/{number}/{run.world.now}")
    if kind == PLACE:
        run.operator.images(placed(run.sim.log.state, chance))
    elif kind == OUTAGE:
        run.operator.images(outage(run.sim.log.state, chance))
    elif kind == VOTERS:
        run.operator.images(voters_lost(run.sim.log.state, chance))
    elif kind == STRIKE:
        run.operator.images(struck(run.sim.log.state, chance))
    elif kind == RETURN:
        run.operator.images(returning(run.sim.log.state))
    elif kind == BURST:
        if run.producer.host.up:
            run.producer.tablet_burst(number, 2, IN_ZONE)
    elif kind == ROWS_FAIL:
        if node := node_with_failing_rows(run.sim.log.state, chance):
            run.sim.shared["nodes"][node].fail_rows()
    elif (command := {**DRAWN, **PLACING}[kind](run.sim.log.state, chance)) is not None:
        run.operator.images([command])


def _service(run: Acted, number: int, kind: str) -> None:
    """Perform an action on members of the metadata service, drawn for their current state."""
    state = run.sim.log.state
    if commands := drawn_commands(kind, state, Chance(run.world.seed, f"members/{number}/{run.world.now}")):
        run.operator.images(commands)


def _principal(run: Acted, number: int, kind: str) -> None:
    """Perform an action on principals, or a request of one, drawn for their current state."""
    state, chance = run.sim.log.state, Chance(run.world.seed, f"principal/{number}")
    name = chance.pick([*PEOPLE, *FIRST_PEOPLE, WRITER_NAME, "n1"])
    if kind in CHANGES:
        run.operator.send_as(ADMIN_NAME, OWN, [CHANGES[kind][1](state, chance)])
    elif kind == ASK:
        way = OWN if chance.happens(0.5) else chance.pick(WAYS)
        run.operator.send_as(name, way, [wanted_command(state, chance, name)])
    elif kind == RECODE:
        run.operator.exchange_code(chance, Noop())
    elif kind == REPLAY:
        run.operator.replay(chance)
    elif (known := state.principals.get(name)) is not None:
        # In one record, so that the validator decides them in one batch.
        run.operator.send_as(ADMIN_NAME, OWN, [racing_change(known, chance)])
        run.operator.send_as(name, OWN, racing_requests(chance))


# -------------------------------------------------------------------------------------- what others know


def _columns(what: str) -> Perform:
    return lambda run, number, *arguments: column_rename.perform_fault(
        run.sim, run.operator, run.producer, number, what, arguments
    )


def _log_end(what: str) -> Perform:
    return lambda run, number, *arguments: truncation.perform_fault(run.sim, run.operator, number, what, arguments)


def _fault(what: str) -> Perform:
    return lambda run, number, *arguments: run.faults.act(number, what, arguments)


PERFORMED: Mapping[str, Perform] = merged(
    {
        "with_role": _from_the_beginning,
        "keep_rows": _from_the_beginning,
        "ask_peers": _from_the_beginning,
        "keep_log": _from_the_beginning,
        "start": _start,
        "replace": _replace,
        "lost": _lost,
        "command": _command,
        "set": _set,
        "call_off": _call_off,
        "bury": _bury,
        "fence": _fence,
        "lower_settled": _lower_settled,
        "when": _when,
    },
    {
        "burst": _burst,
        "late_burst": _late_burst,
        "imaged_burst": _imaged_burst,
        "images": _images,
        "in_racks": _in_racks,
        "read": _read,
        "read_rows": _read_rows,
        "register": _register,
        "add_partition": _add_partition,
        "straggle": _straggle,
        "retention": _retention,
    },
    {
        "spread": _spread,
        "tablets": _tablets,
        "logged_tablets": _logged_tablets,
        "tablet_burst": _tablet_burst,
        "resize": _resize,
        "hold": _hold,
        "let_go": _let_go,
        "factor": _factor,
        "zone": _zone,
        "service": _service,
        "principal": _principal,
    },
    {what: _columns(what) for what in column_rename.ACTIONS},
    {what: _log_end(what) for what in truncation.ACTIONS},
    {what: _fault(what) for what in faults.FAULT_ACTIONS},
)
"""Every action of a script."""

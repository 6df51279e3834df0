"""The initial logs of runs: a cluster that was created and grew before the run, made once for each shape.

The production fold decides the entries, and the production coordinator advances operations. Every node acknowledges at
once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Final

from ringlog import FEATURES
from ringlog.kernel.changes import diff
from ringlog.kernel.commands.cluster.cluster import ChangeSettings, InitializeCluster, Noop
from ringlog.kernel.commands.control.principals import CreatePrincipal
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.schema.tables import CreateTable
from ringlog.kernel.commands.topology.movements import Join
from ringlog.kernel.commands.topology.nodes import RegisterNode
from ringlog.kernel.fold import fold
from ringlog.kernel.model.outcome import Entry, Outcome, OutcomeKind, UnreadableEntry
from ringlog.kernel.model.principals import ADMIN, APPLICATION, NODE, OPERATOR
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState
from ringlog.kernel.operations.stages import in_flight
from ringlog.kernel.values import (
    CdcOptions,
    Command,
    DatacenterReplication,
    Micros,
    Replication,
    StreamReport,
    TabletOptions,
    Value,
    replace,
)
from ringlog.log.folding import follow
from ringlog.log.port import LogRecord
from ringlog.protocol.coordinator.core import CoordinatorView, propose
from ringlog.runtime.draw import draw_uuid
from ringlog.wire.changes import encode_change_record
from ringlog.wire.entries import author_entry
from ringlog.wire.ids import ENTROPY_BYTES, new_request_id, new_state_id
from ringlog.wire.records import NodeAck
from ringlog_sim.devices.keys import ADMIN_NAME, THIEF, WRITER_NAME
from ringlog_sim.devices.world import EPOCH_START, SECOND, Chance
from ringlog_sim.shape import COLUMNS, ClusterShape

LEAD: Micros = 2 * SECOND
OLD_ENTRIES = 90
NEWCOMERS_MAX = 2
"""The most nodes that join a cluster with principals during the run."""
FIRST_PEOPLE: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    THIEF: (APPLICATION, ()),
    "p1": (OPERATOR, ()),
    "p2": (OPERATOR, ("ks",)),
    "p3": (ADMIN, ()),
    "p4": (NODE, ()),
}
"""People that are older than the run: role and keyspaces."""


def cluster_id_of(shape: ClusterShape) -> str:
    """Return the cluster's id, which is the same for all runs of a shape."""
    return draw_uuid(Chance(0, f"cluster/{replace(shape, joining=0)}"))


def registration(shape: ClusterShape, number: int) -> RegisterNode:
    """Return the registration of node ``n<number>`` of a shape."""
    chance = Chance(0, f"node/{shape.tokens}/{number}")
    return RegisterNode(
        name=f"n{number}",
        id=draw_uuid(chance),
        address=f"n{number}:7000",
        datacenter=f"dc{(number - 1) % shape.datacenters + 1}",
        rack=shape.rack_of(number),
        shards=1 + number % 3,
        ignore_msb=12,
        release="0.1.0",
        features=FEATURES,
        capacity=1,
    )


HISTORY_SHORT = 1_000
LOGGED = CdcOptions(enabled=True)


def tokens_of(shape: ClusterShape, number: int) -> tuple[int, ...]:
    """Return the tokens of node ``n<number>``."""
    chance = Chance(0, f"tokens/{number}")
    return tuple(sorted(chance.between(-(2**63) + 1, 2**63 - 1) for _ in range(shape.tokens)))


def settings_of(shape: ClusterShape) -> tuple[tuple[str, int], ...]:
    """Return the initial settings."""
    return (
        ("cdc_generation_lead_us", LEAD),
        ("cdc_horizon_lead_us", SECOND),
        ("cdc_leeway_us", SECOND),
        ("history_entries", shape.history),
    )


def schema_commands(factor: int, draw: Chance, datacenters: int = 1, cdc: CdcOptions = LOGGED) -> tuple[Command, ...]:
    """Return the commands that create the load's keyspace and table. ``factor`` is the total over all datacenters."""
    replication = Replication("simple", factor)
    if factor >= datacenters > 1:
        share = [(f"dc{number + 1}", len(range(number, factor, datacenters))) for number in range(datacenters)]
        replication = Replication("network", factor, tuple(DatacenterReplication(*one) for one in share))
    return (
        CreateKeyspace("ks", replication),
        CreateTable("ks", "t", draw_uuid(draw), COLUMNS, ("k",), ("c",), cdc),
    )


def spread_commands(factor: int, count: int, draw: Chance) -> tuple[Command, ...]:
    """Return the commands that create a table with ``count`` tablets for the balancer, which needs one on
    each shard.
    """
    options = TabletOptions(count)
    return (
        ChangeSettings((("balance_tablets_per_shard_min", 1),)),
        CreateKeyspace("spread", Replication("tablets", factor)),
        CreateTable("spread", "t", draw_uuid(draw), COLUMNS, ("k",), ("c",), CdcOptions(), tablets=options),
    )


def first_principals(nodes: int) -> list[Command]:
    """Return the commands that create the principals before the run: an admin, nodes, the CDC writer, people."""
    processes: list[Command] = [CreatePrincipal(f"n{number}", NODE) for number in range(1, nodes + 1)]
    people = [CreatePrincipal(name, *grant) for name, grant in FIRST_PEOPLE.items()]
    return [CreatePrincipal(ADMIN_NAME, ADMIN), *processes, CreatePrincipal(WRITER_NAME, NODE), *people]


class Prefix(Value):
    """A log before the run: its records, their decoded items, and the states that they make, starting with the empty
    one.

    ``changes``: the records of the change topics up to there, as the simulated change publisher writes them.
    """

    records: tuple[bytes, ...]
    items: tuple[Entry | UnreadableEntry, ...]
    states: tuple[ClusterState, ...]
    changes: tuple[tuple[str, object], ...]


def prefix_of(shape: ClusterShape) -> Prefix:
    """Return the log of a shape before the run. It does not depend on the number of joining nodes."""
    return _prefix_of(replace(shape, joining=0))


around: Callable[[], AbstractContextManager[None]] = nullcontext
"""A context for creating a prefix. It removes planted bugs, because the log is older than they are."""


@lru_cache(maxsize=512)
def _prefix_of(shape: ClusterShape) -> Prefix:
    with around():
        return _made(shape)


def _made(shape: ClusterShape) -> Prefix:
    records = _Prefix(shape).records() if shape.founded else ()
    made = list(follow(LogRecord(offset, data) for offset, data in enumerate(records)))
    changes = chain.from_iterable(change_values(one.before, one.after) for one in made)
    states = (EMPTY_STATE, *(one.after for one in made))
    return Prefix(records, tuple(one.item for one in made), states, tuple(changes))


def change_values(before: ClusterState, after: ClusterState) -> list[tuple[str, object]]:
    """Return the records of the simulated change topics for one epoch: (topic, (key, value)), for ``epochs`` only the
    value.
    """
    values: list[tuple[str, object]] = []
    for record in diff(before, after):
        suffix, key, value = encode_change_record(record)
        values.append((suffix, value if suffix == "epochs" else (key, value)))
    return values


@dataclass(slots=True)
class _Author:
    chance: Chance
    state: ClusterState
    records: list[bytes]
    now: Micros
    cluster_id: str


class _Prefix:
    def __init__(self, shape: ClusterShape) -> None:
        self.shape = shape
        start = EPOCH_START - 3600 * SECOND
        self.author = _Author(Chance(0, f"prefix/{shape}"), EMPTY_STATE, [], start, cluster_id_of(shape))

    def records(self) -> tuple[bytes, ...]:
        shape = self.shape
        self.apply(InitializeCluster("simulated", settings_of(shape)))
        for command in first_principals(shape.founded + NEWCOMERS_MAX) if shape.guarded else ():
            self.apply(command)
        for number in range(1, shape.founded + 1):
            own_registration = registration(shape, number)
            self.apply(own_registration)
            self.apply(Join(own_registration.id, tokens_of(shape, number), self.author.chance.take(16)))
            self.finish()
            if number == min(shape.factor, shape.founded):
                network = shape.datacenters if shape.factor != 3 else 1
                # A run with a short history also has a short TTL, so that generations expire in the run.
                cdc = CdcOptions(enabled=True, ttl=1) if shape.history < HISTORY_SHORT else LOGGED
                for command in schema_commands(number, self.author.chance, network, cdc):
                    self.apply(command)
        for _ in range(OLD_ENTRIES if shape.old else 0):
            self.apply(Noop())
        return tuple(self.author.records)

    def finish(self) -> None:
        """Run the coordinator until it has no more proposals."""
        while True:
            author = self.author
            author.now += 5 * SECOND
            view = CoordinatorView(
                author.state, _all_acknowledge(author.state, author.now), author.state.epoch, author.now
            )
            proposals = propose(view)
            if not proposals:
                return
            self.apply(proposals[0].command)

    def apply(self, command: Command) -> Outcome:
        author = self.author
        author.now += SECOND
        encoded = author_entry(
            cluster_id=author.cluster_id,
            state_id=new_state_id(author.state.state_id or None, author.now, author.chance.take(ENTROPY_BYTES)),
            prev_state_id=author.state.state_id or None,
            request_id=new_request_id(author.now, author.chance.take(ENTROPY_BYTES)),
            since_epoch=author.state.epoch,
            submitter="before",
            at=author.now,
            command=command,
        )
        folded = fold(author.state, encoded.entry)
        assert folded.outcome.kind is OutcomeKind.APPLIED, f"{command}: {folded.outcome}"
        author.state = folded.state
        author.records.append(encoded.data)
        return folded.outcome


def _all_acknowledge(state: ClusterState, at: Micros) -> dict[str, NodeAck]:
    streaming = in_flight(state)
    return {
        node: NodeAck(
            state.cluster_id,
            node,
            "before",
            state.epoch,
            state.epoch,
            tuple(StreamReport(node, operation.id, 0, "00") for operation in streaming if operation.node == node),
            0,
            at,
            state_id=state.state_id,
        )
        for node in state.nodes
    }

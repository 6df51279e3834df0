"""Registers on real nodes under load during each kind of range movement.

In each stage a node is killed and restarted, and a node is stopped during a barrier. No acknowledged write is lost, and
one order explains all answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ringlog.kernel.commands.schema.keyspaces import AlterKeyspace, CreateKeyspace
from ringlog.kernel.commands.topology.movements import Leave, Move, Rebuild, Remove, Replace
from ringlog.kernel.commands.topology.nodes import DeclareDown
from ringlog.kernel.operations.stages import (
    COMMIT_CDC_GENERATION,
    PREPARED,
    PUBLISH_CDC_GENERATION,
    REQUESTED,
    STREAMING,
    WRITE_BOTH_READ_NEW,
    WRITE_BOTH_READ_OLD,
)
from ringlog.kernel.values import DatacenterReplication, Replication
from tests.system.agents_world import AgentsWorld, until
from tests.system.nodes_world import opened
from tests.system.registers_cluster import OPERATIONS_BETWEEN, Harm, RegistersCluster
from tests.system.registers_load import KEYSPACE, Load

from .broker import Broker

pytestmark = [pytest.mark.slow]

OPERATIONS = 60
FILLING = 2_000
SEED = bytes(range(16))
NAMES = ("n1", "n2", "n3", "n4", "n5")


def network(**factors: int) -> Replication:
    local = tuple(DatacenterReplication(name, factor) for name, factor in sorted(factors.items()))
    return Replication("network", sum(factors.values()), local)


class Cluster(RegistersCluster):
    """Five nodes and a load; ``hit`` counts the kills and stops by kind of movement and stage."""

    def __init__(self, agents: AgentsWorld, folder: Path) -> None:
        super().__init__(agents, folder)
        self.hit: Counter[tuple[str, str]] = Counter()

    def found(self) -> None:
        self.begin_all(*NAMES)
        self.submit(CreateKeyspace(KEYSPACE, network(dc1=3)))
        self.fill(FILLING)

    def go(
        self, kind: str, load: Load, begin: Callable[[], object], *harms: Harm, between: int = OPERATIONS_BETWEEN
    ) -> None:
        """Start a movement. If a node is to be hit during the publication of its CDC generation, stop the publisher
        until then.
        """
        is_armed = any(harm.stage == PUBLISH_CDC_GENERATION for harm in harms)
        if is_armed:
            self.agents.running("publisher").stop()

        def publish(stage: str) -> None:
            if stage == PUBLISH_CDC_GENERATION:
                self.agents.start("publisher")

        for harm in self.movement(load, begin, *harms, afterwards=publish, between=between):
            self.hit[kind, f"{harm.stage}, asleep" if harm.stops else harm.stage] += 1

    def kill_for_good(self, name: str) -> str:
        """Kill a node permanently, declare it down, and return its id."""
        dead = self.id_of(name)
        self.nodes.pop(name).kill()
        self.submit(DeclareDown(dead, "killed for good"))
        return dead

    def port_of(self, name: str) -> int:
        member = self.member(name)
        assert member is not None
        return int(member.address.rpartition(":")[2])

    def moved(self, name: str, by: int) -> Move:
        """Return the node's tokens, each slightly further around the ring."""
        member = self.member(name)
        assert member is not None
        return Move(member.id, tuple(sorted((token + by + 2**63) % 2**64 - 2**63 for token in member.tokens)), SEED)

    def has_hit(self, kind: str, *stages: str) -> None:
        missed = [stage for stage in stages if not self.hit[kind, stage]]
        assert not missed, f"{kind}: no node was hit at {missed}"


@pytest.fixture
def cluster(broker: Broker, tmp_path: Path) -> Iterator[Cluster]:
    with opened(Cluster, broker.info, tmp_path) as made:
        yield made


def killed(victim: str, *stages: str) -> tuple[Harm, ...]:
    return tuple(Harm(stage, victim) for stage in stages)


def stopped(victim: str, stage: str) -> Harm:
    return Harm(stage, victim, stops=True)


SWAP = (REQUESTED, PREPARED, WRITE_BOTH_READ_OLD, WRITE_BOTH_READ_NEW)
RING = (REQUESTED, PREPARED, COMMIT_CDC_GENERATION, PUBLISH_CDC_GENERATION, WRITE_BOTH_READ_OLD, WRITE_BOTH_READ_NEW)
SLEPT = f"{WRITE_BOTH_READ_NEW}, asleep"


def test_joins_moves_and_departures(cluster: Cluster) -> None:
    cluster.found()
    first = killed("n6", PREPARED, PUBLISH_CDC_GENERATION, WRITE_BOTH_READ_OLD, WRITE_BOTH_READ_NEW)
    with Load(cluster.agents.stack, cluster.agents.cluster, cluster.folder) as load:
        until(lambda: load.total() > OPERATIONS, "the load to begin")
        cluster.go("join", load, lambda: cluster.begin("n6"), *first)
        second = (*killed("n7", REQUESTED, COMMIT_CDC_GENERATION), stopped("n1", WRITE_BOTH_READ_NEW))
        cluster.go("join", load, lambda: cluster.begin("n7"), *second)

        there = killed("n1", PREPARED, PUBLISH_CDC_GENERATION, WRITE_BOTH_READ_OLD, WRITE_BOTH_READ_NEW)
        cluster.go("move", load, lambda: cluster.submit(cluster.moved("n1", 2**58)), *there)
        back = (*killed("n1", REQUESTED, COMMIT_CDC_GENERATION), stopped("n2", WRITE_BOTH_READ_NEW))
        for by in (-(2**58), 2**58, -(2**58)):
            cluster.go("move", load, lambda by=by: cluster.submit(cluster.moved("n1", by)), *back)
            if cluster.hit["move", COMMIT_CDC_GENERATION]:
                break  # that stage lasts only one commit, so one kill may be too late

        for name, harms in (
            ("n6", killed("n6", PREPARED, WRITE_BOTH_READ_NEW)),
            ("n7", (*killed("n7", WRITE_BOTH_READ_OLD), stopped("n1", WRITE_BOTH_READ_NEW))),
            ("n5", killed("n5", REQUESTED)),
        ):
            cluster.go("leave", load, lambda name=name: cluster.submit(Leave(cluster.id_of(name))), *harms)
        cluster.go("rebuild", load, lambda: cluster.submit(Rebuild(cluster.id_of("n2"))), *killed("n2", STREAMING))
        cluster.conclude(load, FILLING, OPERATIONS)
    cluster.has_hit("join", *(stage for stage in RING if stage != COMMIT_CDC_GENERATION), SLEPT)
    cluster.has_hit("move", *RING, SLEPT)
    cluster.has_hit("leave", *SWAP, SLEPT)
    cluster.has_hit("rebuild", STREAMING)


def test_alterations_replacements_and_removals(cluster: Cluster) -> None:
    cluster.found()
    cluster.begin("d1", datacenter="dc2")
    cluster.await_normal("d1")

    def alter(**factors: int) -> Callable[[], None]:
        return lambda: cluster.submit(AlterKeyspace(KEYSPACE, network(**factors)))

    with Load(cluster.agents.stack, cluster.agents.cluster, cluster.folder) as load:
        until(lambda: load.total() > OPERATIONS, "the load to begin")
        cluster.go("alter", load, alter(dc1=4), *killed("n1", PREPARED, WRITE_BOTH_READ_OLD, WRITE_BOTH_READ_NEW))
        cluster.go("alter", load, alter(dc1=3), *killed("n1", REQUESTED))
        abroad = (*killed("d1", WRITE_BOTH_READ_OLD), stopped("n1", WRITE_BOTH_READ_NEW))
        cluster.go("alter", load, alter(dc1=3, dc2=1), *abroad)
        cluster.go("alter", load, alter(dc1=3), *killed("n2", PREPARED))

        new, dead = cluster.registered("n6"), cluster.kill_for_good("n2")
        harms = killed("n6", PREPARED, WRITE_BOTH_READ_OLD, WRITE_BOTH_READ_NEW)
        cluster.go("replace", load, lambda: cluster.submit(Replace(new, dead)), *harms)
        port, dead = cluster.port_of("n3"), cluster.kill_for_good("n3")
        new = cluster.registered("n7", port=port)
        harms = (*killed("n7", REQUESTED), *killed("n1", WRITE_BOTH_READ_NEW))
        cluster.go("replace at its address", load, lambda: cluster.submit(Replace(new, dead)), *harms)

        dead = cluster.kill_for_good("n4")
        harms = killed("n5", PREPARED, WRITE_BOTH_READ_OLD, WRITE_BOTH_READ_NEW)
        cluster.go("remove", load, lambda: cluster.submit(Remove(dead)), *harms)
        dead = cluster.kill_for_good("n5")
        # Two of the four remaining nodes are down: half of the registers have no quorum, and their requests time out.
        cluster.go("remove", load, lambda: cluster.submit(Remove(dead)), *killed("n1", REQUESTED), between=1)
        cluster.conclude(load, FILLING, OPERATIONS)
    cluster.has_hit("alter", *SWAP, SLEPT)
    cluster.has_hit("replace", *SWAP[1:])
    cluster.has_hit("replace at its address", REQUESTED, WRITE_BOTH_READ_NEW)
    cluster.has_hit("remove", *SWAP)

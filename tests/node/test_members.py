"""Members of groups: what every adapter of the port ``GroupReplicas`` promises, and what a node says by it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ringlog.kernel.commands.zones import AlterZone
from ringlog.kernel.state import ClusterState
from ringlog.kernel.values import StreamReport
from ringlog.node.holder import Holder
from ringlog.node.protocol import acks, groups
from ringlog.node.protocol.groups import GroupReplicas, Member, NoRows
from ringlog.node.tries import Tries
from ringlog.protocol.zone_groups import FAILED, HAS, RETURNED, session
from ringlog.sim.actors.replicas import SimReplicas
from ringlog.sim.simulation import Simulation
from ringlog.sim.world import SECOND, Signal, SimWorld, Work
from tests.kernel.zones.scenes import cancel, done, ids, partition, trigger, with_zone


def begun(partitions: int = 1) -> ClusterState:
    """Each partition has one replica, and is to have three."""
    state = done(with_zone("ABC", replicas=1, partitions=partitions), AlterZone("z", replicas=3))
    return done(state, trigger(state))


Made = tuple[GroupReplicas, Callable[[], bool]]


@pytest.fixture(params=["no rows", "simulated"])
def made(request: pytest.FixtureRequest) -> Made:
    """An adapter, and what lets time pass: true if it has woken the one who waits."""
    if request.param == "no rows":
        return NoRows(), lambda: True
    world, ready = SimWorld(7), Signal()
    sim = Simulation(world, "c", ())
    sim.shared["replicas"] = set()
    host, woken = world.host("n1"), list[bool]()
    world.boot(host)
    world.spawn(host, "waits", waits(ready, woken))

    def passes() -> bool:
        world.run(world.now + 3 * SECOND)
        return bool(woken)

    return SimReplicas(sim, host, ids("A")[0], ready), passes


def waits(ready: Signal, woken: list[bool]) -> Work:
    woken.append((yield ready))


def test_a_replica_that_is_asked_for_runs_in_the_end_and_says_so(made: Made) -> None:
    replicas, passes = made
    one = partition(begun())
    at_once = replicas.runs(one)
    assert passes()
    assert replicas.runs(one)
    assert at_once or isinstance(replicas, SimReplicas)


def test_the_length_of_a_log_is_no_less_than_0_and_does_not_change_by_itself(made: Made) -> None:
    replicas, passes = made
    length = replicas.log(partition(begun()))
    passes()
    assert replicas.log(partition(begun())) == length >= 0


def test_who_comes_says_so_when_its_replica_runs_and_the_others_at_once(made: Made) -> None:
    replicas, passes = made
    state = begun()
    one = partition(state)
    assert one.stable is not None
    comes = next(node for node in ids("ABC") if node not in one.stable.nodes)
    there, newcomer = Member(one.stable.nodes[0], replicas), Member(comes, replicas)
    assert len(there.words(state, state.epoch)) == 1
    assert len(newcomer.words(state, state.epoch)) == int(isinstance(replicas, NoRows))
    passes()
    (word,) = newcomer.words(state, state.epoch)
    assert word.operation == session(one, HAS)


def test_a_replica_that_fails_does_not_run_and_says_so(monkeypatch: pytest.MonkeyPatch, made: Made) -> None:
    """Where there is no way back, none fails."""
    monkeypatch.setattr("ringlog.sim.actors.replicas.FAILS", 1.0)
    adapter, passes = made
    state = begun()
    one = partition(state)
    comes = next(node for node in ids("ABC") if one.stable is not None and node not in one.stable.nodes)
    Member(comes, adapter).words(state, state.epoch)
    assert passes()
    (word,) = Member(comes, adapter).words(state, state.epoch)
    assert word.operation == session(one, FAILED if isinstance(adapter, SimReplicas) else HAS)
    forced = replace(one, pending=(replace(one.pending[0], forced=True),), revisions=replace(one.revisions, pending=99))
    adapter.runs(forced)
    passes()
    assert (adapter.runs(forced), adapter.fails(forced)) == (True, False)


def test_who_has_seen_the_cancel_has_returned_and_strangers_say_nothing() -> None:
    state = done(begun(), cancel(begun()))
    for node in ids("ABC"):
        (word,) = Member(node, NoRows()).words(state, state.epoch)
        assert word.operation == session(partition(state), RETURNED)
    assert Member(ids("D")[0], NoRows()).words(state, state.epoch) == ()


def test_an_acknowledgement_has_no_more_words_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "WORDS_MAX", 3)
    state = begun(5)
    found = Member(ids("A")[0], NoRows()).words(state, state.epoch)
    assert [word.operation for word in found] == [session(partition(state, number), HAS) for number in range(3)]


class Here:
    """Registers that hold up nothing."""

    def acknowledgeable(self) -> int:
        return 10**9

    def received(self, operation: str) -> bool:
        return bool(operation)


def test_an_acknowledgement_with_rows_that_came_has_no_more_reports_than_it_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is left out follows: rows that came are told first, words of partitions fill what is left."""
    monkeypatch.setattr(acks, "WORDS_MAX", 4)
    state, (node,) = begun(5), ids("A")
    holder = Holder(node)
    holder.adopt(state)
    holder.caught_up = True
    for count in (2, 6):
        holder.reports = {f"ks.t/{one}@9": StreamReport(node, f"ks.t/{one}@9", 1, "ab") for one in range(count)}
        steps = acks.acknowledge(holder, Here(), Tries(), "1", NoRows())
        assert isinstance(next(steps), acks.News)
        effect: object = next(steps)
        while not isinstance(effect, acks.PublishAcknowledgement):
            effect = steps.send(0)
        told = [one.operation for one in effect.ack.reports]
        words = [session(partition(state, number), HAS) for number in range(4 - min(count, 4))]
        assert told == sorted(holder.reports)[:4] + words

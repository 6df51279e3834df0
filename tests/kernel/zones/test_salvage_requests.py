"""Requests during a partition recovery: the survivor has each acknowledged write before it alone is read."""

from __future__ import annotations

from ringlog.client.data.plans import (
    Access,
    Answer,
    AwaitedAnswers,
    Level,
    Outcome,
    RequestPlan,
    Satisfied,
    count,
    plan,
    request_of,
)
from ringlog.kernel.commands.topology.nodes import DeclareUp
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Witness
from ringlog.node.registers import registers
from ringlog.node.registers.registers import Behind, RegisterReplica
from ringlog.operator.rehearsal.rehearsal import acknowledgements
from ringlog.operator.views.waiting import tablet_waiting
from ringlog.protocol.coordinator.tablet_steps import tablet_steps
from ringlog.wire.data import RegisterCell, key_of
from tests.kernel.zones.states import done, down, ids, partition, reset, shown, tried
from tests.kernel.zones.zone_keyspaces import TABLE, alive, of_coordinator, stage, with_data

KEY = key_of(TABLE, b"k")
CELL = RegisterCell(10, b"v")


class Replicas:
    """The registers of the live nodes, each at its own epoch."""

    def __init__(self, state: ClusterState) -> None:
        self.each = {node: registers.adopt(RegisterReplica(node), state)[0] for node in alive(state)}

    def adopt(self, state: ClusterState, *nodes: str) -> None:
        for node in nodes or tuple(self.each):
            self.each[node] = registers.adopt(self.each[node], state)[0]

    def fetch(self, node: str) -> None:
        """Fetch all keys that the node waits for."""
        for one in self.each[node].fetching:
            found = registers.snapshot(self.each[one.source], one)
            assert not isinstance(found, str | Behind), found
            cells = {KEY: self.each[one.source].durable.cells.get(KEY)} if KEY in found else {}
            after = registers.receive(self.each[node], one, {k: cell for k, cell in cells.items() if cell is not None})
            assert after is not None
            self.each[node] = after

    def write(self, made: RequestPlan, *nodes: str) -> list[Answer]:
        answers = []
        for node in nodes:
            after, verdict = registers.admit_write(self.each[node], 1, KEY, CELL, made.mattered)
            assert verdict is None, verdict
            self.each[node], (reply,) = registers.apply(after, 1)
            answers.append(Answer(node, reply.epoch))
        return answers

    def has(self, node: str) -> bool:
        return self.each[node].durable.cells.get(KEY) == CELL


def planned(state: ClusterState, access: Access = Access.WRITE) -> RequestPlan:
    made = plan(state, request_of(KEY, access, Level.QUORUM, "dc1"))
    assert isinstance(made, RequestPlan), made
    return made


def on(state: ClusterState, silent: tuple[str, ...] = ()) -> ClusterState:
    """Return the state after the coordinator's next command."""
    for command in of_coordinator(state, silent):
        state, code = tried(state, command)
        assert code == ""
    return state


def salvaging(nodes: str = "ABCDEFG") -> tuple[ClusterState, ClusterState, str, list[str]]:
    """Return the states before and after the reset, the survivor, and the other live nodes, which are a majority."""
    state = with_data(nodes, partitions=1, replicas=len(nodes), quorum=2)
    voters, _ = shown(partition(state).stable).split("/")
    before = done(state, *down(voters[:2]))
    state = done(before, reset(before, dict.fromkeys(set(nodes) - set(voters[:2]), 1)))
    (survivor,) = state.zone_partitions["z/0"].pending[0].peers
    return before, state, survivor, [node for node in alive(state) if node != survivor]


def test_a_majority_needs_the_fetching_survivor() -> None:
    """Two of three voters of seven replicas are lost, and a majority of the data remains.

    A write that the survivor lacks fails, even with a majority of the others. With the survivor it succeeds.
    """
    _, state, survivor, others = salvaging()
    replicas = Replicas(state)
    made = planned(state)
    assert [(len(need.members), need.count) for need in made.needs] == [(7, 4), (1, 1)], "it counts in both groups"
    replicas.fetch(survivor)
    answers = replicas.write(made, *others)
    assert count(made, answers, state) == AwaitedAnswers(tuple(sorted(set(ids("ABCDEFG")) - set(others))), state.epoch)
    outcome: Outcome = count(made, [*answers, *replicas.write(made, survivor)], state)
    assert isinstance(outcome, Satisfied)
    state = on(on(state))
    replicas.adopt(state)
    assert planned(state, Access.READ).asked == (survivor,)
    assert replicas.has(survivor)


def test_a_new_survivor_gets_all_writes_after_the_reset() -> None:
    """No live node has the tablet. The survivor starts empty and gets all later writes."""
    state = done(with_data("ABC", "DE", partitions=1, replicas=3), *down("ABC"))
    state = done(state, reset(state, {"D": 1}, admits_loss=True))
    tablet = state.tablets[TABLE].tablet(0)
    assert tablet.transition is not None
    assert [(one.node, one.since) for one in tablet.transition.next] == [(ids("D")[0], state.epoch)]
    assert tablet.transition.changed == state.epoch
    assert [len(need.members) for need in planned(state).needs] == [3, 1]


def test_an_earlier_acknowledged_write_is_fetched() -> None:
    """The quorum is four of seven. Each of the five live nodes has adopted the reset before it is read."""
    before, state, survivor, others = salvaging()
    made = planned(before)
    replicas = Replicas(before)
    done_before = replicas.write(made, *others)
    assert isinstance(count(made, done_before, before), Satisfied)
    replicas.adopt(state)
    replicas.fetch(survivor)
    assert replicas.has(survivor)
    replicas = Replicas(before)
    first = replicas.write(made, *others[:2])
    replicas.adopt(state)
    replicas.fetch(survivor)
    late = replicas.write(made, *others[2:])
    assert count(made, [*first, *late], before) == AwaitedAnswers(
        tuple(sorted(set(ids("ABCDEFG")) - set(others))), state.epoch
    ), "a node without the reset learns of it from a node that was read"
    assert not isinstance(count(made, [*first, *late], state), Satisfied)


def test_writes_use_only_the_survivor_after_all_acknowledge() -> None:
    """Otherwise a majority of the others, which know only the reset, could miss such a write."""
    _, state, survivor, others = salvaging()
    state = on(state)
    assert stage(state) == "salvaged"
    for silent in others:
        assert on(state, (silent,)) is state, "each node counts"
        assert on(done(state, *down(_letter(silent))), (silent,)).tablets is not state.tablets
    assert [(len(need.members), need.count) for need in planned(state).needs] == [(7, 4), (1, 1)]
    state = on(state)
    assert stage(state) == "end_salvage"
    assert [(need.members, need.count) for need in planned(state).needs] == [((survivor,), 1)]


def test_a_later_dead_node_counts_without_consent_to_data_loss() -> None:
    """Four of seven could answer a request without the reset, although two were declared down.

    This ends with their removal, or with consent to the data loss.
    """
    _, state, survivor, _ = salvaging()
    state = on(state)
    for admits in (False, True):
        lossy = _salvaging_lossy() if admits else state
        silent = tuple(node for node in alive(lossy) if node != survivor)[:2]
        dead = done(lossy, *down("".join(map(_letter, silent))))
        assert (on(dead, silent).tablets is not dead.tablets) == admits
        witnesses = [Witness(node, dead.epoch, dead.epoch) for node in (*alive(dead), *silent)]
        (step,) = tablet_steps(dead, witnesses, [])
        assert tried(dead, step)[1] == "", "a node that acknowledged before its declaration as down counts"


def test_a_waiting_recovery_shows_its_remedy() -> None:
    _, state, survivor, others = salvaging()
    dead = done(on(state), *down("".join(map(_letter, others[:2]))))
    assert stage(dead) == "salvaged"
    acks = {node: ack for node, ack in acknowledgements(dead, 0).items() if node in alive(dead)}
    waits = tablet_waiting(dead, dead.tablets[TABLE], dead.tablets[TABLE].tablet(0), acks)
    assert "continue without: ringlog zone reset z --admit-loss" in waits.ways_out
    again = dict.fromkeys(map(_letter, alive(dead)), 1)
    assert tried(dead, reset(dead, again))[1] == "may_lose_data"
    after = done(dead, reset(dead, again, admits_loss=True))
    assert after.zone_partitions["z/0"].pending[0].peers == (survivor,), "only the survivor was read"
    for _ in range(3):
        after = on(after)
    assert stage(after) == "", "the recovery has ended"


def _salvaging_lossy() -> ClusterState:
    before, *_ = salvaging()
    names = {_letter(node): 1 for node in alive(before)}
    return on(done(before, reset(before, names, admits_loss=True)))


def _letter(node: str) -> str:
    return chr(int(node[:8], 16) + 64)


def test_a_returning_node_is_fetched_from_once() -> None:
    state = with_data("ABCDE", partitions=1, replicas=5, quorum=3)
    state = done(state, *down("AB"), *down("C"))
    state = done(state, reset(state, {"D": 1, "E": 1}, admits_loss=True))
    (survivor,) = state.zone_partitions["z/0"].pending[0].peers
    (other,) = (node for node in alive(state) if node != survivor)
    replicas = Replicas(state)
    assert {one.source for one in replicas.each[survivor].fetching} == {other}
    state = done(state, DeclareUp(ids("A")[0], ""), DeclareUp(ids("B")[0], ""))
    replicas.adopt(state, survivor)
    assert {one.source for one in replicas.each[survivor].fetching} == {other, *ids("AB")}
    here = next(one for one in replicas.each[survivor].fetching if one.source == other)
    found = registers.receive(replicas.each[survivor], here, {})
    assert found is not None
    replicas.each[survivor] = found
    state = done(state, *down("B"))
    replicas.adopt(state, survivor)
    assert {one.source for one in replicas.each[survivor].fetching} == {*ids("A")}
    state = done(state, *down("A"))
    replicas.adopt(state, survivor)
    assert replicas.each[survivor].received, "the other keys are present"

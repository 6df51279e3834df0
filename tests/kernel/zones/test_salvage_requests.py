"""Requests while a partition is salvaged: what a quorum has acknowledged is with the survivor when only he is asked."""

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
from tests.kernel.zones.placed import TABLE, alive, of_coordinator, stage, with_data
from tests.kernel.zones.scenes import done, down, ids, partition, reset, shown, tried

KEY = key_of(TABLE, b"k")
CELL = RegisterCell(10, b"v")


class Replicas:
    """The registers of all nodes that are alive, each at its own epoch."""

    def __init__(self, state: ClusterState) -> None:
        self.each = {node: registers.adopt(RegisterReplica(node), state)[0] for node in alive(state)}

    def adopt(self, state: ClusterState, *nodes: str) -> None:
        for node in nodes or tuple(self.each):
            self.each[node] = registers.adopt(self.each[node], state)[0]

    def fetch(self, node: str) -> None:
        """All that the node waits for."""
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
    """After the coordinator's next command."""
    for command in of_coordinator(state, silent):
        state, code = tried(state, command)
        assert code == ""
    return state


def salvaging(nodes: str = "ABCDEFG") -> tuple[ClusterState, ClusterState, str, list[str]]:
    """Before the reset and after it; the survivor, and the others who are alive: without the survivor a majority."""
    state = with_data(nodes, partitions=1, replicas=len(nodes), quorum=2)
    voters, _ = shown(partition(state).stable).split("/")
    before = done(state, *down(voters[:2]))
    state = done(before, reset(before, dict.fromkeys(set(nodes) - set(voters[:2]), 1)))
    (survivor,) = state.zone_partitions["z/0"].pending[0].peers
    return before, state, survivor, [node for node in alive(state) if node != survivor]


def test_a_majority_without_the_survivor_acknowledges_nothing_once_he_fetches() -> None:
    """Seven replicas; two of the three voters are lost, a majority of who has the data is left. The write that the
    survivor has not seen is not done, however many others have it; with his word it is.
    """
    _, state, survivor, others = salvaging()
    replicas = Replicas(state)
    made = planned(state)
    assert [(len(need.members), need.count) for need in made.needs] == [(7, 4), (1, 1)], "he counts in both"
    replicas.fetch(survivor)
    answers = replicas.write(made, *others)
    assert count(made, answers, state) == AwaitedAnswers(tuple(sorted(set(ids("ABCDEFG")) - set(others))), state.epoch)
    outcome: Outcome = count(made, [*answers, *replicas.write(made, survivor)], state)
    assert isinstance(outcome, Satisfied)
    state = on(on(state))
    replicas.adopt(state)
    assert planned(state, Access.READ).asked == (survivor,)
    assert replicas.has(survivor)


def test_a_survivor_who_comes_new_is_written_from_the_reset_on() -> None:
    """Nobody alive has the tablet; he begins with nothing, and misses nothing from then on."""
    state = done(with_data("ABC", "DE", partitions=1, replicas=3), *down("ABC"))
    state = done(state, reset(state, {"D": 1}, admits_loss=True))
    tablet = state.tablets[TABLE].tablet(0)
    assert tablet.transition is not None
    assert [(one.node, one.since) for one in tablet.transition.next] == [(ids("D")[0], state.epoch)]
    assert tablet.transition.changed == state.epoch
    assert [len(need.members) for need in planned(state).needs] == [3, 1]


def test_a_write_of_before_the_reset_that_was_done_is_fetched_or_not_done() -> None:
    """Its quorum is four of seven; of the five that are alive each has adopted the reset before it is read."""
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
    ), "whoever knows nothing of the reset hears of it by who was read"
    assert not isinstance(count(made, [*first, *late], state), Satisfied)


def test_only_the_survivor_is_written_when_all_who_are_alive_know_that_only_he_is_read() -> None:
    """Else a majority of the others, who know of the reset alone, would answer a read that misses such a write."""
    _, state, survivor, others = salvaging()
    state = on(state)
    assert stage(state) == "salvaged"
    for silent in others:
        assert on(state, (silent,)) is state, "each is waited for"
        assert on(done(state, *down(_letter(silent))), (silent,)).tablets is not state.tablets
    assert [(len(need.members), need.count) for need in planned(state).needs] == [(7, 4), (1, 1)]
    state = on(state)
    assert stage(state) == "end_salvage"
    assert [(need.members, need.count) for need in planned(state).needs] == [((survivor,), 1)]


def test_who_is_declared_down_when_the_survivor_is_read_counts_where_nobody_admits_a_loss() -> None:
    """Four of seven could still answer for who knows of no reset, though two of them were declared down; unless they
    have left for good, or somebody admits the loss.
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
        assert tried(dead, step)[1] == "", "who has said so, and is declared down then, counts"


def test_who_waits_for_a_majority_to_know_that_only_the_survivor_is_read_is_told_the_way_out_and_may_take_it() -> None:
    _, state, survivor, others = salvaging()
    dead = done(on(state), *down("".join(map(_letter, others[:2]))))
    assert stage(dead) == "salvaged"
    acks = {node: ack for node, ack in acknowledgements(dead, 0).items() if node in alive(dead)}
    waits = tablet_waiting(dead, dead.tablets[TABLE], dead.tablets[TABLE].tablet(0), acks)
    assert "continue without: ringlog zone reset z --admit-loss" in waits.ways_out
    again = dict.fromkeys(map(_letter, alive(dead)), 1)
    assert tried(dead, reset(dead, again))[1] == "may_lose_data"
    after = done(dead, reset(dead, again, admits_loss=True))
    assert after.zone_partitions["z/0"].pending[0].peers == (survivor,), "he alone was read"
    for _ in range(3):
        after = on(after)
    assert stage(after) == "", "it is over"


def _salvaging_lossy() -> ClusterState:
    before, *_ = salvaging()
    names = {_letter(node): 1 for node in alive(before)}
    return on(done(before, reset(before, names, admits_loss=True)))


def _letter(node: str) -> str:
    return chr(int(node[:8], 16) + 64)


def test_who_is_up_again_while_the_survivor_fetches_is_not_left_out_and_what_is_here_is_not_fetched_again() -> None:
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
    assert replicas.each[survivor].received, "the rest is here"

"""The delayable log: the records that each participant sees at each time, and the invariants of the log meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlog.kernel.commands.cluster.cluster import ChangeSettings, InitializeCluster, Noop, TakeOver
from ringlog.kernel.fold import fold
from ringlog.kernel.model.outcome import OutcomeKind
from ringlog.kernel.model.state import EMPTY_STATE
from ringlog.log.author import Author
from ringlog.log.delays.control import MemoryDelays
from ringlog.log.delays.delayable import DelayableLog
from ringlog.log.delays.rules import COMMIT, DELAY, DROP, HOLD, PROPAGATION, Match, Rule
from ringlog.log.errors import LogUnavailable, WaitTimedOut
from ringlog.log.memory import MemoryLog
from ringlog.log.replicas.replica import LogReplica
from ringlog.protocol.submission.results import CommitOutcome, EntryChain
from ringlog.runtime.clock import ManualClock
from ringlog.runtime.draw import SeededDraw
from ringlog.wire.entries import EncodedEntry
from tests.log.commit_driver import FateOpen, commit
from tests.log.exactly_once import founded

ChainMaker = Callable[..., EntryChain]

READERS = ("one", "two", "three")
QUICK_S, LONG_S = 0.02, 60.0
SOON_S = 0.3
"""Long enough to observe a forbidden event."""


class World:
    """One log in memory and participants that each see it through their own delayable log."""

    def __init__(self) -> None:
        self.truth = MemoryLog()
        self.control = MemoryDelays()
        self.clock = ManualClock()
        self._open: list[LogReplica] = []
        self.plain = self.replica_of(self.truth)
        founded(self.truth, "tests", draw=SeededDraw(b"founder"))
        self.plain.read_barrier()

    def log(self, participant: str, timeout_s: float = 0.0) -> DelayableLog:
        return DelayableLog(self.truth, self.control, participant, clock=self.clock, timeout_s=timeout_s)

    def replica(self, participant: str) -> LogReplica:
        return self.replica_of(self.log(participant))

    def replica_of(self, log: Any) -> LogReplica:
        self._open.append(LogReplica(log).start())
        return self._open[-1]

    def hold(self, where: str = PROPAGATION, to: tuple[str, ...] = (), **match: Any) -> Rule:
        return self.control.put(Rule("r", HOLD, where, to, Match(**match)))

    def append(self, *entries: EncodedEntry) -> None:
        self.truth.append([entry.data for entry in entries])

    def records(self) -> list[bytes]:
        with closing(self.truth.tail(0)) as tail:
            return [record.data for record in tail.poll(0)]

    def end(self) -> None:
        for replica in self._open:
            replica.stop()
            replica.log.close()


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.end()


# --------------------------------------------------------------------------------------------- propagation


def test_a_held_entry_and_all_later_ones_are_hidden_from_named_participants(world: World, chain_of: ChainMaker) -> None:
    slow, quick = world.replica("node-n1"), world.replica("node-n2")
    takeover = TakeOver("coordinator", "me", 1)
    chain = chain_of(world.plain.state, Noop(), takeover, Noop())
    world.hold(to=("node-n1",), kind="TakeOver")
    world.append(*chain.entries)
    assert quick.read_barrier().epoch == 4
    held = world.control.await_held("r", "node-n1")
    assert (held.kind, held.offset, held.behind, held.where) == ("TakeOver", 2, 1, PROPAGATION)
    assert held.request_id == chain.entries[1].entry.request_id
    assert slow.wait_for(lambda state: (state.epoch, slow.position) == (2, 2), LONG_S, "what came before it")
    world.append(*chain_of(quick.state, Noop()).entries)
    assert quick.read_barrier().epoch == 5
    assert slow.state.epoch == 2
    world.control.release("r")
    assert slow.read_barrier().epoch == 5
    assert slow.counts[OutcomeKind.APPLIED] == 5
    assert world.control.held() == ()


def test_the_barrier_of_a_held_participant_waits(world: World, chain_of: ChainMaker) -> None:
    """A held participant must not claim that it knows the whole log."""
    slow = world.replica("node-n1")
    world.hold()
    world.append(*chain_of(world.plain.state).entries)
    world.control.await_held("r", "node-n1")
    assert slow.log.end_offset() == world.truth.end_offset() == 4
    with pytest.raises(WaitTimedOut, match="up to offset 4"):
        slow.read_barrier(SOON_S)
    world.control.release("r")
    assert slow.read_barrier().epoch == 4


def test_a_late_reader_is_held_at_the_same_place(world: World, chain_of: ChainMaker) -> None:
    world.append(*chain_of(world.plain.state).entries)
    world.hold(to=("node-*",), epoch=3)
    late = world.replica("node-n9")
    assert world.control.await_held("r", "node-n9").offset == 2
    assert late.wait_for(lambda state: state.epoch == 2, LONG_S, "epoch 2")
    assert world.plain.read_barrier().epoch == 4


def test_records_read_before_the_rule_stay_read(world: World, chain_of: ChainMaker) -> None:
    replica = world.replica("node-n1")
    world.append(*chain_of(world.plain.state, Noop()).entries)
    assert replica.read_barrier().epoch == 2
    world.hold(epoch=2)
    assert replica.read_barrier().epoch == 2
    world.append(*chain_of(replica.state, Noop()).entries)
    assert replica.read_barrier().epoch == 3


def test_a_delay_ends_by_itself(world: World, chain_of: ChainMaker) -> None:
    replica = world.replica("node-n1")
    world.control.put(Rule("late", DELAY, match=Match(epoch=3), seconds=5))
    world.append(*chain_of(world.plain.state).entries)
    world.control.await_held("late")
    world.clock.advance(4.9)
    with pytest.raises(WaitTimedOut):
        replica.wait_for(lambda state: state.epoch > 2, SOON_S, "epoch 3")
    world.clock.advance(0.1)
    assert replica.read_barrier().epoch == 4


def test_a_rule_uses_the_epoch_of_an_entry_and_not_its_offset(world: World, chain_of: ChainMaker) -> None:
    """Records without effect lie between the entries."""
    replica = world.replica("node-n1")
    one, two, three = chain_of(world.plain.state).entries
    world.hold(epoch=3)
    world.append(one, one, three)
    world.truth.append([b"", b"no entry"])
    world.truth.gap(2)
    world.append(two, three)
    assert world.control.await_held("r").offset == 8
    assert replica.wait_for(lambda state: state.epoch == 2, LONG_S, "what came before it")
    world.control.release("r")
    assert replica.read_barrier().epoch == 4


def test_two_readers_of_one_participant_are_held_alike(world: World, chain_of: ChainMaker) -> None:
    log = world.log("publisher")
    world.hold(epoch=3)
    world.append(*chain_of(world.plain.state).entries)
    tails = [log.tail(0), log.tail(1)]
    assert [[record.offset for record in tail.poll(QUICK_S)] for tail in tails] == [[0, 1], [1]]
    assert [tail.position for tail in tails] == [2, 2]
    assert [list(tail.poll(QUICK_S)) for tail in tails] == [[], []]
    world.control.release("r")
    assert [[record.offset for record in tail.poll(0, records_max=1)] for tail in tails] == [[2], [2]]
    assert [tail.position for tail in tails] == [3, 3]
    for tail in tails:
        tail.close()


# -------------------------------------------------------------------------------------------------- commit


def test_a_held_commit_is_a_record_in_transit(world: World, chain_of: ChainMaker) -> None:
    """Its author gets no answer and a competing entry may replace it; a later release is too late."""
    log = world.log("validator")
    replica = world.replica_of(log)
    chain = chain_of(world.plain.state)
    world.hold(COMMIT, ("validator",), request_id=chain.entries[1].entry.request_id)
    for _ in range(3):
        with pytest.raises(FateOpen) as caught:
            commit(log, replica, chain, timeout_s=0.0)
        replica.wait_for(lambda state: state.epoch == 2, LONG_S, "the first")
    assert caught.value.judged == (CommitOutcome.APPLIED, CommitOutcome.OPEN, CommitOutcome.OPEN)
    held = world.control.await_held("r", "validator")
    assert (held.where, held.kind, held.offset, held.behind) == (COMMIT, "Noop", None, 1)
    rival = chain_of(world.plain.read_barrier(), ChangeSettings((("operations_kept_max", 7),)))
    world.append(*rival.entries)
    assert commit(log, replica, chain, resend_s=QUICK_S).commit_outcomes == (
        CommitOutcome.APPLIED,
        CommitOutcome.LOST,
        CommitOutcome.LOST,
    )
    world.control.release("r")
    late = [encoded.data for encoded in chain.entries[1:]]
    replica.wait_for(lambda _: set(late) <= set(world.records()), LONG_S, "the late records")
    assert replica.read_barrier().epoch == 3
    assert [world.records().count(data) for data in late] == [1, 1], "each retry is in transit once"


def test_a_waiting_author_sees_the_released_entry(world: World, chain_of: ChainMaker) -> None:
    log = world.log("validator", timeout_s=30)
    replica = world.replica_of(log)
    world.control.put(Rule("late", DELAY, COMMIT, match=Match(epoch=3), seconds=5))
    chain = chain_of(replica.read_barrier())
    done: list[tuple[CommitOutcome, ...]] = []
    author = threading.Thread(target=lambda: done.append(commit(log, replica, chain).commit_outcomes))
    author.start()
    world.control.await_held("late")
    assert world.plain.read_barrier().epoch == 2
    world.clock.advance(5)
    author.join(60)
    assert done == [(CommitOutcome.APPLIED,) * 3]


def test_other_entries_overtake_a_held_commit(world: World, chain_of: ChainMaker) -> None:
    log = world.log("validator")
    chain = chain_of(world.plain.state, TakeOver("coordinator", "me", 1))
    world.hold(COMMIT, kind="TakeOver")
    with pytest.raises(LogUnavailable, match="a rule holds it"):
        log.append([chain.entries[0].data])
    log.append([chain_of(world.plain.state, Noop()).entries[0].data])
    assert world.truth.end_offset() == 2
    world.control.release("r")
    world.plain.wait_for(lambda _: world.plain.counts[OutcomeKind.STALE] == 1, LONG_S, "the one that came late")
    log.close()


def test_closing_loses_records_in_transit(world: World, chain_of: ChainMaker) -> None:
    log = world.log("validator")
    world.hold(COMMIT)
    with pytest.raises(LogUnavailable):
        log.append([chain_of(world.plain.state, Noop()).entries[0].data])
    world.control.await_held("r")
    log.close()
    assert world.control.held() == ()
    world.control.release("r")
    assert world.truth.end_offset() == 1


def test_a_dropped_commit_is_sent_again_until_it_arrives(world: World, chain_of: ChainMaker) -> None:
    log = world.log("validator")
    replica = world.replica_of(log)
    world.control.put(Rule("lose", DROP, COMMIT, match=Match(epoch=3), times=2))
    assert (
        commit(log, replica, chain_of(replica.read_barrier()), resend_s=QUICK_S).commit_outcomes
        == (CommitOutcome.APPLIED,) * 3
    )
    assert replica.counts[OutcomeKind.STALE] == 2, "the third arrived twice without the second"


def test_a_lost_answer_creates_no_second_entry(world: World, chain_of: ChainMaker) -> None:
    log = world.log("validator")
    replica = world.replica_of(log)
    world.control.put(Rule("deaf", DROP, COMMIT, answer_only=True, times=1))
    chain = chain_of(replica.read_barrier(), Noop())
    with pytest.raises(LogUnavailable, match="a rule drops it"):
        log.append([chain.entries[0].data])
    replica.read_barrier()
    assert commit(log, replica, chain).commit_outcomes == (CommitOutcome.APPLIED,)
    assert world.truth.end_offset() == 2


def test_rules_for_others_change_nothing(world: World, chain_of: ChainMaker) -> None:
    log = world.log("node-n1")
    world.control.put(Rule("a", HOLD, COMMIT, ("validator",)))
    world.control.put(Rule("b", HOLD, PROPAGATION, ("node-n2", "publisher*")))
    world.control.put(Rule("c", DROP, COMMIT, match=Match(submitter="bo*")))
    replica = world.replica_of(log)
    assert commit(log, replica, chain_of(replica.read_barrier())).commit_outcomes == (CommitOutcome.APPLIED,) * 3


def test_records_of_an_append_keep_their_order_when_rules_differ(world: World, author: Author) -> None:
    log = world.log("validator")
    state, entries = world.plain.state, []
    for number in range(1, 5):
        entries.append(author.entry(state, TakeOver("coordinator", "me", number) if number % 2 else Noop()))
        state = fold(state, entries[-1].entry).state
    world.control.put(Rule("first", HOLD, COMMIT, match=Match(epoch=2)))
    world.control.put(Rule("third", HOLD, COMMIT, match=Match(epoch=4)))
    with pytest.raises(LogUnavailable):
        log.append([entry.data for entry in entries])
    assert world.control.await_held("first").behind == 3
    assert world.control.await_held("third").behind == 1
    world.control.release("first")
    assert world.plain.wait_for(lambda state: state.epoch == 3, LONG_S, "the first two")
    world.control.release("third")
    assert world.plain.wait_for(lambda state: state.epoch == 5, LONG_S, "the others")
    assert world.plain.counts[OutcomeKind.STALE] == 0
    log.close()


@given(st.lists(st.tuples(st.sampled_from(["append", "hold", "release", "read"]), st.integers(0, 9)), max_size=60))
def test_every_reader_has_the_position_that_its_rules_permit(steps: list[tuple[str, int]]) -> None:
    """A reader advances while the next record matches none of its rules; it neither skips records nor moves back."""
    truth, control = MemoryLog(), MemoryDelays()
    author, state = Author("a", ManualClock(), SeededDraw(b"r")), EMPTY_STATE
    readers = [DelayableLog(truth, control, name).tail(0) for name in READERS]
    seen: list[list[int]] = [[] for _ in READERS]
    made: list[int] = []  # The epoch of the record at each offset, 0 for none.

    def read(number: int) -> None:
        while got := readers[number].poll(0, records_max=3):
            seen[number] += [record.offset for record in got]
        held = {int(r.name) for r in control.rules() if r.concerns(PROPAGATION, READERS[number])}
        began = len(seen[number])
        assert seen[number] == list(range(began))
        assert began == len(made) or made[began] in held
        assert readers[number].position == began

    for what, number in [*steps, *(("release", epoch) for epoch in range(10))]:
        if what == "append":
            command = InitializeCluster("c") if state is EMPTY_STATE else Noop()
            encoded = author.entry(state, command)
            truth.append([encoded.data] if number else [b"no entry"])
            folded = fold(state, encoded.entry)
            state = folded.state if number else state
            made.append(state.epoch if number else 0)
        elif what == "hold" and number:
            control.put(Rule(str(number), HOLD, participants=READERS[number % 3 :], match=Match(epoch=number)))
        elif what == "release" and str(number) in {rule.name for rule in control.rules()}:
            control.release(str(number))
        elif what == "read":
            read(number % len(READERS))
    for number in range(len(READERS)):
        read(number)
        assert len(seen[number]) == len(made), "no rule holds records back"

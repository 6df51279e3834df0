"""The order of the actions of roles, seen by a driver that only records them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from ringlog.cache.port import WriteOutcome
from ringlog.cache.projection import CacheDelta, FullProjection, Stamp
from ringlog.kernel.changes import EpochChange
from ringlog.kernel.commands.cluster.cluster import Noop, TakeOver
from ringlog.kernel.model.outcome import Entry, OutcomeKind
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState
from ringlog.kernel.values import replace
from ringlog.log.author import Author
from ringlog.protocol.effects import (
    Append,
    Barrier,
    CatchUp,
    Exclusive,
    FaultPoint,
    Newest,
    Now,
    Steps,
    Until,
    WallClock,
    run_steps,
)
from ringlog.protocol.followers.cache_writer import AwaitNewer, NextOffset, StoredStamp, StoreView, maintain_cache
from ringlog.protocol.followers.publisher import (
    TOGETHER,
    Announce,
    HaltDiverged,
    LastPublished,
    NextStates,
    Restore,
    StartFollowing,
    publish,
)
from ringlog.protocol.role import BecomeActive, CheckSuperseded, Initialise, StartServing, superseded, take_role
from ringlog.protocol.submission.commit import Undecided, commit
from ringlog.protocol.submission.direct import AheadOfLog, Direct, NoCluster, RoleRefused
from ringlog.protocol.submission.results import AppliedResult, CommitOutcome, EntryChain, RejectedResult
from ringlog.protocol.validator.validator import (
    ReadResults,
    Requests,
    RequestsDuringCommit,
    Trim,
    answer_requests,
    memory_of,
)
from ringlog.protocol.validator.values import Ack, NoteApplied, Publish
from ringlog.runtime.clock import ManualClock
from ringlog.runtime.draw import SeededDraw
from ringlog.wire.entries import EncodedEntry, decode_entry
from ringlog.wire.records import CodedRequest, encode_coded_request, encode_request
from ringlog.wire.requests import decode_request
from tests.agents.world import BAD, GOOD, NOW, World
from tests.log.commit_driver import settling

QUIET = (Newest, Now, WallClock)


class Over(Exception):
    """Raised when the test has enough effects."""


class Notes:
    """Performs effects on a log in memory. ``outcomes``: results of role-specific effects; a missing one ends
    the run.
    """

    def __init__(self, world: World, outcomes: dict[type, Callable[[Any], Any]] | None = None) -> None:
        self.world = world
        self.seen: list[str] = []
        self.lost_appends = 0
        self._now = 0
        self._outcomes = outcomes or {}
        self.direct = Direct(Author("me", ManualClock(NOW), SeededDraw(b"me")))

    def run(self, steps: Steps[Any]) -> Any:
        """Return the result of the protocol, or None if it was cut off."""
        try:
            return run_steps(steps, self._perform)
        except Over:
            return None

    def _perform(self, effect: Any) -> Any:
        if not isinstance(effect, QUIET):
            self.seen.append(type(effect).__name__)
        match effect:
            case Newest() | Barrier() | CatchUp():
                return self.world.state
            case Now():
                self._now += 1
                return self._now
            case WallClock():
                return NOW
            case Append(records):
                self._append(records)
                return None
            case Until(found, timeout, _):
                self._now += timeout if found(self.world.state) is None else 0
                return found(self.world.state)
            case Exclusive(start, _):
                return run_steps(start(), self._perform)
            case FaultPoint(moment):
                self.seen[-1] = moment
                return None
        if type(effect) not in self._outcomes:
            raise Over
        return self._outcomes[type(effect)](effect)

    def _append(self, records: tuple[bytes, ...]) -> None:
        if self.lost_appends:
            self.lost_appends -= 1
            return
        for data in records:
            entry = decode_entry(data)
            assert isinstance(entry, Entry)
            self.world.land(EncodedEntry(entry, data))


def nothing(_: Any) -> None:
    """Return no outcome for an effect."""


def once(*outcomes: Any) -> Callable[[Any], Any]:
    """Return these outcomes in order; then the test ends."""
    left = list(outcomes)

    def outcome(_: Any) -> Any:
        if not left:
            raise Over
        return left.pop(0)

    return outcome


@pytest.fixture
def world() -> World:
    return World()


def test_a_role_reads_the_log_before_it_takes_over() -> None:
    notes = Notes(World(), {BecomeActive: nothing, CheckSuperseded: nothing})
    assert notes.run(take_role(notes.direct, "keeper", "me")) == 1
    assert notes.seen[:2] == ["Until", "CatchUp"]
    assert notes.seen[-3:] == ["BecomeActive", "CheckSuperseded", "took over keeper"]
    term = notes.world.state.terms["keeper"]
    assert (term.instance, superseded(notes.world.state, "keeper", 1)) == ("me", None)
    notes.world.direct(TakeOver("keeper", "other", 2))
    assert superseded(notes.world.state, "keeper", 1) == "term 2 of keeper was taken by instance other"
    assert superseded(notes.world.state, "keeper", 0) is None, "a role without a term cannot have lost it"


def test_a_refused_take_over_ends() -> None:
    with pytest.raises(RoleRefused, match="bad_field"):
        Notes(World()).run(Notes(World()).direct.take_over("", "me"))


def test_a_direct_submission_is_rejected_only_behind_a_barrier() -> None:
    notes = Notes(World())
    notes.run(notes.direct.submit(GOOD))
    assert notes.seen == ["Exclusive", "Append", "Until"], "an applied entry proves that its state was the newest"
    notes.seen.clear()
    assert isinstance(notes.run(notes.direct.submit(BAD)), RejectedResult)
    assert notes.seen == ["Exclusive", "Barrier"]


def test_a_validator_fences_then_makes_all_fates_final_then_reads_the_results(world: World) -> None:
    alone = [(3, (world.request(BAD),))]
    requests = [(0, (world.request(),)), (1, (world.request(BAD),)), (2, ())]
    known: dict[type, Callable[[Any], Any]] = {
        Initialise: nothing,
        CheckSuperseded: nothing,
        ReadResults: lambda _: (),
        Trim: nothing,
        StartServing: nothing,
        Requests: once(requests, alone),
        Publish: nothing,
        NoteApplied: nothing,
        Ack: nothing,
    }
    notes = Notes(world, known)
    notes.run(answer_requests("me", 1, notes.direct, SeededDraw(b"draw")))
    recovered = ["Exclusive", "Append", "Until"]
    prepared = ["CatchUp", "CheckSuperseded", "Initialise", *recovered, "CheckSuperseded", "ReadResults", "Trim"]
    assert notes.seen[: len(prepared)] == prepared
    batch = [
        "StartServing",
        "Requests",
        "Exclusive",
        "decided",
        "Append",
        "Until",
        "publishing",
        "Publish",
        "NoteApplied",
        "Ack",
    ]
    refused = ["Requests", "Exclusive", "Barrier", "publishing", "Publish", "Ack", "Requests"]
    assert notes.seen[len(prepared) :] == [*batch, *refused], (
        "a barrier decides the entries that the chain does not show"
    )


@pytest.mark.parametrize("long", ["submitter", "principal", "code"])
def test_all_that_a_sender_chooses_counts_as_memory(long: str) -> None:
    """Also before its code is checked: a record without a payload could fill the memory with names."""
    request = World().request()
    size = 1_000_000
    coded = CodedRequest(encode_request(request), "x" * size, 1, b"")
    if long == "submitter":
        request = replace(request, submitter="x" * size)
    else:
        coded = coded if long == "principal" else replace(coded, principal="x", code=b"x" * size)
        request = decode_request(encode_coded_request(coded))
    assert memory_of(request) > size


@pytest.mark.parametrize("bound", ["requests", "bytes"])
def test_a_validator_reads_no_more_while_much_waits(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    size = memory_of(World().request())
    name, most = ("WAITING_MAX", 3) if bound == "requests" else ("WAITING_BYTES_MAX", 3 * size)
    monkeypatch.setattr(f"ringlog.protocol.validator.validator.{name}", most)
    monkeypatch.setattr("ringlog.protocol.validator.core.BATCH_ENTRIES_MAX", 2)
    world = World()
    requests = [(0, tuple(world.request() for _ in range(6)))]
    outcomes = dict.fromkeys((Initialise, CheckSuperseded, Trim, StartServing, Publish, NoteApplied, Ack), nothing)
    nothing_came: dict[type, Callable[[Any], Any]] = {ReadResults: lambda _: (), RequestsDuringCommit: lambda _: ()}
    notes = Notes(world, {**outcomes, **nothing_came, Requests: once(requests, (), ())})
    notes.run(answer_requests("me", 1, notes.direct, SeededDraw(b"draw")))
    turns = [name for name in notes.seen[notes.seen.index("StartServing") :] if name in ("Requests", "decided")]
    assert turns == ["Requests", "decided", "decided", "Requests", "decided", "Requests", "Requests"], "6, 4, 2, 0 wait"


def test_a_validator_does_not_accept_before_its_noop_is_applied(world: World) -> None:
    notes = Notes(world, {Initialise: nothing, CheckSuperseded: nothing, ReadResults: once()})
    before = world.state.epoch
    notes.run(answer_requests("me", 1, notes.direct, SeededDraw(b"draw")))
    assert world.state.epoch == before + 1
    assert notes.seen[-1] == "ReadResults"


def test_lost_entries_are_sent_again_until_the_time_limit(world: World) -> None:
    notes = Notes(world)
    chain = EntryChain(world.state.epoch, (world.entry(Noop()),))
    notes.lost_appends = 2
    assert notes.run(commit(chain)) == (CommitOutcome.APPLIED,)
    assert notes.seen.count("Append") == 3
    lost = EntryChain(world.state.epoch, (world.entry(Noop()),))
    notes.lost_appends = 10
    with pytest.raises(Undecided):
        notes.run(commit(lost, timeout=1_200_000))
    notes.lost_appends = 0
    author = Author("me", ManualClock(NOW), SeededDraw(b"settler"))
    assert notes.run(settling(author, lost)) == (CommitOutcome.LOST,)
    assert world.land(lost.entries[0]) is not OutcomeKind.APPLIED, "the Noop replaces the entry"


def test_an_undecided_request_is_reported(world: World) -> None:
    notes = Notes(world)
    with pytest.raises(AheadOfLog):
        notes.run(notes.direct.submit(Noop(), since_epoch=99))
    assert isinstance(notes.run(notes.direct.submit(Noop())), AppliedResult)
    world.state = EMPTY_STATE
    with pytest.raises(NoCluster):
        notes.run(notes.direct.submit(Noop()))


def test_a_cache_writer_writes_everything_then_differences_and_restarts_without_its_base(world: World) -> None:
    written: list[StoreView] = []
    answers = [WriteOutcome.APPLIED, WriteOutcome.BASE_MISSING, WriteOutcome.APPLIED, None, WriteOutcome.APPLIED]

    def store(effect: StoreView) -> WriteOutcome | None:
        written.append(effect)
        world.direct()
        return answers[len(written) - 1]

    rests: list[bool] = []

    def rest(effect: AwaitNewer) -> None:
        rests.append(effect.answered)
        if len(written) == len(answers):
            raise Over

    notes = Notes(
        world,
        {StartServing: nothing, CheckSuperseded: nothing, NextOffset: lambda _: 7, StoreView: store, AwaitNewer: rest},
    )
    notes.run(maintain_cache(notes.direct))
    assert [type(effect.write) for effect in written] == [
        FullProjection,
        CacheDelta,
        FullProjection,
        CacheDelta,
        FullProjection,
    ]
    assert rests == [True, True, False, True]


def test_a_cache_writer_replaces_a_later_epoch_that_is_not_in_the_log(world: World) -> None:
    """The next barrier shows an epoch of another cache writer. An epoch that it does not show belongs to another
    history.
    """
    cluster_id, epoch = world.state.cluster_id, world.state.epoch
    soon, never = Stamp(cluster_id, epoch + 1, "soon"), Stamp(cluster_id, epoch + 99, "never")
    stored: list[Stamp | None] = [soon, never, None, never]
    overs: list[Stamp | None] = []

    def store(effect: StoreView) -> WriteOutcome:
        assert isinstance(effect.write, FullProjection)
        overs.append(effect.write.replaces)
        return WriteOutcome.LATER_STORED

    def rest(_: AwaitNewer) -> None:
        world.direct()
        if not stored:
            raise Over

    known = {StartServing: nothing, CheckSuperseded: nothing, NextOffset: lambda _: 7}
    known |= {StoreView: store, AwaitNewer: rest}
    notes = Notes(world, {**known, StoredStamp: lambda _: stored.pop(0)})
    notes.run(maintain_cache(notes.direct))
    assert overs == [None, None, never, None]


def last_of(world: World) -> EpochChange:
    """Return the content of ``epochs`` after all publications."""
    state = world.state
    return EpochChange(state.epoch, state.cluster_id, state.state_id, state.time, state.chain.hex())


def test_a_publisher_restores_and_then_continues_after_the_last_publication(world: World) -> None:
    states = [EMPTY_STATE, world.state]
    last = last_of(world)
    world.direct()
    states.append(world.state)
    pairs = list(pairwise(states))
    known: dict[type, Callable[[Any], Any]] = {
        Initialise: nothing,
        CheckSuperseded: nothing,
        LastPublished: lambda _: last,
        StartFollowing: lambda _: EMPTY_STATE,
        NextStates: once(pairs),
        Restore: nothing,
        StartServing: nothing,
        Announce: nothing,
    }
    notes = Notes(world, known)
    notes.run(publish(notes.direct))
    assert notes.seen[:3] == ["CatchUp", "CheckSuperseded", "Initialise"]
    start = ["LastPublished", "Barrier", "CheckSuperseded", "StartFollowing", "NextStates"]
    rest = [*start, "CheckSuperseded", "Restore", "StartServing"]
    assert notes.seen[3:] == [*rest, "CheckSuperseded", "announcing", "Announce", "NextStates"]


def published_in(rounds: list[list[tuple[ClusterState, ClusterState]]], size: int) -> list[Announce]:
    """Return the writes of a publisher that starts with an empty log and finds these states, one list per read; each
    epoch has ``size`` records.
    """
    found: list[Announce] = []
    left = list(rounds)

    def more(_: object) -> list[tuple[ClusterState, ClusterState]]:
        if not left:
            raise Over
        return left.pop(0)

    known: dict[type, Callable[[Any], Any]] = {
        Initialise: nothing,
        CheckSuperseded: nothing,
        LastPublished: nothing,
        StartFollowing: lambda _: EMPTY_STATE,
        NextStates: more,
        StartServing: nothing,
        Announce: found.append,
    }
    notes = Notes(World(), known)
    notes.run(publish(notes.direct, lambda _, after: [after.epoch] * size))
    return found


def test_epochs_folded_meanwhile_are_published_together_and_complete(world: World) -> None:
    states = [EMPTY_STATE, world.state]
    for _ in range(5):
        world.direct()
        states.append(world.state)
    pairs = list(pairwise(states))
    rounds = [pairs[:1], [(states[1], states[1])], pairs[1:]]
    assert published_in(rounds, 2) == [Announce([1, 1], 1), Announce([n for n in range(2, 7) for _ in "ab"], 6)]
    large = published_in([pairs], TOGETHER // 2)
    assert [one.epoch for one in large] == [2, 4, 6]
    assert [sorted(set(one.changes)) for one in large] == [[1, 2], [3, 4], [5, 6]]
    largest = published_in([pairs], TOGETHER + 1)
    assert [(one.epoch, len(one.changes)) for one in largest] == [(n, TOGETHER + 1) for n in range(1, 7)]


@pytest.mark.parametrize("difference", ["epoch", "state id", "chain"])
def test_a_publisher_of_another_log_writes_nothing(world: World, difference: str) -> None:
    other = World()
    other.draw = SeededDraw(b"another history")
    for _ in range(2):
        other.direct()
        world.direct()
    last = replace(last_of(other), cluster_id=world.state.cluster_id)
    if difference == "epoch":
        world.state = EMPTY_STATE
    elif difference == "chain":
        last = replace(last_of(world), chain=last.chain)
    known: dict[type, Callable[[Any], Any]] = {
        Initialise: nothing,
        CheckSuperseded: nothing,
        LastPublished: lambda _: last,
        StartFollowing: lambda _: world.state,
        HaltDiverged: once(),
    }
    notes = Notes(world, known)
    notes.run(publish(notes.direct))
    assert notes.seen[-1] == "HaltDiverged"

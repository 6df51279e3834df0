"""Random records: the fold never raises and keeps its invariants, and its chain rules agree with a naive model."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from ringlog.kernel.commands.cluster.cluster import InitializeCluster, Noop
from ringlog.kernel.encoding.encoder import digest
from ringlog.kernel.fold import fold
from ringlog.kernel.invariants.check import violations
from ringlog.kernel.model.outcome import Entry, OutcomeKind, Undecodable, UnknownCommand, UnreadableEntry
from ringlog.kernel.model.state import EMPTY_STATE, PARTS, ClusterState
from ringlog.kernel.registry import CODES
from tests.kernel.entries import CLUSTER, applied, entry, founded, random_command, uuid, with_normal_nodes

FOUNDING = InitializeCluster("c")


def random_record(draw: random.Random, state: ClusterState, past: list[Entry]) -> Entry | UnreadableEntry:
    """Return a valid entry, or an entry that breaks a chain rule, a repetition, or invalid bytes."""
    command = FOUNDING if state.epoch == 0 and draw.random() < 0.7 else random_command(draw, state)
    made = entry(state, command, at=draw.choice([-1, 0, 5, 2**40]))
    match draw.randrange(14):
        case 0:
            return UnreadableEntry("noise")
        case 1 if past:
            return draw.choice(past)
        case 2:
            return entry(state, command, prev_state_id=draw.choice([None, uuid(0), uuid(3), "", "x"]))
        case 3:
            return entry(state, command, since_epoch=draw.choice([-1, 0, state.epoch + 1, 2**63 - 1, -(2**63)]))
        case 4:
            return entry(state, command, state_id=draw.choice(["", "zz", uuid(0), uuid(2), uuid(2**31), "\udc80"]))
        case 5:
            return entry(state, command, request_id=draw.choice(["", uuid(1, space=1), uuid(4, space=1)]))
        case 6:
            return entry(state, command, command=Undecodable("noise"))
        case 7:
            return entry(state, command, cluster_id=draw.choice(["", CLUSTER, uuid(8, space=8)]))
    return made


@settings(max_examples=150, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 40))
def test_only_applied_records_change_the_state(draw: random.Random, length: int) -> None:
    state = EMPTY_STATE
    past: list[Entry] = []
    for _ in range(length):
        item = random_record(draw, state, past)
        folded = fold(state, item)
        assert folded.outcome.code in {"", *CODES}
        assert folded.outcome.code != "broken_rule", folded.outcome
        assert folded.outcome.epoch == folded.state.epoch
        if folded.outcome.kind is OutcomeKind.APPLIED:
            assert isinstance(item, Entry)
            assert folded.state.epoch == state.epoch + 1
            assert folded.state.state_id == item.state_id > state.state_id
            assert folded.state.time == max(state.time, item.at)
        else:
            assert folded.state is state
        state = folded.state
        if isinstance(item, Entry):
            past.append(item)


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 40))
def test_folding_again_or_only_applied_entries_gives_the_same_digest(draw: random.Random, length: int) -> None:
    state = EMPTY_STATE
    log: list[Entry | UnreadableEntry] = []
    kept: list[Entry] = []
    for _ in range(length):
        item = random_record(draw, state, [old for old in log if isinstance(old, Entry)])
        folded = fold(state, item)
        state = folded.state
        log.append(item)
        if folded.outcome.kind is OutcomeKind.APPLIED:
            assert isinstance(item, Entry)
            kept.append(item)
    for items in (log, [*kept]):
        again = EMPTY_STATE
        for item in items:
            again = fold(again, item).state
        assert digest(again) == digest(state)
        assert again == state


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 120), st.integers(0, 3))
def test_each_reachable_state_satisfies_the_invariants(draw: random.Random, length: int, normal_nodes: int) -> None:
    state = with_normal_nodes(founded(), normal_nodes)
    for _ in range(length):
        folded = fold(state, entry(state, random_command(draw, state)))
        assert folded.outcome.kind in (OutcomeKind.APPLIED, OutcomeKind.REFUSED), folded.outcome
        if folded.outcome.kind is OutcomeKind.APPLIED:
            assert violations(folded.state, state) == ()
            for name in PARTS:
                stamped = folded.state.changed.get(name) == folded.state.epoch
                assert stamped == (getattr(folded.state, name) is not getattr(state, name)), name
        state = folded.state


# Naive model


@dataclass
class NaiveChain:
    """The documented chain rules, with a list of all applied entries and no shared code."""

    bound: int
    chain: list[Entry] = field(default_factory=list)

    def verdict(self, item: Entry) -> OutcomeKind:
        """Return the outcome for a Noop, an unknown command or an undecodable one."""
        epoch = len(self.chain)
        oldest = epoch - self.bound + 1 if epoch >= self.bound else 0
        known = [old for number, old in enumerate(self.chain, start=1) if number >= oldest]
        if item.cluster_id != CLUSTER:
            return OutcomeKind.FOREIGN
        if any(item.state_id == old.state_id or item.request_id == old.request_id for old in known):
            return OutcomeKind.DUPLICATE
        if not oldest <= item.since_epoch <= epoch:
            return OutcomeKind.EXPIRED
        if item.prev_state_id != self.chain[-1].state_id:
            return OutcomeKind.STALE
        if isinstance(item.command, UnknownCommand):
            return OutcomeKind.HALT
        if isinstance(item.command, Undecodable) or item.state_id <= self.chain[-1].state_id:
            return OutcomeKind.REFUSED
        self.chain.append(item)
        return OutcomeKind.APPLIED


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(0, 210))
def test_the_chain_rules_agree_with_a_naive_model(data: st.DataObject, prefill: int) -> None:
    model = NaiveChain(100)
    first = entry(EMPTY_STATE, InitializeCluster("test", (("history_entries", 100),)))
    model.chain.append(first)
    state = founded(history_entries=100)
    for _ in range(prefill):
        assert model.verdict(entry(state, Noop())) is OutcomeKind.APPLIED
        state = applied(state, Noop())
    for _ in range(data.draw(st.integers(1, 8), label="records")):
        around = st.integers(max(0, state.epoch - 103), state.epoch + 2)
        item = entry(
            state,
            Noop(),
            cluster_id=data.draw(st.sampled_from([CLUSTER] * 9 + [uuid(1, space=6)])),
            state_id=uuid(data.draw(st.just(state.epoch + 1) | around), space=data.draw(st.sampled_from([0, 0, 0, 1]))),
            prev_state_id=data.draw(st.sampled_from([state.state_id] * 6 + [None, uuid(max(1, state.epoch - 1))])),
            request_id=uuid(data.draw(st.just(state.epoch + 1) | around), space=1),
            since_epoch=data.draw(st.just(state.epoch) | around),
            command=data.draw(st.sampled_from([Noop()] * 8 + [Undecodable("noise"), UnknownCommand("Mystery", 1)])),
        )
        folded = fold(state, item)
        assert folded.outcome.kind is model.verdict(item)
        assert folded.state.epoch == len(model.chain)
        state = folded.state

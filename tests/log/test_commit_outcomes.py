"""Commit outcomes: an outcome is final exactly when no record can change it, in any order and with any repeats and
competitors.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ringlog.kernel.commands.cluster.cluster import InitializeCluster, Noop
from ringlog.kernel.fold import fold
from ringlog.kernel.model.outcome import OutcomeKind
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState
from ringlog.log.author import Author
from ringlog.protocol.submission.results import (
    CommitOutcome,
    EntryChain,
    all_final,
    commit_outcomes,
    is_over,
    open_entries,
)
from ringlog.runtime.clock import ManualClock
from ringlog.runtime.draw import SeededDraw
from ringlog.wire.entries import EncodedEntry

AUTHOR = Author("me", ManualClock(), SeededDraw(b"fates"))


def founded(history_entries: int = 10_000) -> ClusterState:
    command = InitializeCluster("c", (("history_entries", history_entries),))
    return fold(EMPTY_STATE, AUTHOR.entry(EMPTY_STATE, command).entry).state


def noops(state: ClusterState, count: int) -> list[EncodedEntry]:
    entries = []
    since = state.epoch
    for _ in range(count):
        entries.append(AUTHOR.entry(state, Noop(), since_epoch=since))
        state = fold(state, entries[-1].entry).state
    return entries


def folded(state: ClusterState, entries: list[EncodedEntry]) -> ClusterState:
    for encoded in entries:
        state = fold(state, encoded.entry).state
    return state


BASE = founded()
MINE = noops(BASE, 4)
RIVALS = [noops(folded(BASE, MINE[:place]), 1)[0] for place in range(4)]
"""Competing entries, each with the same predecessor as our entry at that index."""


def test_a_chain_is_open_until_it_arrives_and_is_applied_in_order() -> None:
    chain = EntryChain(BASE.epoch, tuple(MINE))
    assert commit_outcomes(BASE, chain) == (CommitOutcome.OPEN,) * 4
    assert commit_outcomes(folded(BASE, MINE[:2]), chain) == (
        CommitOutcome.APPLIED,
        CommitOutcome.APPLIED,
        CommitOutcome.OPEN,
        CommitOutcome.OPEN,
    )
    assert open_entries(chain, commit_outcomes(folded(BASE, MINE[:2]), chain)) == tuple(MINE[2:])


def test_the_newest_epoch_alone_ends_a_chain() -> None:
    whole = EntryChain(BASE.epoch, tuple(MINE))
    states = [folded(BASE, MINE[:count]) for count in range(5)]
    states += [folded(states[place], [RIVALS[place]]) for place in range(4)]
    states += [folded(states[-1], noops(states[-1], 3)), EMPTY_STATE]
    for chain in (whole, EntryChain(BASE.epoch, tuple(MINE[:1]))):
        for state in states:
            assert is_over(chain, state) == all_final(commit_outcomes(state, chain)), (state.epoch, len(chain.entries))


def test_a_stale_entry_is_not_final() -> None:
    chain = EntryChain(BASE.epoch, tuple(MINE[:2]))
    after = fold(BASE, MINE[1].entry)
    assert after.outcome.kind is OutcomeKind.STALE
    assert commit_outcomes(after.state, chain) == (CommitOutcome.OPEN, CommitOutcome.OPEN)
    assert commit_outcomes(folded(after.state, [MINE[0], MINE[1]]), chain) == (
        CommitOutcome.APPLIED,
        CommitOutcome.APPLIED,
    )


def test_a_competing_entry_in_the_middle_ends_the_remaining_chain() -> None:
    chain = EntryChain(BASE.epoch, tuple(MINE))
    state = folded(BASE, [MINE[0], RIVALS[1], MINE[1], MINE[2], MINE[3]])
    assert commit_outcomes(state, chain) == (
        CommitOutcome.APPLIED,
        CommitOutcome.LOST,
        CommitOutcome.LOST,
        CommitOutcome.LOST,
    )


def test_an_initial_entry_has_the_empty_state_as_base() -> None:
    one, other = (AUTHOR.entry(EMPTY_STATE, InitializeCluster(name)) for name in ("one", "other"))
    state = folded(EMPTY_STATE, [one, other])
    assert commit_outcomes(EMPTY_STATE, EntryChain(0, (other,))) == (CommitOutcome.OPEN,)
    assert commit_outcomes(state, EntryChain(0, (one,))) == (CommitOutcome.APPLIED,)
    assert commit_outcomes(state, EntryChain(0, (other,))) == (CommitOutcome.LOST,)


def test_an_outcome_older_than_the_history_is_final_and_unknown() -> None:
    start = founded(history_entries=100)
    chain = EntryChain(start.epoch, tuple(noops(start, 1)))
    state = folded(folded(start, list(chain.entries)), noops(folded(start, list(chain.entries)), 120))
    assert commit_outcomes(state, chain) == (CommitOutcome.FORGOTTEN,)
    assert all_final(commit_outcomes(state, chain))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=14))
def test_final_outcomes_are_correct_and_never_change(arrivals: list[tuple[bool, int]]) -> None:
    chain = EntryChain(BASE.epoch, tuple(MINE))
    state, before, applied = BASE, commit_outcomes(BASE, chain), set()
    for ours, place in arrivals:
        encoded = MINE[place] if ours else RIVALS[place]
        result = fold(state, encoded.entry)
        state = result.state
        if result.outcome.kind is OutcomeKind.APPLIED:
            applied.add(encoded.entry.state_id)
        now = commit_outcomes(state, chain)
        for was, judged in zip(before, now, strict=True):
            assert was in (CommitOutcome.OPEN, judged)
        told = {mine.entry.state_id for mine, judged in zip(MINE, now, strict=True) if judged is CommitOutcome.APPLIED}
        assert told == applied & {mine.entry.state_id for mine in MINE}
        before = now
    # The log can still apply an open entry after a retry, so it is open for a reason.
    state = folded(state, list(open_entries(chain, before)))
    assert all_final(commit_outcomes(state, chain))
    assert [
        judged for was, judged in zip(before, commit_outcomes(state, chain), strict=True) if was is CommitOutcome.OPEN
    ] == [CommitOutcome.APPLIED for was in before if was is CommitOutcome.OPEN]

"""Random commands in any order, encoded, decoded and applied to any state. The fold must preserve its invariants.

Commands come from their schemas, from the coordinator's next steps, and from both with one field replaced. Invalid
entries are mixed in: repeated, stale, foreign, expired and damaged ones.

The first test tries each command on each state of the story. It fails for a command that is never accepted or never
rejected. The second test runs long sequences. Continuous integration uses a fixed number of fixed draws. For a longer
run with new draws:

    RINGLOG_FUZZ_EXAMPLES=5000 pytest tests/fuzz/test_commands_machine.py -s
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Set
from random import Random
from typing import Any

from hypothesis import HealthCheck, Phase, assume, currently_in_test_context, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from ringlog.kernel.changes import diff, project
from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.encoding.digester import Digester
from ringlog.kernel.encoding.encoder import digest
from ringlog.kernel.fold import DEFECT, FOUNDING, fold
from ringlog.kernel.invariants.check import violations
from ringlog.kernel.model.outcome import Entry, Outcome, OutcomeKind, Undecodable, UnknownCommand, UnreadableEntry
from ringlog.kernel.model.state import PARTS, ClusterState
from ringlog.kernel.registry import CODES, VERSIONS
from ringlog.kernel.values import Command, replace
from ringlog.log.author import Author
from ringlog.runtime.clock import ManualClock
from ringlog.runtime.draw import SeededDraw
from ringlog.wire.avro.mapping import uuid_text
from ringlog.wire.entries import EncodedEntry, decode_entry, encode_entry
from tests.fuzz.mutate import blind
from tests.fuzz.strategies import KINDS, BySeed, Pools, accepted, altered, changed, commands, made
from tests.fuzz.world import START, next_steps, states, story

NEVER_REFUSED = {"Noop": "it has no rule that could refuse it", "TakeSnapshot": "nothing can be against a mark"}
"""Commands that a run may never reject, with the reason. Each must be accepted at least once."""

TEMPLATES = {
    kind: [step.encoded.entry.command for step in story().steps if step.encoded.entry.kind == kind]
    for kind in {step.encoded.entry.kind for step in story().steps}
}
"""Kind to the commands of the story."""
ATTEMPTS = 40
LOOK_EVERY = 3
"""Interval, in epochs, of the checks of digests and differences, which are the slowest checks."""
SEEN: Counter[tuple[str, str]] = Counter()
"""(kind of command, ``applied`` or a code) to its count."""


class Machine(RuleBasedStateMachine):
    """One log that continues from a given state."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock(START + 10**9)
        self.author = Author("machine", self.clock, SeededDraw(b"machine"))
        self.pools = Pools()

    @initialize(start=st.sampled_from(range(len(states()))), found=st.booleans(), seed=st.integers(0, 2**32))
    def begin(self, start: int, found: bool, seed: int) -> None:
        self.start_from(states()[start])
        if found and self.state.epoch == 0:
            self.one_that_applies(FOUNDING, seed)

    def start_from(self, state: ClusterState) -> None:
        """Start an empty log from this state."""
        self.first = self.state = state
        self.digester = Digester()
        self.digester.digest(state)
        self.applied: list[EncodedEntry] = []
        self.sent: list[bytes] = []

    # Commands

    @rule(kind=st.sampled_from(KINDS), data=st.data())
    def from_schema(self, kind: str, data: st.DataObject) -> None:
        self.submit(data.draw(commands(kind, self.pools.of(self.state)), label="command"))

    @rule(pick=st.integers(0, 7), times=st.integers(1, 4))
    def next_step(self, pick: int, times: int) -> None:
        for _ in range(times):
            steps = next_steps(self.state, self.clock.now_us())
            if steps:
                self.submit(steps[pick % len(steps)])

    @rule(data=st.data(), pick=st.integers(0, 7))
    def nearly_next_step(self, data: st.DataObject, pick: int) -> None:
        steps = next_steps(self.state, self.clock.now_us())
        if steps:
            found = steps[pick % len(steps)]
            self.submit(data.draw(changed(found, self.pools.of(self.state)), label="command"))

    @rule(kind=st.sampled_from(KINDS), seed=st.integers(0, 2**32))
    def one_that_applies(self, kind: str, seed: int) -> None:
        """Submit a command of this kind that the rules accept, if the search finds one."""
        plausible = self.pools.of(self.state)
        known: list[Any] = TEMPLATES.get(kind, [])
        first = known[seed % len(known)] if known and seed % 3 else made(BySeed(seed), kind, plausible)
        command = accepted(self.state, seed, first, plausible, ATTEMPTS)
        if currently_in_test_context():
            note(f"command: {command}")
        self.submit(command)

    def submit_similar(self, command: Any, seed: int) -> None:
        """Submit the command with up to two new field values, corrected according to its rejections."""
        plausible = self.pools.of(self.state)
        first = altered(BySeed(seed), command, plausible)
        self.submit(accepted(self.state, seed, first, plausible, ATTEMPTS))

    def submit(self, command: Command) -> None:
        self.clock.advance(1.0)
        encoded = self.author.entry(self.state, command)
        outcome = self.record(encoded.data, encoded.entry)
        assert outcome.kind in (OutcomeKind.APPLIED, OutcomeKind.REFUSED, OutcomeKind.STALE), outcome
        assert outcome.kind is not OutcomeKind.STALE or self.state.epoch == 0, outcome
        SEEN[type(command).__name__, outcome.code or outcome.kind.value] += 1
        if outcome.kind is OutcomeKind.APPLIED:
            self.applied.append(encoded)

    # Invalid entries

    @precondition(lambda self: self.applied)
    @rule(pick=st.integers(0, 99))
    def again(self, pick: int) -> None:
        encoded = self.applied[pick % len(self.applied)]
        assert self.record(encoded.data, encoded.entry).kind is OutcomeKind.DUPLICATE
        assert self.displaced(request_id=encoded.entry.request_id).kind is OutcomeKind.DUPLICATE

    @precondition(lambda self: self.state.epoch > 0)
    @rule(data=st.binary(min_size=16, max_size=16), epochs=st.integers(1, 2**62), flag=st.booleans())
    def out_of_place(self, data: bytes, epochs: int, flag: bool) -> None:
        other = uuid_text(data)
        assume(other not in (self.state.cluster_id, self.state.state_id))
        assert self.displaced(cluster_id=other).kind is OutcomeKind.FOREIGN
        since = self.state.history.oldest - epochs if flag else self.state.epoch + epochs
        assert self.displaced(since_epoch=since).kind is OutcomeKind.EXPIRED
        assert self.displaced(prev_state_id=other if flag else None).kind is OutcomeKind.STALE
        outcome = self.displaced(state_id=other)
        assert outcome.kind in (OutcomeKind.APPLIED, OutcomeKind.REFUSED, OutcomeKind.DUPLICATE)

    @rule(kind=st.sampled_from([*KINDS, "Mystery", ""]), version=st.integers(-1, 3), payload=st.binary(max_size=30))
    def any_payload(self, kind: str, version: int, payload: bytes) -> None:
        outcome = self.displaced(payload, kind=kind, version=version)
        if kind not in KINDS or not 1 <= version <= VERSIONS[kind]:
            follows = self.state.epoch > 0 or kind == FOUNDING
            assert outcome.kind is (OutcomeKind.HALT if follows else OutcomeKind.STALE), outcome

    @precondition(lambda self: self.sent)
    @rule(seed=st.integers(0, 2**32), pick=st.integers(0, 99))
    def damaged(self, seed: int, pick: int) -> None:
        self.record(blind(Random(seed), self.sent[pick % len(self.sent)], ()), None)

    def displaced(self, payload: bytes = b"", **changes: Any) -> Outcome:
        """Append a Noop that follows the state, with some fields of its envelope replaced."""
        entry = replace(self.author.entry(self.state, Noop()).entry, **changes)
        return self.record(encode_entry(entry, payload), None)

    # Invariants

    def record(self, data: bytes, entry: Entry | None) -> Outcome:
        """Decode and apply one record of the log, and check all invariants."""
        item = decode_entry(data)
        assert entry is None or item == entry
        before, folded = self.state, fold(self.state, item)
        outcome = folded.outcome
        assert outcome.code in CODES.keys() | {""}, outcome
        assert outcome.code != DEFECT, outcome
        assert outcome.epoch == folded.state.epoch
        assert isinstance(item, UnreadableEntry) == (outcome.kind is OutcomeKind.UNREADABLE)
        if outcome.kind is OutcomeKind.APPLIED:
            assert isinstance(item, Entry)
            self._check_applied(before, folded.state, item)
            self.sent.append(data)
        else:
            assert folded.state is before
            assert outcome.kind is OutcomeKind.DUPLICATE or outcome.code or outcome.detail
        self.state = folded.state
        return outcome

    def _check_applied(self, before: ClusterState, after: ClusterState, item: Entry) -> None:
        assert not isinstance(item.command, Undecodable | UnknownCommand)
        assert (after.epoch, after.state_id) == (before.epoch + 1, item.state_id)
        assert after.state_id > before.state_id
        assert after.time == max(before.time, item.at)
        assert violations(after) == ()
        for name in PARTS:
            stamped = after.changed.get(name) == after.epoch
            assert stamped == (getattr(after, name) is not getattr(before, name)), name
        if after.epoch % LOOK_EVERY == 0:
            self.digester.digest(after)
            self._check_difference(before, after)

    def _check_difference(self, before: ClusterState, after: ClusterState) -> None:
        """Check that the change records lead from the first state to the second."""
        shown = project(before)
        for record in diff(before, after):
            key = (record.topic, record.key)
            if record.value is None:
                assert shown.pop(key, None) is not None, key
            else:
                shown[key] = record.value
        assert {key for key in shown if key[0] != "epochs"} == {key for key in project(after) if key[0] != "epochs"}

    def teardown(self) -> None:
        """Replay the log from its bytes. The state and its incremental digest must be the same."""
        if not hasattr(self, "first"):
            return
        state = self.first
        for data in self.sent:
            state = fold(state, decode_entry(data)).state
        assert digest(state) == self.digester.digest(self.state) == digest(self.state)


def _table() -> str:
    """Return a table of the commands and their outcomes."""
    lines = []
    for kind in KINDS:
        codes = {code: count for (name, code), count in sorted(SEEN.items()) if name == kind}
        refused = ", ".join(f"{code} {count}" for code, count in codes.items() if code != "applied")
        lines.append(f"{kind:24} applied {codes.get('applied', 0):5}  refused: {refused}")
    unseen = sorted(CODES.keys() - {code for _, code in SEEN})
    return "\n".join((*lines, f"codes not met: {', '.join(unseen)}"))


def test_each_command_is_accepted_and_refused() -> None:
    SEEN.clear()
    for start in range(len(states())):
        machine = Machine()
        machine.begin(start, False, 0)
        for number, kind in enumerate(KINDS):
            machine.one_that_applies(kind, 3 * number + start)
            for seed in range(4):
                any_one = made(BySeed(1_000 * start + 10 * number + seed), kind, machine.pools.of(machine.state))
                machine.submit(any_one)
        for pick in range(8):
            machine.next_step(pick, 4)
        machine.teardown()
    for step in story().steps:
        machine = Machine()
        machine.start_from(step.before)
        machine.one_that_applies(step.encoded.entry.kind, 3 * step.before.epoch + 1)
        machine.start_from(step.before)
        machine.submit_similar(step.encoded.entry.command, step.before.epoch)
    print(f"\n{_table()}")
    assert set(KINDS) - _kinds({"applied"}) == set(), "never accepted; see SHAPES in tests/fuzz/strategies.py"
    assert set(KINDS) - _kinds(CODES.keys()) == NEVER_REFUSED.keys()


def test_any_commands_in_any_order() -> None:
    examples = int(os.environ.get("RINGLOG_FUZZ_EXAMPLES", "0"))
    SEEN.clear()
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples or 200,
            stateful_step_count=50,
            derandomize=not examples,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        ),
    )
    print(f"\n{_table()}")
    assert sum(count for (_, code), count in SEEN.items() if code == "applied") > 200, "too few commands applied"
    # Hypothesis draws constants from all imported modules, so the set of kinds depends on earlier tests.
    assert len(_kinds({"applied"})) >= len(KINDS) // 3, "too few kinds of commands applied"


def _kinds(codes: Set[str]) -> set[str]:
    """Return the kinds of commands with one of these outcomes."""
    return {kind for kind, code in SEEN if code in codes}

"""Any commands in any order, through the wire, onto any state: the fold keeps what it promises.

Commands come from three sources: drawn from their schemas, what the coordinator would ask for next, and either of them
with a field exchanged. Around them entries that lost their place: sent again, stale, foreign, expired, damaged.

First each command on each state of the story: one that was never accepted, or never refused, fails. Then many in a
row. The budget of continuous integration is fixed and so are its draws; for longer, with other draws in each run:

    RINGLOG_FUZZ_EXAMPLES=5000 pytest tests/fuzz/test_commands_machine.py -s
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Set
from dataclasses import replace
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
from ringlog.kernel.values import Command
from ringlog.log.author import Author
from ringlog.runtime.clock import ManualClock
from ringlog.runtime.draw import SeededDraw
from ringlog.wire.avro.mapping import uuid_text
from ringlog.wire.entries import EncodedEntry, decode_entry, encode_entry
from tests.fuzz.mutate import blind
from tests.fuzz.strategies import KINDS, BySeed, Pools, accepted, altered, changed, commands, made
from tests.fuzz.world import START, next_steps, states, story

NEVER_REFUSED = {"Noop": "it has no rule that could refuse it", "TakeSnapshot": "nothing can be against a mark"}
"""Commands that need not be refused in a run, and why. None may be missing among the accepted ones."""

TEMPLATES = {
    kind: [step.encoded.entry.command for step in story().steps if step.encoded.entry.kind == kind]
    for kind in {step.encoded.entry.kind for step in story().steps}
}
"""Kind to the commands of the story."""
ATTEMPTS = 40
LOOK_EVERY = 3
"""How often, in epochs, digests and differences are looked at, which cost the most."""
SEEN: Counter[tuple[str, str]] = Counter()
"""(kind of command, applied or code) to how often."""


class Machine(RuleBasedStateMachine):
    """One log, from some state on."""

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
        """Nothing has been sent yet."""
        self.first = self.state = state
        self.digester = Digester()
        self.digester.digest(state)
        self.applied: list[EncodedEntry] = []
        self.sent: list[bytes] = []

    # -------------------------------------------------------------------------------------------- commands

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
        """A command of this kind that the rules accept, if one is found."""
        plausible = self.pools.of(self.state)
        known: list[Any] = TEMPLATES.get(kind, [])
        first = known[seed % len(known)] if known and seed % 3 else made(BySeed(seed), kind, plausible)
        command = accepted(self.state, seed, first, plausible, ATTEMPTS)
        if currently_in_test_context():
            note(f"command: {command}")
        self.submit(command)

    def one_near(self, command: Any, seed: int) -> None:
        """The command with up to two fields chosen anew, mended as its refusals say."""
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

    # ------------------------------------------------------------------------------- entries without their place

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
        """A Noop that follows the state, with some of its envelope exchanged."""
        entry = replace(self.author.entry(self.state, Noop()).entry, **changes)
        return self.record(encode_entry(entry, payload), None)

    # ------------------------------------------------------------------------------------------------ promises

    def record(self, data: bytes, entry: Entry | None) -> Outcome:
        """One record of the log: decoded, folded, and everything held against what was promised."""
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
        """What the change topics get leads from the one state to the other."""
        shown = project(before)
        for record in diff(before, after):
            key = (record.topic, record.key)
            if record.value is None:
                assert shown.pop(key, None) is not None, key
            else:
                shown[key] = record.value
        assert {key for key in shown if key[0] != "epochs"} == {key for key in project(after) if key[0] != "epochs"}

    def teardown(self) -> None:
        """The log once more, from the bytes: the same state, and the same digest as was made of what changed."""
        if not hasattr(self, "first"):
            return
        state = self.first
        for data in self.sent:
            state = fold(state, decode_entry(data)).state
        assert digest(state) == self.digester.digest(self.state) == digest(self.state)


def _table() -> str:
    """Commands by what became of them."""
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
        machine.one_near(step.encoded.entry.command, step.before.epoch)
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
    assert sum(count for (_, code), count in SEEN.items() if code == "applied") > 200, "too little happened"
    # Constants are drawn from all imported modules: which kinds come depends on the tests before this one.
    assert len(_kinds({"applied"})) >= len(KINDS) // 3, "too little happened"


def _kinds(codes: Set[str]) -> set[str]:
    """Commands that met one of these ends."""
    return {kind for kind, code in SEEN if code in codes}

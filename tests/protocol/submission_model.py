"""All event orders around one decision: a validator that may lag, another author, one batch of a client.

Decisions, outcomes and answers are the production functions. The model adds the environment: a log, the validator's
position, and entries in transit, which arrive in order after any other entries and are sent again while they are open.

The story: a client registers a node (directly, applied, seen). *Afterwards* another client asks in one record for a
change of settings and for the removal of the node, or only for the removal. In some stories it asks in a second record,
at any later time, for the removal of another node, which is registered at any time. Another author may append a Noop at
any time, and another instance may take the validator over. These rules must hold for every answer:

- *applied at e*: this request created the log's epoch e;
- *rejected at e*: the log had that state after the request was sent, and the state refuses the command.

``Rule`` disables one clause of the decision rule; each disabled clause has a counterexample.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Iterator
from typing import Any

from ringlog.kernel.commands.cluster.cluster import ChangeSettings, Noop, TakeOver
from ringlog.kernel.commands.topology.nodes import RegisterNode, UnregisterNode
from ringlog.kernel.fold import fold
from ringlog.kernel.history import find_request
from ringlog.kernel.model.outcome import Outcome, OutcomeKind
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Command, Value, field, replace
from ringlog.protocol.submission.results import all_final, commit_outcomes, is_over, open_entries
from ringlog.protocol.validator.core import add_requests, begin_batch, extend_batch, join_batch, settle_batch
from ringlog.protocol.validator.values import (
    CommitChain,
    DecideAfterBarrier,
    NextStep,
    NoteApplied,
    Publish,
    SendEntries,
    StopInstance,
    Validator,
)
from ringlog.runtime.draw import SeededDraw, draw_uuid
from ringlog.wire.commands import decode_command, encode_command
from ringlog.wire.entries import EncodedEntry, author_entry, decode_entry
from ringlog.wire.ids import new_state_id
from ringlog.wire.records import APPLIED, REJECTED, CommandRequest, Result
from tests.agents.world import NOW, World


class Rule(Value):
    """``always``: a barrier before each decision. ``never``: no barrier. ``stays``: the barrier is executed, but
    earlier decisions remain. ``early``: answers are sent before the outcomes. ``trusts``: requests that join a batch
    depend on its entries.
    """

    always: bool = False
    never: bool = False
    stays: bool = False
    early: bool = False
    trusts: bool = False


class Now(Value):
    """One moment. ``log``: all records. ``asked``, ``late``: length of the log at the client's first and second record,
    0 before them. ``folded``: number of records that the validator has read. ``flying``: entries in transit.
    ``others``: actions left to others. ``accepts_more``: new requests may join the batch. ``is_read``: no received
    request waits.
    """

    log: tuple[bytes, ...]
    asked: int = 0
    late: int = 0
    folded: int = 0
    core: Validator = field(default_factory=lambda: Validator("v", 1))
    flying: tuple[bytes, ...] = ()
    others: tuple[str, ...] = ("noop", "take over")
    created: bool = False
    resends: int = 1
    grows: bool = False
    accepts_more: bool = False
    is_read: bool = True

    def key(self) -> Any:
        """Return equal keys for equal moments."""
        core = self.core
        batch = None if core.batch is None else tuple(entry.data for entry in core.batch.chain.entries)
        waiting = tuple(item.request.request_id for item in core.waiting)
        under_way = (waiting, batch, core.acked, self.flying, self.resends, self.grows, self.accepts_more, self.is_read)
        return (self.log, self.asked, self.late, self.folded, under_way, self.others)


def _id(number: int) -> str:
    return str(uuid.UUID(int=number))


def _register(number: int) -> RegisterNode:
    return RegisterNode(f"n{number}", _id(number), f"n{number}:1", "dc1", "r1", 1, 12, "0", (), 1)


class Model:
    """``together``: the client's requests arrive in one record, and the first one applies. ``part``: see
    ``begin_batch``. ``late``: there is a second record and a second node; the first record only asks for the settings.
    """

    def __init__(self, rule: Rule, together: bool, part: int = 2, late: bool = False) -> None:
        self.rule = rule
        self.part = part
        self.world = World()
        self.base = self.world.state
        self.register = _register(1)
        assert fold(self.base, self._entry(self.base, self.register).entry).outcome.kind is OutcomeKind.APPLIED
        commands: tuple[Command, ...] = (ChangeSettings((("history_entries", 5_000),)), UnregisterNode(_id(1)))
        first = commands[:1] if late else commands[0 if together else 1 :]
        self.first = tuple(self._request(one) for one in first)
        self.second = tuple(self._request(one) for one in [UnregisterNode(_id(2))] if late)
        self.requests = self.first + self.second
        self.states: dict[tuple[bytes, ...], list[ClusterState]] = {(): [self.base]}

    def _request(self, command: Command) -> CommandRequest:
        return CommandRequest(self.world.uuid(), self.base.epoch, "client", *encode_command(command))

    @staticmethod
    def _entry(state: ClusterState, command: Command) -> EncodedEntry:
        """Return the same entry for the same state and command."""
        draw = SeededDraw(f"{state.state_id}/{command}".encode())
        return author_entry(
            cluster_id=state.cluster_id,
            state_id=new_state_id(state.state_id, NOW, draw.take(8)),
            prev_state_id=state.state_id,
            request_id=draw_uuid(draw),
            since_epoch=state.epoch,
            submitter="another",
            at=NOW,
            command=command,
        )

    def states_of(self, log: tuple[bytes, ...]) -> list[ClusterState]:
        """Return the initial state and the state after each record."""
        known = self.states.get(log)
        if known is None:
            before = self.states_of(log[:-1])
            known = self.states[log] = [*before, fold(before[-1], decode_entry(log[-1])).state]
        return known

    # ------------------------------------------------------------------------------------------ events

    def events(self, now: Now) -> Iterator[tuple[str, Now | str]]:
        """Return (event, next moment or broken rule)."""
        head = self.states_of(now.log)[-1]
        if not now.created:
            created = self._entry(head, self.register).data
            yield "the node is registered", replace(now, log=(*now.log, created), created=True)
        elif not now.asked:
            core = add_requests(now.core, [(0, self.first)]).validator
            yield "the client asks", replace(now, core=core, asked=len(now.log))
        elif self.second and not now.late:
            yield "the client asks for more", replace(now, late=len(now.log), is_read=False)
        for other in now.others:
            command = self._of_another(other)
            left = tuple(one for one in now.others if one != other)
            yield other, replace(now, log=(*now.log, self._entry(head, command).data), others=left)
        if now.folded < len(now.log):
            yield "the validator reads a record", replace(now, folded=now.folded + 1)
        if now.flying:
            yield "an entry arrives", replace(now, log=(*now.log, now.flying[0]), flying=now.flying[1:])
        yield from self._validator(now)

    def _validator(self, now: Now) -> Iterator[tuple[str, Now | str]]:
        read = self.states_of(now.log)[now.folded]
        batch = now.core.batch
        if batch is None and now.core.waiting:
            yield "the validator decides", self._decided(now)
        if batch is None and not now.is_read:
            core = add_requests(now.core, [(1, self.second)]).validator
            yield "the validator reads more requests", replace(now, core=core, is_read=True)
        if batch is None:
            return
        judged = commit_outcomes(read, batch.chain)
        if now.grows:
            step = extend_batch(now.core, NOW, SeededDraw(b"v2"))
            yield "the validator decides what else waits", self._performed(replace(now, grows=False), step)
        elif now.accepts_more and not now.is_read and not is_over(batch.chain, read):
            yield "what came in joins the batch", self._performed(replace(now, is_read=True), self._joined(now))
        elif all_final(judged):
            yield "the batch is settled", self._performed(now, settle_batch(now.core, judged))
        elif not now.flying and now.resends:
            again = tuple(entry.data for entry in open_entries(batch.chain, judged))
            yield "open entries are sent again", replace(now, flying=again, resends=now.resends - 1)

    def _of_another(self, what: str) -> Command:
        if what == "late":
            return _register(2)
        return Noop() if what == "noop" else TakeOver("validator", "w", 2)

    def _joined(self, now: Now) -> NextStep:
        draw, records = SeededDraw(b"v3"), [(1, self.second)]
        if self.rule.trusts:
            return extend_batch(add_requests(now.core, records).validator, NOW, draw)
        return join_batch(now.core, records, NOW, draw, part=self.part)

    def _decided(self, now: Now) -> Now | str:
        states = self.states_of(now.log)
        step = self._begin(now, states[now.folded], is_fresh=self.rule.never)
        if self.rule.always or step.effects == (DecideAfterBarrier(),):
            # The barrier reads the whole current log, and other records may arrive first.
            place = now.folded if self.rule.stays else len(now.log)
            step = self._begin(now, states[place], is_fresh=True)
            now = replace(now, folded=len(now.log))
        return self._performed(now, step)

    def _begin(self, now: Now, state: ClusterState, is_fresh: bool) -> NextStep:
        return begin_batch(now.core, state, NOW, SeededDraw(b"v"), is_fresh=is_fresh, part=self.part)

    def _performed(self, now: Now, step: NextStep) -> Now | str:
        now = replace(now, core=step.validator, accepts_more=False)
        for effect in step.effects:
            match effect:
                case SendEntries(entries):
                    now = replace(now, flying=tuple(entry.data for entry in entries), grows=True)
                case CommitChain(chain, already_sent, accepts_more):
                    flying = now.flying + tuple(entry.data for entry in chain.entries[already_sent:])
                    now = replace(now, flying=flying, accepts_more=accepts_more)
                    if self.rule.early:
                        assert step.validator.batch is not None
                        for pending in step.validator.batch.answers:
                            if broken := self._broken(now, pending.result):
                                return broken
                case Publish(results) | NoteApplied(results):
                    for result in results:
                        if broken := self._broken(now, result):
                            return broken
                case StopInstance():
                    return replace(now, core=replace(now.core, waiting=(), batch=None))
        return now

    def _broken(self, now: Now, result: Result) -> str:
        """Return the error of an answer sent now; empty if it is right."""
        states = self.states_of(now.log)
        if result.outcome == APPLIED:
            found = find_request(states[-1], result.request_id)
            return "" if found is not None and found.epoch == result.epoch else f"not applied at {result.epoch}"
        assert result.outcome == REJECTED
        late = any(one.request_id == result.request_id for one in self.second)
        if not any(state.epoch == result.epoch for state in states[now.late if late else now.asked :]):
            return f"rejected as {result.code} on a state of before, or of nobody: {result.epoch}"
        state = next(state for state in states if state.epoch == result.epoch)
        request = next(one for one in self.requests if one.request_id == result.request_id)
        outcome = self._outcome(state, request)
        return "" if outcome.kind is OutcomeKind.REFUSED else f"epoch {result.epoch} would take it"

    def _outcome(self, state: ClusterState, request: CommandRequest) -> Outcome:
        command = decode_command(request.kind, request.version, request.payload)
        assert isinstance(command, Command)
        return fold(state, self._entry(state, command).entry).outcome

    # ------------------------------------------------------------------------------------------ search

    def explore(self) -> tuple[int, tuple[str, ...]]:
        """Return (number of moments, shortest story that breaks a rule; empty without one)."""
        first = Now(()) if not self.second else Now((), others=("late",))
        seen = {first.key()}
        todo: deque[tuple[Now, tuple[str, ...]]] = deque([(first, ())])
        while todo:
            now, story = todo.popleft()
            for what, after in self.events(now):
                if isinstance(after, str):
                    return len(seen), (*story, what, after)
                if after.key() not in seen:
                    seen.add(after.key())
                    todo.append((after, (*story, what)))
        return len(seen), ()

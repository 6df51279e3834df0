"""A simulated replica of the metadata log, and the recipes that rest on it: barrier, commit, direct author.

What a replica folds, which fate an entry has and what a rejection is worth are the production functions. The recipes
are the production shells' own order of steps (``ringlog.log.replica``, ``ringlog.log.commit``,
``ringlog.client.direct``), written as processes of the simulated world.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ringlog.client.direct import decided, folded
from ringlog.client.results import AppliedResult, RejectedResult, Submitted
from ringlog.kernel.commands.model import Command, Noop, TakeOver
from ringlog.kernel.fold import fold
from ringlog.kernel.history import find_request, is_expired
from ringlog.kernel.outcome import Entry, Outcome, OutcomeKind, Unreadable
from ringlog.kernel.state import ClusterState
from ringlog.kernel.values import Micros
from ringlog.log.commit import RESEND_S
from ringlog.log.fates import Chain, Fate, all_final, fates, open_entries
from ringlog.runtime.draw import Draw
from ringlog.sim.broker import METADATA, RETRY_US, Record
from ringlog.sim.chance import Chance
from ringlog.sim.histories.events import Op
from ringlog.sim.recording import LOG
from ringlog.sim.world import SECOND, Ended, Host, Signal, Unanswered
from ringlog.wire.entries import EncodedEntry, author_entry, decode_entry
from ringlog.wire.ids import ENTROPY_BYTES, new_request_id, new_state_id

if TYPE_CHECKING:
    from ringlog.sim.simulation import Simulation

RESEND_US: Micros = round(RESEND_S * SECOND)
Step = Generator[Any, bool, Any]
Follower = Callable[[ClusterState, ClusterState, Entry | Unreadable, Outcome, int], None]


class SimReplica:
    """Folds the metadata log on one host.

    It begins where the log of before the run ends. ``alone``: in a run that has lone replicas it decodes and folds by
    itself, so that its digest is evidence; the others share the work. ``changed`` fires after each batch of records.
    """

    __slots__ = ("alone", "busy", "changed", "followers", "free", "host", "name", "position", "sim", "state", "tail")

    def __init__(self, sim: Simulation, host: Host, name: str, alone: bool = False) -> None:
        self.sim = sim
        self.host = host
        self.name = name
        self.alone = alone and sim.lone
        self.state = sim.log.states[sim.preloaded]
        self.position = sim.preloaded
        self.changed = Signal()
        self.followers: list[Follower] = []
        self.busy = False
        self.free = Signal()
        self.tail = sim.broker.tail(host, METADATA, 0, self.position, self._take)
        sim.replicas.append(self)

    def close(self) -> None:
        """Fold no more."""
        self.tail.close()
        self.followers.clear()
        if self in self.sim.replicas:
            self.sim.replicas.remove(self)

    def lives(self) -> bool:
        """False once it was closed, or its host has crashed."""
        return not self.tail.closed and self.tail.life == self.host.life

    def _take(self, records: list[Record]) -> None:
        sim = self.sim
        for record in records:
            before = self.state
            if self.alone:
                item = decode_entry(record.value)
                made = fold(before, item)
            else:
                item, made = sim.folded(before, record.value)
            if made.outcome.kind is OutcomeKind.HALT:
                sim.broken("halt", f"{self.name} halts at offset {record.offset}: {made.outcome.detail}")
            self.state = after = made.state
            self.position = record.offset + 1
            if after is not before:
                for check in sim.on_folded:
                    check.folded(self, before, after)
            for follower in tuple(self.followers):
                follower(before, after, item, made.outcome, record.offset)
        self.position = max(self.position, self.tail.position)
        self.changed.fire()

    # ------------------------------------------------------------------------------------------- recipes

    def barrier(self) -> Step:
        """A state that holds every entry that was in the log when this began; asks until it is answered."""
        begun = self.sim.recording.invoke(self.name, Op.BARRIER, LOG)
        while True:
            try:
                end = yield from self.sim.broker.end(self.host, METADATA)
                break
            except Unanswered:
                yield RETRY_US
        while self.position < end:
            yield self.changed
        self.sim.recording.ok(begun, self.state.epoch)
        return self.state

    def until_founded(self) -> Step:
        """Wait for the cluster."""
        while self.state.epoch == 0:
            yield self.changed

    def commit(self, chain: Chain) -> Step:
        """Send the chain until each fate is final, the open entries again and again; returns the fates."""
        judged = fates(self.state, chain)
        while not all_final(judged):
            values = [("", encoded.data) for encoded in open_entries(chain, judged)]
            yield from self.sim.broker.try_append(self.host, METADATA, values)
            deadline = self.sim.world.now + RESEND_US
            while True:
                judged = fates(self.state, chain)
                left = deadline - self.sim.world.now
                if all_final(judged) or left <= 0:
                    break
                yield self.changed, left
        return judged


@dataclass(slots=True)
class Direct:
    """A direct author on a replica: read barrier, decide, append, folded; on a lost race, decide again."""

    replica: SimReplica
    submitter: str
    draw: Draw

    def entry(
        self, state: ClusterState, command: Command, request_id: str | None = None, since: int | None = None
    ) -> EncodedEntry:
        """The entry that follows ``state``."""
        now = self.now()
        return author_entry(
            cluster_id=state.cluster_id or self.replica.sim.cluster_id,
            state_id=new_state_id(state.state_id or None, now, self.draw.take(ENTROPY_BYTES)),
            prev_state_id=state.state_id or None,
            request_id=request_id or new_request_id(now, self.draw.take(ENTROPY_BYTES)),
            since_epoch=state.epoch if since is None else since,
            submitter=self.submitter,
            at=now,
            command=command,
        )

    def now(self) -> Micros:
        """The host's wall clock."""
        return self.replica.sim.world.clock(self.replica.host)

    def submit(self, command: Command) -> Step:
        """Apply the command or say why not."""
        replica = self.replica
        asked = new_request_id(self.now(), self.draw.take(ENTROPY_BYTES))
        while replica.busy:
            yield replica.free
        replica.busy = True
        try:
            since: int | None = None
            while True:
                state = yield from replica.barrier()
                since = state.epoch if since is None else since
                encoded = self.entry(state, command, asked, since)
                folding = folded if replica.alone else replica.sim.folding
                answer: Submitted | None = decided(state, encoded, "metadata", folding)
                if answer is not None:
                    return answer
                judged = yield from replica.commit(Chain(state.epoch, (encoded,)))
                if judged[0] is Fate.APPLIED:
                    return AppliedResult(asked, state.epoch + 1)
        finally:
            replica.busy = False
            replica.free.fire()

    def withdraw(self, request_id: str, since: int) -> Step:
        """End a request: a Noop under its id; returns the digest and epoch of what was applied, None if it expired."""
        replica = self.replica
        while replica.busy:
            yield replica.free
        replica.busy = True
        try:
            while True:
                state = yield from replica.barrier()
                found = find_request(state, request_id)
                if found is not None:
                    return found.digest, found.epoch
                if is_expired(state, since):
                    return None
                encoded = self.entry(state, Noop(), request_id, since)
                yield from replica.commit(Chain(state.epoch, (encoded,)))
        finally:
            replica.busy = False
            replica.free.fire()

    def take_over(self, role: str, instance: str) -> Step:
        """Become the instance that acts in ``role``; returns the term."""
        while True:
            state = yield from self.replica.barrier()
            known = state.terms.get(role)
            term = known.term + 1 if known is not None else 1
            answer = yield from self.submit(TakeOver(role, instance, term))
            if isinstance(answer, AppliedResult):
                return term
            if isinstance(answer, RejectedResult) and answer.code != "stale_term":
                raise Ended(f"take-over refused: {answer.code}")


def draw_of(sim: Simulation, name: str) -> Draw:
    """A source of random bits of its own for whatever is called ``name``."""
    return Chance(sim.world.seed, f"draw/{name}")

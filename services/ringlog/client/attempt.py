"""One plan of a read or a write, carried out: messages go out, answers come in, until ``plans.count`` has a verdict.

What is asked, and what an answer is worth, is decided in ``ringlog.client.plans``, as in the simulator's applications.
Here are the waiting and the asking again: whoever gave no answer is asked again after a while, who says that it is
behind at once. Such a replica holds the request for a moment before it says so; what it waits for is its own log.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ringlog.client import plans
from ringlog.client.peers import Peers
from ringlog.client.plans import Answer, Outcome, Plan, Waiting
from ringlog.kernel.state import ClusterState
from ringlog.kernel.values import NodeId
from ringlog.wire.cells import Cell, Key
from ringlog.wire.data import (
    BEHIND,
    FOREIGN_CLUSTER,
    WRONG_NODE,
    ReadReply,
    ReadRequest,
    WriteReply,
    WriteRequest,
    pack,
    unpack,
)
from ringlog.wire.errors import WireError

RESEND_S = 0.3
CALL_S = 3.0
HELD_S = 0.1
"""A replica that is behind and has held the request for so long is asked again at once: it sets the pace."""


@dataclass(frozen=True, slots=True)
class Found:
    """An answer, and what it says of the register. ``digest``: in place of the cell's value, if not empty."""

    answer: Answer
    cell: Cell | None = None
    digest: bytes = b""


@dataclass(frozen=True, slots=True)
class Ask:
    """What is asked of each replica. ``cell``: what to write; ``method``: Write, Repair or Read; ``is_lean``: digests
    will do, but for one replica.
    """

    request: plans.Request
    key: Key
    method: str
    cell: Cell | None = None
    is_lean: bool = False


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict on an attempt, the answers that it was made on, and the state that they were judged on."""

    made: Plan
    outcome: Outcome
    found: tuple[Found, ...]
    state: ClusterState


class Attempt:
    """Carries out one plan. Safe from threads: answers come in those of the connections.

    ``state``: gives the newest state that is known; ``kept``: answers of an earlier plan that count for this one.
    """

    def __init__(
        self,
        ask: Ask,
        made: Plan,
        kept: Sequence[Found],
        peers: Peers,
        state: Callable[[], ClusterState],
    ) -> None:
        self._ask = ask
        self._made = made
        self._peers = peers
        self._state = state
        self._found = list(kept)
        self._asking: set[NodeId] = set()
        self._asked: set[NodeId] = set()
        self._is_over = False
        self._left_s: Callable[[], float] = lambda: 0.0
        self.changed = threading.Condition()

    def run(self, clock: Callable[[], float], deadline: float) -> Judged:
        """Ask until the answers decide, or the deadline comes: then the outcome is Waiting."""
        again = clock()
        with self.changed:
            self._left_s = lambda: deadline - clock()
            while True:
                state = self._state()
                # An answer of another history is none: its node is asked again.
                self._found = [found for found in self._found if plans.is_of_this_log(found.answer, state)]
                outcome = plans.count(self._made, [found.answer for found in self._found], state)
                now = clock()
                if not isinstance(outcome, Waiting) or now >= deadline:
                    self._is_over = True
                    return Judged(self._made, outcome, tuple(self._found), state)
                if now >= again:
                    again = now + RESEND_S
                    self._send_all()
                    continue  # an answer may be there already
                self.changed.wait(max(min(again, deadline) - now, 0.001))

    def wake(self) -> None:
        """There may be a newer state."""
        with self.changed:
            self.changed.notify_all()

    def _send_all(self) -> None:
        answered = {found.answer.node for found in self._found}
        for node in self._made.asked:
            if node not in answered and node not in self._asking:
                self._send(node)

    def _send(self, node: NodeId) -> None:
        data, left_s = self._message(node), self._left_s()
        self._asking.add(node)
        self._asked.add(node)
        self._peers.call(
            node, self._ask.method, data, min(left_s, CALL_S), lambda answer: self._answered(node, answer, left_s)
        )

    def _message(self, node: NodeId) -> bytes:
        ask, made, cluster_id = self._ask, self._made, self._state().cluster_id
        if ask.cell is not None:
            return pack(WriteRequest(cluster_id, node, made.epoch, made.state_id, ask.key, ask.cell))
        # The whole cell comes from one replica, and from any that must be asked twice.
        is_digest = ask.is_lean and node != made.asked[0] and node not in self._asked
        return pack(ReadRequest(cluster_id, node, made.epoch, made.state_id, ask.key, is_digest))

    def _answered(self, node: NodeId, data: bytes | None, left_s: float) -> None:
        """``left_s``: what was left of the time when the request was sent."""
        with self.changed:
            self._asking.discard(node)
            if self._is_over or data is None:
                return
            try:
                reply = self._unpacked(data)
            except WireError:
                return
            if reply.refused in (WRONG_NODE, FOREIGN_CLUSTER) or reply.node != node:
                self._peers.forget(node)
            elif reply.refused == BEHIND:
                if left_s - HELD_S >= self._left_s() > 0:
                    self._send(node)
            else:
                self._found.append(_found(reply))
                self.changed.notify_all()

    def _unpacked(self, data: bytes) -> WriteReply | ReadReply:
        return unpack(WriteReply, data) if self._ask.cell is not None else unpack(ReadReply, data)


def _found(reply: WriteReply | ReadReply) -> Found:
    answer = Answer(reply.node, reply.epoch, reply.refused, reply.state_id)
    return Found(answer, reply.cell, reply.digest) if isinstance(reply, ReadReply) else Found(answer)

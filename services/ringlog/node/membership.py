"""A node's way into the cluster: registered once, then joined, each exactly once also over time-outs."""

from __future__ import annotations

import contextlib
import threading

import structlog

from ringlog.client.client import Client
from ringlog.client.errors import SubmissionTimedOut
from ringlog.client.results import AppliedResult, ExpiredResult, RejectedResult, Submitted, describe
from ringlog.kernel.commands.nodes import RegisterNode
from ringlog.kernel.state import ClusterState, Node
from ringlog.kernel.values import Command
from ringlog.log.errors import WaitTimedOut
from ringlog.node.errors import NodeFailed
from ringlog.node.identity import NodeOptions
from ringlog.node.patience import Patience
from ringlog.operator.intents import join_with
from ringlog.runtime.draw import SystemDraw

log = structlog.get_logger("ringlog.node")

IGNORE_MSB = 12
LOOK_S = 1.0
BARRIER_S = 10.0
ANSWER_S = 3.0
"""How long to wait for an answer before looking whether the node is to stop; the request stays the same."""
JOIN_RETRIED = (
    "range_locked",
    "token_owned",
    "duplicate_token",
    "plans_conflict",
    "too_many_operations",
    "operations_in_flight",
)
"""Rejections of a join that another try, with tokens chosen anew, gets over: another node is moving, or has moved."""


class Membership:
    """Submits what makes node ``node`` at ``address`` a member; gives up quietly once ``stopping`` is set."""

    def __init__(
        self, client: Client, options: NodeOptions, node: str, address: str, stopping: threading.Event
    ) -> None:
        self._client = client
        self._options = options
        self._node = node
        self._address = address
        self._stopping = stopping
        self._patience = Patience("the metadata log", stopping)

    def register(self, release: str) -> None:
        """Make the node known to the cluster unless it is already; raises NodeFailed."""
        while (state := self._barrier()) is not None:
            me = self._me(state)
            if me is not None:
                if me.address != self._address:
                    raise NodeFailed(
                        f"node {me.name} is registered at {me.address}, not at {self._address}: use that port"
                    )
                return
            options = self._options
            answer = self._submit(
                RegisterNode(
                    name=options.name,
                    id=self._node,
                    address=self._address,
                    datacenter=options.datacenter,
                    rack=options.rack,
                    shards=options.shards,
                    ignore_msb=IGNORE_MSB,
                    release=release,
                    features=(),
                    capacity=1,
                )
            )
            if isinstance(answer, RejectedResult):
                raise NodeFailed(f"registering {options.name}: {describe(answer)}")
            log.info("registration", node=options.name, id=self._node, answer=answer and describe(answer))

    def join(self, tokens: int) -> None:
        """Ask to join until the node is on its way; another node's movement is waited out. Raises NodeFailed."""
        while (state := self._barrier()) is not None:
            if state.nodes[self._node].state != "none":
                return
            answer = self._submit(join_with(state, self._node, tokens, SystemDraw()))
            if isinstance(answer, AppliedResult):
                log.info("join admitted", node=self._options.name, epoch=answer.epoch)
                return
            if isinstance(answer, RejectedResult):
                if answer.code not in JOIN_RETRIED:
                    raise NodeFailed(f"joining: {describe(answer)}")
                log.info("join waits", node=self._options.name, code=answer.code, detail=answer.detail)
                self._await_epoch(answer.epoch)
            elif isinstance(answer, ExpiredResult):
                log.info("join again", node=self._options.name, answer=describe(answer))

    def _barrier(self) -> ClusterState | None:
        """Everything that is in the log, however long the broker takes; None once the node is to stop."""
        return self._patience.until_answered(lambda: self._client.catch_up(BARRIER_S))

    def _submit(self, command: Command) -> Submitted | None:
        """The final answer, however long the validator takes; None once the node is to stop."""
        request_id: str | None = None
        since_epoch: int | None = None
        while not self._stopping.is_set():
            try:
                return self._client.submit(command, timeout_s=ANSWER_S, request_id=request_id, since_epoch=since_epoch)
            except SubmissionTimedOut as open_:
                if request_id is None:
                    log.warning("no answer yet", command=type(command).__name__, detail=str(open_))
                request_id, since_epoch = open_.request_id, open_.since_epoch
        return None

    def _me(self, state: ClusterState) -> Node | None:
        found = state.nodes.get(self._node)
        name = self._options.name
        if found is None and name in state.node_names:
            raise NodeFailed(
                f"the name {name} belongs to node {state.node_names[name]}, this one is {self._node}: "
                f"choose another name, or bring back the folder {self._options.folder} it had"
            )
        return found

    def _await_epoch(self, after: int) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(WaitTimedOut):
                self._client.replica.wait_for(lambda state: state.epoch > after or None, LOOK_S, "a new epoch")
                return

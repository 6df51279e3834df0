"""How long a node holds a request that names an epoch or position it does not have, and its answer afterwards.

A request's epoch and positions are claims of its sender. A node that is behind waits a limited time for its own log to
reach them, and then answers that it is behind. The client decides when to retry (``ringlog.client.data.registers``). An
epoch that is being written to disk is awaited without a limit, because only this node's disk delays it.

Invariant: nothing happens between the end of the last wait and the answer. In a process, threads hold the lock that
protects the steps; in the simulator, no other event runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ringlog.kernel.model.outcome import Rejected
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch, Micros, Value
from ringlog.node.protocol.registers import DurableRegisters
from ringlog.node.registers.registers import Admission, Reply
from ringlog.node.rows import row_reads
from ringlog.node.rows.replica import RowReplica
from ringlog.protocol.effects import FOREVER, Effect
from ringlog.wire.data import ReadRequest, ReadRowsReply, ReadRowsRequest, WriteRequest

CATCH_UP: Final[Micros] = 200_000
"""The longest wait for the node's own log, in microseconds."""
AHEAD_MAX: Final = 10_000
"""A node that is further behind, in epochs, cannot catch up within ``CATCH_UP``, so no request waits for it."""


def is_within_reach(own: Epoch, named: Epoch) -> bool:
    """Return True if a node at epoch ``own`` may soon have the epoch ``named``."""
    return own < named <= own + AHEAD_MAX


class WaitUntil(Effect[None], Value):
    """Wait until ``over`` returns True, at most ``timeout``. No outcome."""

    over: Callable[[], bool]
    timeout: Micros


Authorize = Callable[[ClusterState], Rejected | None]
"""Returns why the sender of a request lacks a right under a state, or None."""


async def admit_register_request(
    registers: DurableRegisters,
    request: WriteRequest | ReadRequest,
    may_wait: bool = True,
    authorize: Authorize = lambda _: None,
) -> Admission:
    """Admit a request for a register, after a wait if the node is behind.

    Args:
        may_wait: False if too many other requests wait already.
        authorize: Checks the sender under the state that admits the request.
    """
    if may_wait and is_within_reach(registers.value.state.epoch, request.epoch):
        await WaitUntil(lambda: registers.value.state.epoch >= request.epoch, CATCH_UP)
    if registers.is_adopting:
        await WaitUntil(lambda: not registers.is_adopting, FOREVER)
    state = registers.value.state
    rejected = authorize(state)
    return registers.admit(request) if rejected is None else Reply(0, state.epoch, None, rejected.code, rejected.detail)


async def answer_row_request(row_replica: RowReplica, request: ReadRowsRequest, may_wait: bool = True) -> ReadRowsReply:
    """Return the answer to a well-formed request for rows, after a wait if the node is behind.

    Args:
        may_wait: False if too many other requests wait already.
    """
    is_near = request.epoch <= row_replica.state.epoch + AHEAD_MAX
    if may_wait and is_near and row_reads.is_behind(row_replica, request):
        await WaitUntil(lambda: not row_reads.is_behind(row_replica, request), CATCH_UP)
    return row_reads.answered(row_replica, request)

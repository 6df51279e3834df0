"""How long a node holds a request for what it has not got yet, and what it says then.

The epoch and the positions that a request names are only what somebody says. A node that is behind waits for them a
moment, for its own log to show them, and then says that it is behind: who asks sets the pace
(``ringlog.client.data.registers``). An epoch on its way to the disk is waited for as long as that takes: this is the
node's own work. Between the last wait and the answer nothing happens: threads have the lock that the steps are
performed under, the simulator no other event.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ringlog.kernel.values import Epoch, Micros
from ringlog.node.protocol.registers import DurableRegisters
from ringlog.node.registers.registers import Taken
from ringlog.node.rows import row_reads
from ringlog.node.rows.replica import RowReplica
from ringlog.protocol.effects import FOREVER, Steps
from ringlog.wire.data import ReadRequest, ReadRowsReply, ReadRowsRequest, WriteRequest

CATCH_UP: Final[Micros] = 200_000
AHEAD_MAX: Final = 10_000
"""A node that lacks more epochs than this does not reach the named one within ``CATCH_UP``: no request waits for it."""


def is_within_reach(own: Epoch, named: Epoch) -> bool:
    """True if a node at epoch ``own`` may soon have the epoch that a request names."""
    return own < named <= own + AHEAD_MAX


@dataclass(frozen=True, slots=True)
class Hold:
    """Wait until it is ``over``, at most ``timeout``. No outcome."""

    over: Callable[[], bool]
    timeout: Micros


def take(registers: DurableRegisters, request: WriteRequest | ReadRequest, may_wait: bool = True) -> Steps[Taken]:
    """Take a request for a register. ``may_wait``: False if too many others wait."""
    if may_wait and is_within_reach(registers.value.state.epoch, request.epoch):
        yield Hold(lambda: registers.value.state.epoch >= request.epoch, CATCH_UP)
    if registers.is_adopting:
        yield Hold(lambda: not registers.is_adopting, FOREVER)
    return registers.take(request)


def answer(row_replica: RowReplica, request: ReadRowsRequest, may_wait: bool = True) -> Steps[ReadRowsReply]:
    """The answer to a request for rows that is sound as such. ``may_wait``: as of ``take``."""
    is_near = request.epoch <= row_replica.state.epoch + AHEAD_MAX
    if may_wait and is_near and row_reads.is_behind(row_replica, request):
        yield Hold(lambda: not row_reads.is_behind(row_replica, request), CATCH_UP)
    return row_reads.answered(row_replica, request)

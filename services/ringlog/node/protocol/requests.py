"""How long a node holds a request for what it has not got yet, and what it says then.

The epoch and the positions that a request names are only what somebody says. A node that is behind waits for them a
moment, for its own log to show them, and then says that it is behind: who asks sets the pace
(``ringlog.client.protocol``). An epoch on its way to the disk is waited for as long as that takes: this is the node's
own work. Between the last wait and the answer nothing happens: threads have the lock that the steps are performed
under, the simulator no other event.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ringlog.kernel.values import Micros
from ringlog.node import row_reads
from ringlog.node.holder import Holder
from ringlog.node.protocol.registers import DurableRegisters
from ringlog.node.registers import Taken
from ringlog.protocol.effects import FOREVER, Steps
from ringlog.wire.data import ReadRequest, ReadRowsReply, ReadRowsRequest, WriteRequest

CATCH_UP: Final[Micros] = 200_000


@dataclass(frozen=True, slots=True)
class Hold:
    """Wait until it is ``over``, at most ``patience``. No outcome."""

    over: Callable[[], bool]
    patience: Micros


def take(registers: DurableRegisters, request: WriteRequest | ReadRequest) -> Steps[Taken]:
    """What becomes of a request for a register."""
    if registers.value.state.epoch < request.epoch:
        yield Hold(lambda: registers.value.state.epoch >= request.epoch, CATCH_UP)
    if registers.is_adopting:
        yield Hold(lambda: not registers.is_adopting, FOREVER)
    return registers.take(request)


def answer(holder: Holder, request: ReadRowsRequest) -> Steps[ReadRowsReply]:
    """The answer to a request for rows that is sound as such."""
    if row_reads.is_behind(holder, request):
        yield Hold(lambda: not row_reads.is_behind(holder, request), CATCH_UP)
    return row_reads.answered(holder, request)

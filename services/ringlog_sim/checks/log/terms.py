"""A role has one active instance at a time, and a superseded instance publishes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringlog.kernel.commands.cluster.cluster import TakeOver
from ringlog.kernel.model.outcome import Entry
from ringlog.kernel.model.state import ClusterState
from ringlog.protocol.validator.core import is_floor_mark
from ringlog.protocol.validator.values import FORGOTTEN
from ringlog.wire.records import REJECTED, Result
from ringlog_sim.checks.base import Check
from ringlog_sim.devices.memo import cached_result

if TYPE_CHECKING:
    from ringlog_sim.devices.broker import Partition
    from ringlog_sim.simulation import Simulation


class Terms(Check):
    """Terms of a role ascend. Published rejections have ascending terms, and one request id has one rejection.

    After a floor mark above its epoch, a request may be rejected again as forgotten; without a mark, never.
    """

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._terms: dict[str, int] = {}
        self._holders: dict[int, str] = {}
        self._read = 0
        self._last = 0
        self._rejected: dict[tuple[str, str], Result] = {}
        self._applied: set[str] = set()
        self._forgotten: set[str] = set()
        self._floor = 0

    def begin(self, state: ClusterState) -> None:
        """Record the terms before the run."""
        self._terms = {role: term.term for role, term in state.terms.items()}

    def applied(self, before: ClusterState, after: ClusterState, item: Entry, offset: int) -> None:
        """Check that a take-over raises the term."""
        self._applied.add(item.request_id)
        if isinstance(item.command, TakeOver):
            command = item.command
            if command.term <= self._terms.get(command.role, 0):
                self.sim.broken("terms", f"{command.role} was taken over twice with term {command.term}")
            self._terms[command.role] = command.term
            if command.role == "validator":
                self._holders[command.term] = command.instance

    def results(self, partition: Partition) -> None:
        """Check new results. Rejections must be written under the fence."""
        for record in partition.records[self._read : partition.visible]:
            result = cached_result(record.value)
            if result.outcome == REJECTED and result.term < self._last:
                self.sim.broken("fence", f"a rejection of term {result.term} was published after one of {self._last}")
            # An active instance has read all earlier results, so it gets no more results of earlier terms.
            self._last = max(self._last, result.term)
            if result.outcome != REJECTED:
                continue
            if self._holders.get(result.term) != result.instance:
                self.sim.broken("fence", f"{result.instance} published in term {result.term} of another instance")
            if is_floor_mark(result):
                self._floor = max(self._floor, result.since_epoch)
                continue
            forgotten = result.code == FORGOTTEN
            if forgotten and result.since_epoch >= self._floor:
                self.sim.broken("answers", f"{result.request_id} was rejected as forgotten without a mark")
            key = (result.request_id, result.digest)
            first = self._rejected.setdefault(key, result)
            # A client that withdrew a request used its id for a Noop, so the id belongs to another command from then
            # on. The same applies to a client that reused the id after the first answer was forgotten.
            self._forgotten |= {result.request_id} if forgotten else set()
            taken = result.request_id in self._applied or result.request_id in self._forgotten
            withdrawn = result.code == "request_id_reused" and taken
            if first.code != result.code and not withdrawn and not forgotten:
                self.sim.broken("answers", f"{result.request_id} was rejected as {first.code} and as {result.code}")
        self._read = partition.visible

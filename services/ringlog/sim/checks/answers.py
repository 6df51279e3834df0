"""What clients were told, against what the log says, from then on and for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringlog.client.results import AppliedResult, ExpiredResult, RejectedResult, Submitted
from ringlog.client.submission import Asked
from ringlog.kernel.outcome import Entry, Outcome, OutcomeKind, Unreadable
from ringlog.kernel.state import ClusterState
from ringlog.sim.checks.base import Check

if TYPE_CHECKING:
    from ringlog.sim.simulation import Simulation


class Answers(Check):
    """*Applied* names the epoch that the command made; *rejected* means that it was not applied and never will be;
    *expired* means that nothing more will happen.
    """

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim)
        self._applied: dict[str, tuple[int, str]] = {}
        self._ended: dict[tuple[str, str], str] = {}

    def entry(
        self, before: ClusterState, after: ClusterState, item: Entry | Unreadable, outcome: Outcome, offset: int
    ) -> None:
        """An entry whose request somebody was told to be over must not be applied."""
        if outcome.kind is OutcomeKind.APPLIED and isinstance(item, Entry):
            self._applied[item.request_id] = (after.epoch, item.digest)
            told = self._ended.get((item.request_id, item.digest))
            if told is not None:
                self.sim.broken(
                    "answers", f"request {item.request_id} made epoch {after.epoch} after it was answered {told}"
                )

    def answered(self, client: str, asked: Asked, answer: Submitted) -> None:
        """A client believes an answer."""
        known = self._applied.get(asked.request_id)
        if isinstance(answer, AppliedResult):
            if known != (answer.epoch, asked.digest):
                self.sim.broken(
                    "answers", f"{client} was told that {asked.request_id} made {answer.epoch}: it is {known}"
                )
        elif isinstance(answer, RejectedResult):
            if known is not None and known[1] == asked.digest:
                self.sim.broken("answers", f"{client} was told {answer.code}, but its command made epoch {known[0]}")
            self._ended[asked.request_id, asked.digest] = answer.code
        elif isinstance(answer, ExpiredResult):
            self._ended[asked.request_id, asked.digest] = "expired"

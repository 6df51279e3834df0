"""No rule of the log ever raises: a defect is answered as a rejection of its own, and that one nobody may see."""

from __future__ import annotations

from ringlog.client.results import RejectedResult, Submitted
from ringlog.kernel.decide import DEFECT
from ringlog.protocol.submission import Asked
from ringlog.sim.checks.base import Check


class Defects(Check):
    """No answer says that a rule is broken."""

    def answered(self, client: str, asked: Asked, answer: Submitted) -> None:
        """A client believes an answer."""
        if isinstance(answer, RejectedResult) and answer.code == DEFECT:
            self.sim.broken("defect", f"{client} got this answer to {asked.request_id}: {answer.detail}")

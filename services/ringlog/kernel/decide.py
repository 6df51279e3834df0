"""From a command to its decision.

What operators have paused, and what a recovery does not allow, is refused for all commands in one place
(``commands.pauses``, ``commands.recovery``).

Rules check the command's own fields first (code ``bad_field``), then what they need of the state, and only then make
the next state. What that makes larger than readers can carry is refused here, for all of them (``kernel.carried``).
"""

from __future__ import annotations

from typing import Final

from ringlog.kernel.carried import too_large
from ringlog.kernel.commands.pauses import paused
from ringlog.kernel.commands.recovery import held_by_recovery
from ringlog.kernel.counts import too_many
from ringlog.kernel.outcome import Accepted, Decision, EntryContext, Rejected
from ringlog.kernel.registry import RULES
from ringlog.kernel.schema.versions import by_log_or_digest
from ringlog.kernel.state import ClusterState
from ringlog.kernel.values import Command

DEFECT: Final = "broken_rule"
"""The code of a decision that failed: an author answers it as a rejection, a fold halts on it."""


def decide(state: ClusterState, command: Command, context: EntryContext) -> Decision:
    """What ``command`` does to ``state``; never raises.

    A rule that raises has a defect. Who authors must survive it, or one request could stop every validator that reads
    it, so it becomes a rejection (code ``broken_rule``): nothing is appended.
    """
    try:
        if state.pauses and (held := paused(state, command)) is not None:
            return held
        if state.recoveries and (held := held_by_recovery(state, command)) is not None:
            return held
        decision = RULES[type(command)](state, command, context)
        if isinstance(decision, Accepted):
            if decision.state is state:
                return decision
            assert decision.state.epoch == state.epoch, "the epoch belongs to the fold"
            assert decision.state.history is state.history, "the history belongs to the fold"
            if state.recoveries:
                decision = Accepted(by_log_or_digest(state, decision.state, context))
            return too_many(state, decision.state) or too_large(state, decision.state, command) or decision
        return decision
    except Exception as defect:
        return Rejected(DEFECT, f"{type(command).__name__}: {type(defect).__name__}: {defect}")

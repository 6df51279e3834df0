"""From a command to its decision.

Every rule is a pure function ``decide_…(state, command, context) -> Decision`` of a family module; the class of its
second argument says which command it decides. Rules check the command's own fields first (code ``bad_field``), then
what they need of the state, and only then make the next state. What that makes larger than readers can carry is
refused here, for all of them (``kernel.carried``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, get_type_hints

from ringlog.kernel.carried import too_large
from ringlog.kernel.commands import (
    cdc,
    cdc_clock,
    cdc_expiry,
    cluster,
    keyspaces,
    movements,
    nodes,
    operations,
    schema,
    user_types,
)
from ringlog.kernel.commands import model as m
from ringlog.kernel.counts import too_many
from ringlog.kernel.outcome import Accepted, Context, Decision, Rejected
from ringlog.kernel.state import ClusterState

Rule = Callable[[ClusterState, Any, Context], Decision]

FAMILIES: Final = (
    cluster,
    nodes,
    operations,
    movements,
    keyspaces,
    schema,
    user_types,
    cdc,
    cdc_clock,
    cdc_expiry,
)
"""The modules whose ``decide_`` functions are the rules."""


def _rules() -> dict[type[m.Command], Rule]:
    """The rules by the class of their second argument."""
    found: dict[type[m.Command], Rule] = {}
    for family in FAMILIES:
        for name, rule in sorted(vars(family).items()):
            if name.startswith("decide_") and rule.__module__ == family.__name__:
                _, kind, *_ = get_type_hints(rule).values()
                assert kind not in found, f"{kind.__name__} has one rule"
                found[kind] = rule
    return found


RULES: Final = _rules()

assert RULES.keys() == set(m.COMMANDS.values()), "each command has a rule"

DEFECT: Final = "broken_rule"
"""The code of a decision that failed: an author answers it as a rejection, a fold halts on it."""


def decide(state: ClusterState, command: m.Command, context: Context) -> Decision:
    """What ``command`` does to ``state``; never raises.

    A rule that raises has a defect. Who authors must survive it, or one request could stop every validator that reads
    it, so it becomes a rejection (code ``broken_rule``): nothing is appended.
    """
    try:
        decision = RULES[type(command)](state, command, context)
        if isinstance(decision, Accepted):
            assert decision.state.epoch == state.epoch, "the epoch belongs to the fold"
            assert decision.state.history is state.history, "the history belongs to the fold"
            return too_many(state, decision.state) or too_large(state, decision.state, command) or decision
        return decision
    except Exception as defect:
        return Rejected(DEFECT, f"{type(command).__name__}: {type(defect).__name__}: {defect}")

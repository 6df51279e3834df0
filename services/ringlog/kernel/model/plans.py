"""Staged plans: named lists of commands that wait in the state until they are approved, rejected or expired.

A plan is identified by its name and the epoch that staged it. So an approval never counts for a later plan of the same
name. ``kernel.plans`` has the effect of a plan, ``kernel.commands.control.plans`` the commands.

Invariants: the state has at most ``PLANS_MAX`` plans, and at most ``PLANS_BYTES_MAX`` bytes of their commands.

Source: CEP-21, "stage complex sequences of events, present them, enable them to review and approve or reject them".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final

from ringlog.kernel.model.state_section import WHOLE, StateSection
from ringlog.kernel.values import Epoch, Micros, Value

PLANS_MAX: Final = 32
COMMANDS_MAX: Final = 16
"""The most commands of one plan: an approval decides each of them twice before the next entry."""
PLANS_BYTES_MAX: Final = 2 * 1024 * 1024
"""The most bytes of the commands of all plans. The largest command, a ForceState, has a quarter of it."""

DANGEROUS: Final = (
    *("Assassinate", "DropKeyspace", "EnterRecovery", "ForceState", "GrantRole", "RecordArchive", "RequireApprovals"),
    "TruncateLog",
)
"""The commands that may need an approval (``Command.DANGEROUS``); RecordArchive only with epoch 0."""
ALWAYS: Final = ("ForceState", "GrantRole", "RequireApprovals")
"""The commands that need an approval if any command does."""
assert {*ALWAYS} < {*DANGEROUS}, "each of them may need an approval"


class PlannedCommand(Value):
    """A command of a plan."""

    kind: Annotated[str, "Name of the command."]
    data: Annotated[bytes, "Canonical bytes of the command, as in the digest of a state."]


class StagedPlan(Value):
    """A plan that waits for its approval. ``author``: the principal that staged it, with the epoch ``staged``.

    ``expires_at``: its approval needs an earlier state time. ``effect``: the digest of its effect at ``staged``.
    """

    name: str
    commands: tuple[PlannedCommand, ...]
    author: str
    staged: Epoch
    expires_at: Micros
    effect: str = ""


def principal_in(submitter: str) -> str:
    """Return the name in a submitter. The text may also have machine, program and person (``wire.senders``)."""
    return submitter.partition(" ")[0]


PLANS: Final = StateSection(
    "plans",
    StagedPlan,
    hidden={"commands": "are binary: `ringlog plan show` prints them"},
    unpublished={WHOLE: "only operators use them, and they fold the log"},
    most=(PLANS_MAX, "plans"),
)
APPROVALS: Final = StateSection(
    "approvals", int, unpublished={WHOLE: "only validators and operators use them, and they fold the log"}
)
"""Kind of command to the epoch since which it needs an approval."""


def plans_size(plans: Iterable[StagedPlan]) -> int:
    """Return the bytes of the commands of these plans."""
    return sum([len(one.data) for plan in plans for one in plan.commands])

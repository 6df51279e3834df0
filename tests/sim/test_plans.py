"""Authors and approvers of plans in random order, with others who change, revoke, demand and wait.

The validator decides the requests in batches. The states of the log decide afterwards, without ``kernel.plans``. An
applied plan had another entitled approver if the cluster demanded one. It was not expired. It had the effect that the
same commands had at its staging.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from ringlog.kernel.commands.cluster.cluster import ChangeSettings, Noop
from ringlog.kernel.commands.control.pauses import PauseChanges, ResumeChanges
from ringlog.kernel.commands.control.plans import ApprovePlan, RejectPlan, RequireApprovals, StagePlan
from ringlog.kernel.commands.control.principals import CreatePrincipal, GrantRole, RevokePrincipal, RevokeRole
from ringlog.kernel.commands.control.recovery import EnterRecovery, LeaveRecovery
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace, DropKeyspace
from ringlog.kernel.fold import decide, fold
from ringlog.kernel.invariants.check import violations
from ringlog.kernel.model.outcome import Accepted, Entry, EntryContext
from ringlog.kernel.model.principals import ADMIN, FIRST_KEY, FOUNDING_KEY, OPERATOR
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.plans import planned
from ringlog.kernel.values import SECOND_US, Command, Replication, replace
from ringlog_sim.mutants.plant import Mutant, planted
from tests.kernel.entries import node
from tests.sim.test_validator_senders import Cluster

PEOPLE = {"ann": ADMIN, "bob": ADMIN, "cat": ADMIN, "ops": OPERATOR}
NAMES = ("p", "q")
DANGEROUS = (DropKeyspace, EnterRecovery, GrantRole, RequireApprovals)
STEPS = 40
SEEDS = range(40)
SIMPLE = Replication("simple", 1)


def a_cluster() -> Cluster:
    """Return a cluster with three admins, an operator and a normal node."""
    made = Cluster()
    made.direct(node(1))
    (one,) = made.state.nodes.values()
    made.state = replace(
        made.state,
        nodes=made.state.nodes.set(one.id, replace(one, state="normal", tokens=(1,))),
        token_owners=made.state.token_owners.set(1, one.id),
    )
    for name, role in PEOPLE.items():
        number = FIRST_KEY if name != "ann" else FOUNDING_KEY
        assert made.code(made.sign(CreatePrincipal(name, role), "ann", number)) == "applied"
    return made


def a_command(draw: Random) -> Command:
    """Return a command that operators or admins send."""
    keyspace = draw.choice("ab")
    return draw.choice(
        [
            CreateKeyspace(keyspace, SIMPLE),
            *[DropKeyspace(keyspace)] * 2,
            ChangeSettings((("operations_kept_max", draw.randint(1, 3)),)),
            ChangeSettings((("zone_moves_max", draw.randint(1, 2)),)),
            PauseChanges((draw.choice(["splits", "repairs"]),), reason=draw.choice(["x", "y"])),
            ResumeChanges(("splits",)),
            EnterRecovery("lost", "ann"),
            LeaveRecovery("found", "ann"),
            GrantRole(draw.choice([*PEOPLE]), draw.choice([ADMIN, OPERATOR])),
            RequireApprovals(draw.choice([(), ("DropKeyspace",), ("DropKeyspace", "EnterRecovery")])),
        ]
    )


@dataclass
class Staged:
    """A staged plan as the test knows it: its commands, its author, and the differences that they made then."""

    commands: tuple[Command, ...]
    author: str
    changes: dict[tuple[str, str], Any]


class World:
    """A cluster, the plans that were staged, and the checks of each applied entry."""

    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)
        self.cluster = a_cluster()
        self.staged: dict[tuple[str, int], Staged] = {}
        self.seen: Counter[str] = Counter()

    def run(self) -> None:
        for _ in range(STEPS):
            asked = [self.request() for _ in range(self.draw.randint(1, 5))]
            first, before = len(self.cluster.applied), self.cluster.state
            results = self.cluster.answer(*[self.cluster.sign(command, by) for by, command in asked])
            for entry in self.cluster.applied[first:]:
                after = fold(before, entry).state
                assert violations(after, before) == ()
                self.check(before, entry, after)
                before = after
            assert before is self.cluster.state or before == self.cluster.state
            for (_, command), result in zip(asked, results, strict=True):
                self.seen[f"{type(command).__name__} {result.code or result.outcome}"] += 1
            self.cluster.now += self.draw.choice([0, 1, 20, 70]) * SECOND_US

    def request(self) -> tuple[str, Command]:
        """Return a sender and its command."""
        draw, state = self.draw, self.cluster.state
        by = draw.choice([*PEOPLE])
        name = draw.choice(NAMES)
        known = state.plans.get(name)
        old = [epoch for plan, epoch in self.staged if plan == name]
        epoch = draw.choice(old) if old and draw.random() < 0.4 else known.staged if known is not None else 0
        if draw.random() < 0.35:
            return by, ApprovePlan(name, epoch)
        commands = tuple(a_command(draw) for _ in range(draw.choice([1, 1, 2, 2, 3])))
        others: list[Command] = [
            *[StagePlan(name, tuple(map(planned, commands)), draw.choice([60, 60, 600]))] * 6,
            *[a_command(draw), Noop()] * 2,
            RejectPlan(name, epoch),
        ]
        if draw.random() < 0.15:
            others += [RevokeRole(by, ADMIN), RevokePrincipal(draw.choice([*PEOPLE]))] * 4
        return by, draw.choice(others)

    def check(self, before: ClusterState, entry: Entry, after: ClusterState) -> None:
        """Check an applied entry with the states around it."""
        command, by = entry.command, entry.submitter
        if isinstance(command, StagePlan):
            commands = tuple(one for one in map(self.command_of, command.commands))
            done = one_by_one(before, commands)
            assert done is not None, "a plan is staged only if all of its commands apply"
            self.staged[command.plan, after.epoch] = Staged(commands, by, differences(before, done))
        elif isinstance(command, ApprovePlan):
            self.check_approval(before, command, entry, after)
        elif before.approvals and isinstance(command, DANGEROUS):
            kinds = {*before.approvals, "GrantRole", "RequireApprovals"}
            assert type(command).__name__ not in kinds, f"{command} was applied without an approval"

    def check_approval(self, before: ClusterState, command: ApprovePlan, entry: Entry, after: ClusterState) -> None:
        plan = before.plans[command.plan]
        assert plan.staged == command.staged, "the approval is for this plan"
        known = self.staged[command.plan, command.staged]
        assert command.plan not in after.plans
        assert max(before.time, entry.at) < plan.expires_at, "the plan has not expired"
        done = one_by_one(before, known.commands)
        assert done is not None, "each of the commands applies"
        made = differences(before, after)
        assert made == differences(before, done), "the plan applies as a whole"
        assert made == known.changes, "the effect is that of the staging"
        for name in (known.author, entry.submitter):
            held = {grant.role for grant in before.principals[name].roles}
            needed = {role for one in known.commands for role in one.NEEDS if len(one.NEEDS) == 1}
            assert ADMIN in held or needed <= held, f"{name} has the roles"
        demanded = {*before.approvals, "GrantRole", "RequireApprovals"} if before.approvals else set()
        if demanded & {type(one).__name__ for one in known.commands}:
            assert entry.submitter != known.author, "author and approver differ"
            self.seen["approved by another"] += 1

    @staticmethod
    def command_of(one: Any) -> Command:
        """Return the command with these bytes, by comparison with the drawn ones: the decoder is not used."""
        return BY_BYTES[one.kind, one.data]


def _all_commands() -> list[Command]:
    draw = Random(0)
    return [a_command(draw) for _ in range(4_000)]


BY_BYTES = {(planned(one).kind, planned(one).data): one for one in _all_commands()}


def one_by_one(state: ClusterState, commands: tuple[Command, ...]) -> ClusterState | None:
    """Return the state after the commands, or None if one is rejected."""
    context = EntryContext(state.epoch + 1, "ffffffff-ffff-7fff-bfff-fffffffffff0", state.time)
    for command in commands:
        decided = decide(state, command, context)
        if not isinstance(decided, Accepted):
            return None
        state = decided.state
    return state


def differences(before: ClusterState, after: ClusterState) -> dict[tuple[str, str], Any]:
    """Return the changed items of the sections that the test's commands change, without epochs of this entry."""
    shown: dict[str, Callable[[Any], Any]] = {
        "settings": lambda value: value,
        "keyspaces": lambda one: one.name,
        "pauses": lambda one: one.reason,
        "principals": lambda one: one.roles,
        "approvals": lambda _: True,
        "recoveries": lambda one: one.left is None,
    }
    found = {}
    for section, show in shown.items():
        old, new = getattr(before, section), getattr(after, section)
        for key in {*old, *new}:
            if old.get(key) != new.get(key):
                gone = old.get(key)
                identity = getattr(gone, "made", None)
                name = "new" if section == "recoveries" and gone is None else key
                found[section, name] = identity, None if key not in new else show(new[key])
    return found


def exercise(seeds: range) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in seeds:
        world = World(seed)
        world.run()
        seen += world.seen
    return seen


def test_each_plan_is_approved_by_others_and_has_the_effect_of_its_staging() -> None:
    seen = exercise(SEEDS)
    for expected in (
        *("StagePlan applied", "StagePlan plan_exists", "StagePlan not_authorized", "approved by another"),
        *("ApprovePlan applied", "ApprovePlan approval_needed", "ApprovePlan plan_changed", "ApprovePlan plan_expired"),
        *(
            "ApprovePlan not_authorized",
            "ApprovePlan unknown_plan",
            "RejectPlan applied",
            "DropKeyspace approval_needed",
        ),
    ):
        assert seen[expected] > 0, (expected, seen)


KNOWN, WITH, APPLY = (
    "ringlog.kernel.commands.control.plans:_known",
    "ringlog.kernel.plans:with_plan",
    "ringlog.kernel.commands.control.plans:decide_approve_plan",
)
PLANTED = [
    Mutant("approval_of_another_plan", KNOWN, "plan.staged != staged", "False", "an approval counts for each plan", 1),
    Mutant(
        "author_approves",
        WITH,
        'principal_in(context.submitter) in ("", plan.author)',
        'context.submitter == ""',
        "the author of a plan approves it",
        1,
    ),
    Mutant("expired_plan", APPLY, "context.time >= plan.expires_at", "False", "an expired plan is applied", 1),
    Mutant(
        "half_a_plan",
        "ringlog.kernel.plans:_applied",
        'return Rejected(decided.code, f"commands, {number + 1} of {len(commands)}: {decided.detail}")',
        "return Accepted(state)",
        "the commands before a rejected one apply",
        1,
    ),
    Mutant("other_effect", WITH, "effect_digest(effect) != plan.effect", "False", "a plan has another effect", 1),
    Mutant(
        "other_item",
        "ringlog.kernel.plans:_difference",
        "tuple(getattr(old, name) for name in _IDENTITY if hasattr(old, name))",
        "()",
        "a plan changes another item of the same name",
        1,
    ),
    Mutant(
        "author_without_role",
        "ringlog.kernel.authorization:authorize",
        "None if lost is None else Rejected('not_authorized', f'author of the plan: {lost.detail}')",
        "None",
        "the plan of a revoked author is applied",
        1,
    ),
    Mutant(
        "direct_command",
        "ringlog.kernel.authorization:authorize",
        "any(needs_approval(state, one) for one in commands)",
        "False",
        "a dangerous command needs no plan",
        1,
    ),
    Mutant(
        "approver_without_role",
        "ringlog.kernel.authorization:commands_of",
        "isinstance(command, PLAN_COMMANDS)",
        "isinstance(command, StagePlan)",
        "the roles of an approver are not checked",
        1,
    ),
]
"""Bugs that ``exercise`` finds."""


@pytest.mark.parametrize("mutant", PLANTED, ids=[mutant.name for mutant in PLANTED])
def test_a_planted_bug_is_found(mutant: Mutant) -> None:
    with planted(mutant), pytest.raises(AssertionError):
        exercise(SEEDS)

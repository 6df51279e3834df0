"""Plans: stored commands that apply together, with the effect of their staging, and after a needed approval."""

from __future__ import annotations

import random

import pytest
from immutables import Map

from ringlog.kernel.authorization import authorize
from ringlog.kernel.commands.cdc.clock import LowerSettledTime
from ringlog.kernel.commands.cdc.verdicts import SettleVerdicts
from ringlog.kernel.commands.cdc.writers import AdvanceCdcWriter, FenceCdcWriter, RegisterCdcWriter
from ringlog.kernel.commands.cluster.cluster import ChangeSettings, InitializeCluster, Noop
from ringlog.kernel.commands.cluster.snapshots import TakeSnapshot
from ringlog.kernel.commands.cluster.truncation import RecordArchive, TruncateLog
from ringlog.kernel.commands.control.pauses import PauseChanges, ResumeChanges
from ringlog.kernel.commands.control.plans import (
    LIFETIME_MAX_S,
    LIFETIME_MIN_S,
    ApprovePlan,
    RejectPlan,
    RequireApprovals,
    StagePlan,
)
from ringlog.kernel.commands.control.principals import CreatePrincipal, GrantRole, RevokePrincipal, RevokeRole
from ringlog.kernel.commands.control.recovery import EnterRecovery, ForcedPart, ForceState, LeaveRecovery
from ringlog.kernel.commands.schema.batch import SchemaBatch, statement_of
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace, DropKeyspace
from ringlog.kernel.commands.schema.tables import AlterTable, DropTable
from ringlog.kernel.commands.topology.movements import Join, Leave
from ringlog.kernel.commands.topology.nodes import UpdateNode
from ringlog.kernel.encoding.decoder import decode_record, decode_state
from ringlog.kernel.encoding.encoder import digest, encode
from ringlog.kernel.fold import decide, fold
from ringlog.kernel.invariants.check import violations
from ringlog.kernel.model.outcome import Accepted, EntryContext, Outcome, OutcomeKind, Rejected
from ringlog.kernel.model.plans import COMMANDS_MAX, DANGEROUS, PLANS_BYTES_MAX, PlannedCommand
from ringlog.kernel.model.principals import ADMIN, OPERATOR
from ringlog.kernel.model.state import PARTS, ClusterState
from ringlog.kernel.operations.stages import in_flight
from ringlog.kernel.plans import PLANNABLE, ChangedItem, effect_of, planned
from ringlog.kernel.registry import COMMANDS
from ringlog.kernel.values import SECOND_US, Column, Command, Position, Replication, replace
from tests.fuzz.world import story
from tests.kernel.entries import (
    NODES,
    SEED,
    TABLE,
    applied,
    entry,
    founded,
    node,
    random_command,
    uuid,
    with_normal_nodes,
)

KEYSPACE = CreateKeyspace("ks", Replication("simple", 1))
DROP = DropKeyspace("ks")
WIDER = AlterTable("ks", "t", (Column("w", "int"),))


def ready() -> ClusterState:
    """Return a cluster with the normal node ``n1``."""
    return with_normal_nodes(founded(), 1)


def plan(*commands: Command, name: str = "p", **options: int) -> StagePlan:
    return StagePlan(name, tuple(map(planned, commands)), **options)


def tried(
    state: ClusterState, command: Command, by: str = "ann", at: int | None = None
) -> tuple[ClusterState, Outcome]:
    """Return the state after a command of this submitter, and the outcome."""
    made = entry(state, command, submitter=by) if at is None else entry(state, command, submitter=by, at=at)
    folded = fold(state, made)
    return folded.state, folded.outcome


def code(state: ClusterState, command: Command, by: str = "ann", at: int | None = None) -> str:
    return tried(state, command, by, at)[1].code


def staged(state: ClusterState, *commands: Command, by: str = "ann", name: str = "p") -> ClusterState:
    after, outcome = tried(state, plan(*commands, name=name), by)
    assert outcome.kind is OutcomeKind.APPLIED, outcome
    return after


def approval(state: ClusterState, name: str = "p") -> ApprovePlan:
    return ApprovePlan(name, state.plans[name].staged)


def approved(state: ClusterState, by: str = "bob") -> ClusterState:
    after, outcome = tried(state, approval(state), by)
    assert outcome.kind is OutcomeKind.APPLIED, outcome
    return after


def admins(*kinds: str) -> ClusterState:
    """Return a cluster with two admins and an operator that demands approvals for these commands."""
    people = (CreatePrincipal("ann", ADMIN), CreatePrincipal("bob", ADMIN), CreatePrincipal("ops", OPERATOR))
    return applied(ready(), *people, KEYSPACE, RequireApprovals(kinds))


# ------------------------------------------------------------------------------------------------ stage and apply


def test_all_commands_of_a_plan_apply_in_one_entry() -> None:
    state = staged(ready(), KEYSPACE, TABLE, WIDER)
    assert (state.plans["p"].author, state.plans["p"].staged, "ks" in state.keyspaces) == ("ann", state.epoch, False)
    after = approved(state)
    assert (after.epoch, len(after.plans), *after.tables) == (state.epoch + 1, 0, "ks.t")
    assert [column.name for column in after.tables["ks.t"].columns][-1] == "w"
    assert violations(after, state) == ()


def test_another_machine_or_person_of_the_author_is_not_another_principal() -> None:
    author = "ann host=ws1 client=ringlog/1"
    state = staged(admins("DropKeyspace"), DROP, by=author)
    assert state.plans["p"].author == "ann"
    for by in ("ann", author, "ann host=ws2", "ann host=ws1 on_behalf=bob"):
        assert code(state, approval(state), by) == "approval_needed"
    assert "ks" not in approved(state, by="bob host=ws1 client=ringlog/1").keyspaces


def test_a_plan_has_no_text_that_the_log_cannot_have() -> None:
    """A change with a lone surrogate could never be published."""
    odd = PlannedCommand("CreateKeyspace", encode(CreateKeyspace("\ud800", KEYSPACE.replication)))
    assert code(ready(), StagePlan("p", (odd,))) == "undecodable"
    state = applied(ready(), EnterRecovery("r", "o"))
    known = applied(ready(), KEYSPACE).keyspaces
    forced = ForcedPart("keyspaces", encode(known.set("ks", replace(known["ks"], name="\ud800"))))
    assert code(state, ForceState("r", "o", (forced,))) == "state_undecodable"


def test_a_plan_takes_no_snapshot() -> None:
    """A snapshot begins right after an entry with TakeSnapshot."""
    assert code(ready(), plan(TakeSnapshot())) == "bad_field"


def test_a_plan_from_before_its_authors_principal_is_not_approved() -> None:
    """Without principals, an author is a claim."""
    state = applied(ready(), KEYSPACE)
    state = applied(staged(state, DROP, by="bob"), CreatePrincipal("ann", ADMIN), CreatePrincipal("bob", ADMIN))
    refused = authorize(state, "ann", approval(state))
    assert refused is not None
    assert (refused.code, "became a principal after it" in refused.detail) == ("not_authorized", True)


def test_no_recovery_without_principals_creates_some() -> None:
    forced = ForceState("r", "o", (ForcedPart("principals", b""),))
    for command in (forced, plan(forced)):
        refused = authorize(ready(), "", command)
        assert refused is not None
        assert refused.code == "not_authenticated"


def test_a_plan_applies_as_a_whole_or_not_at_all() -> None:
    state = staged(ready(), KEYSPACE, TABLE)
    state = applied(state, KEYSPACE)
    after, outcome = tried(state, approval(state))
    assert (outcome.kind, outcome.code) == (OutcomeKind.REFUSED, "keyspace_exists")
    assert outcome.detail.startswith("commands, 1 of 2: ")
    assert after is state
    assert code(ready(), plan(KEYSPACE, DropTable("ks", "t"))) == "unknown_table"


def test_operations_of_one_plan_have_different_ids() -> None:
    before = staged(applied(founded(), node(1), node(2)), *(Join(NODES[at], (at,), SEED) for at in range(2)))
    state = approved(before)
    assert [operation.id for operation in in_flight(state)] == [f"join-{state.epoch}", f"join-{state.epoch}-1"]
    assert violations(state) == ()
    assert decode_state(encode(state)) == state


def test_a_plan_of_one_command_has_the_result_of_the_command() -> None:
    """Try each operator command of the example cluster on the state before it."""
    seen = set()
    for step in story().steps:
        command = step.encoded.entry.command
        if type(command).__name__ not in PLANNABLE or not isinstance(command, Command):
            continue
        seen.add(type(command))
        assert decode_record(type(command), encode(command)) == command
        given = step.encoded.entry
        context = EntryContext(step.after.epoch, given.state_id, step.after.time, "ann")
        alone = decide(step.before, command, context)
        kept = decide(step.before, plan(command), context)
        assert isinstance(kept, Accepted)
        done = decide(kept.state, approval(kept.state), replace(context, submitter="bob"))
        assert isinstance(alone, Accepted)
        assert isinstance(done, Accepted), done
        names = [name for name in PARTS if name != "plans"]
        assert [getattr(done.state, name) for name in names] == [getattr(alone.state, name) for name in names]
    assert len(seen) > 50


@pytest.mark.parametrize("seed", range(4))
def test_random_plans_keep_the_invariants(seed: int) -> None:
    draw, state, done = random.Random(seed), with_normal_nodes(founded(), 2), 0
    for _ in range(120):
        if draw.random() < 0.6:
            state = fold(state, entry(state, random_command(draw, state))).state
            continue
        commands, trial, wanted = [], state, draw.randint(1, 5)
        for _ in range(40):
            command = random_command(draw, trial)
            after = fold(trial, entry(trial, command))
            if type(command).__name__ in PLANNABLE and after.outcome.kind is OutcomeKind.APPLIED:
                commands.append(command)
                trial = after.state
            if len(commands) == wanted:
                break
        kept, outcome = tried(state, plan(*commands))
        assert outcome.code != "broken_rule", outcome
        if outcome.kind is OutcomeKind.APPLIED:
            after_plan = approved(kept)
            assert violations(after_plan, kept) == ()
            state, done = after_plan, done + 1
    assert done > 10


# ------------------------------------------------------------------------------------------------ the same effect


def test_a_plan_stays_valid_while_others_change_the_rest() -> None:
    busy = applied(ready(), KEYSPACE, TABLE, RegisterCdcWriter("w", uuid(1, space=5)))
    writer = busy.writers["w"]
    state = staged(busy, WIDER, UpdateNode(NODES[0], capacity=7), by="ann")
    more = AdvanceCdcWriter("w", writer.incarnation, writer.horizon + 9, writer.horizon, (Position(0, 5),))
    other = (ChangeSettings((("ranges_max", 60_000),)), UpdateNode(NODES[0], address="127.0.0.1:9"), node(2), Noop())
    after = approved(applied(state, more, *other))
    assert (after.nodes[NODES[0]].capacity, after.nodes[NODES[0]].address) == (7, "127.0.0.1:9")


def test_a_fence_stays_valid_while_the_writer_advances() -> None:
    state = applied(ready(), RegisterCdcWriter("w", uuid(1, space=5)))
    writer = state.writers["w"]
    state = staged(state, FenceCdcWriter("w", writer.incarnation, (Position(0, 9),), "gone"))
    state = applied(state, AdvanceCdcWriter("w", writer.incarnation, writer.horizon + 9, writer.horizon, ()))
    assert approved(state).writers["w"].fenced == state.epoch + 1


def test_the_validation_watermark_changes_no_effect() -> None:
    state = applied(ready(), KEYSPACE, TABLE, SettleVerdicts(1_000))
    for change in (ChangeSettings((("cdc_leeway_us", 7),)), WIDER, DropTable("ks", "t")):
        approved(applied(staged(state, change), SettleVerdicts(2_000)))
    lower = LowerSettledTime(900, "a clock was ahead")
    assert approved(applied(staged(state, lower), SettleVerdicts(2_000))).settled.until == 900


@pytest.mark.parametrize(
    "between",
    [
        [DropTable("ks", "t"), replace(TABLE, id=uuid(77, space=4))],
        [AlterTable("ks", "t", (Column("x", "int"),))],
    ],
)
def test_a_plan_with_another_effect_is_not_carried_out(between: list[Command]) -> None:
    state = staged(applied(ready(), KEYSPACE, TABLE), WIDER)
    state = applied(state, *between)
    after, outcome = tried(state, approval(state))
    assert (outcome.code, after is state) == ("plan_changed", True)
    assert "ringlog plan show p" in outcome.detail


def test_a_keyspace_of_the_same_name_is_another_one() -> None:
    state = staged(applied(ready(), KEYSPACE), DROP)
    assert code(applied(state, DROP, KEYSPACE), approval(state)) == "plan_changed"


def test_an_effect_names_items_and_fields() -> None:
    state = applied(ready(), KEYSPACE)
    found = effect_of(state, (UpdateNode(NODES[0], capacity=7), DROP), decide)
    assert not isinstance(found, Rejected)
    identity = NODES[0], state.nodes[NODES[0]].registered
    assert ChangedItem("nodes", NODES[0], "changed", (("capacity", 7),), identity) in found
    assert {(one.section, one.key, one.change) for one in found} >= {("keyspaces", "ks", "removed")}


# --------------------------------------------------------------------------------------------------- the life of a plan


def test_a_plan_is_identified_by_its_epoch() -> None:
    """An approval that was meant for an earlier plan of this name does not count."""
    state = staged(ready(), KEYSPACE)
    old = approval(state)
    state = applied(state, RejectPlan("p", old.staged, "wrong"))
    assert code(state, old) == "unknown_plan"
    state = staged(state, KEYSPACE, TABLE)
    assert code(state, old) == "plan_changed"
    assert code(state, RejectPlan("p", old.staged)) == "plan_changed"


def test_a_waiting_plan_keeps_its_name() -> None:
    state = staged(ready(), KEYSPACE)
    assert code(state, plan(Noop())) == "plan_exists"


def test_a_plan_expires_in_state_time() -> None:
    start = ready().time + 1_000
    state = tried(ready(), plan(KEYSPACE, lifetime_s=60), at=start)[0]
    end = state.plans["p"].expires_at
    assert end == start + 60 * SECOND_US
    assert code(state, approval(state), at=end - 1) == ""
    assert code(state, approval(state), at=end) == "plan_expired"
    late, _ = tried(state, Noop(), at=end)
    assert code(late, approval(state), at=5) == "plan_expired"
    again, outcome = tried(late, plan(Noop()), at=5)
    assert outcome.kind is OutcomeKind.APPLIED, "an expired plan does not keep its name"
    assert again.plans["p"].staged == again.epoch
    other, _ = tried(late, plan(Noop(), name="q"))
    assert [*other.plans] == ["q"]


@pytest.mark.parametrize(
    ("command", "found"),
    [
        (plan(Noop(), name="a b"), "bad_field"),
        (plan(), "bad_field"),
        (plan(*[Noop()] * 2), "bad_field"),
        (plan(*[TABLE] * (COMMANDS_MAX + 1)), "bad_field"),
        (plan(Noop(), lifetime_s=LIFETIME_MIN_S - 1), "bad_field"),
        (plan(Noop(), lifetime_s=LIFETIME_MAX_S + 1), "bad_field"),
        (plan(plan(Noop())), "bad_field"),
        (plan(ApprovePlan("p", 1)), "bad_field"),
        (plan(InitializeCluster("c")), "bad_field"),
        (plan(SettleVerdicts(1)), "bad_field"),
        (plan(GrantRole("ops", ADMIN), RevokeRole("ops", OPERATOR)), "bad_field"),
        (plan(EnterRecovery("lost", "ann"), LeaveRecovery("found", "ann")), "in_recovery"),
        (plan(RevokePrincipal("ann"), RevokePrincipal("bob")), "admin_needed"),
        (StagePlan("p", (PlannedCommand("Noop", b""),)), "undecodable"),
        (StagePlan("p", (PlannedCommand("Noop", encode(DROP)),)), "undecodable"),
        (StagePlan("p", (PlannedCommand("DropKeyspace", encode(DROP) + b"N0:"),)), "undecodable"),
        (StagePlan("p", (PlannedCommand("Nothing", b""),)), "bad_field"),
        (RejectPlan("p", 1), "unknown_plan"),
        (RejectPlan("p", 1, "x" * 501), "bad_field"),
        (ApprovePlan("", 0), "unknown_plan"),
        (RequireApprovals(("Join",)), "bad_field"),
        (RequireApprovals(("TruncateLog", "DropKeyspace")), "bad_field"),
    ],
)
def test_plans_have_rules(command: Command, found: str) -> None:
    assert code(admins(), command) == found


def test_plans_have_bounded_bytes() -> None:
    force = ForceState("lost", "ann", (ForcedPart("pauses", bytes(500_000)),))
    state = applied(ready(), CreateKeyspace("a", Replication("simple", 1)))
    large = replace(TABLE, keyspace="a", partition_key=("x" * 140_000,))
    many = tuple(planned(replace(large, name=f"t{at}")) for at in range(15))
    assert sum(len(one.data) for one in many) > PLANS_BYTES_MAX > 4 * len(encode(force))
    assert code(state, StagePlan("p", many)) == "too_large"


def test_a_pause_holds_the_commands_of_a_plan() -> None:
    state = staged(ready(), KEYSPACE)
    state = applied(state, PauseChanges(("schema",)))
    assert code(state, approval(state)) == "changes_paused"
    assert code(state, plan(TABLE, name="q")) == "changes_paused"
    approved(applied(state, ResumeChanges(("schema",))))


def test_a_plan_enters_a_recovery_and_forces_the_state() -> None:
    state = applied(founded(), PauseChanges(("splits",)))
    force = ForceState("lost", "ann", (ForcedPart("pauses", b""),))
    state = staged(state, EnterRecovery("lost", "ann"), force)
    after = approved(state)
    assert len(after.pauses) == 0
    assert violations(after) == ()
    assert code(after, plan(ForceState("lost", "ann", (ForcedPart("plans", b""),)))) == "bad_field"


# ------------------------------------------------------------------------------------------------------- approvals


def test_the_dangerous_commands_declare_it() -> None:
    assert {name for name, kind in COMMANDS.items() if kind.DANGEROUS} == {*DANGEROUS}


def test_a_demanded_approval_comes_from_another_principal() -> None:
    state = staged(admins("DropKeyspace"), DROP)
    assert code(state, approval(state), by="ann") == "approval_needed"
    assert code(state, approval(state), by="") == "approval_needed"
    assert "ks" not in approved(state, by="bob").keyspaces
    batch = staged(admins("DropKeyspace"), SchemaBatch((statement_of(DROP),)))
    assert code(batch, approval(batch), by="ann") == "approval_needed"


def test_an_author_applies_its_own_plan_without_a_demand() -> None:
    assert "ks" not in approved(staged(admins(), DROP), by="ann").keyspaces
    assert "ks" not in approved(staged(admins("TruncateLog"), DROP), by="ann").keyspaces


def test_the_demand_counts_at_the_approval() -> None:
    state = staged(admins(), DROP)
    assert code(applied(state, RequireApprovals(("DropKeyspace",))), approval(state), by="ann") == "approval_needed"
    state = staged(admins("DropKeyspace"), DROP)
    assert code(applied(state, RequireApprovals(())), approval(state), by="ann") == ""


def refused(state: ClusterState, principal: str, command: Command) -> str:
    found = authorize(state, principal, command)
    return "" if found is None else found.code


def test_a_dangerous_command_is_refused_outside_a_plan() -> None:
    state = admins("DropKeyspace", "RecordArchive")
    found = authorize(state, "ann", DROP)
    assert found is not None
    assert found.code == "approval_needed"
    assert "ringlog plan stage" in found.detail
    always = (GrantRole("ops", ADMIN), RequireApprovals(()), ForceState("lost", "ann", ()))
    for command in (DROP, SchemaBatch((statement_of(DROP),)), RecordArchive(0, 0, ""), *always):
        assert refused(state, "ann", command) == "approval_needed"
        assert refused(state, "ann", plan(command)) == ""
        assert refused(admins(), "ann", command) == ""
    for command in (RecordArchive(1, 1, "ab" * 32), TruncateLog(1), CreatePrincipal("x", ADMIN), Leave(NODES[0])):
        assert refused(state, "ann", command) == ""


def test_an_approval_needs_the_roles_of_all_commands() -> None:
    state = applied(admins("DropKeyspace"), CreatePrincipal("shop", OPERATOR, ("ks",)))
    assert refused(state, "ops", plan(DROP)) == "not_authorized"
    assert refused(state, "shop", plan(TABLE)) == ""
    assert refused(state, "shop", plan(TABLE, replace(TABLE, keyspace="other"))) == "not_authorized"
    state = staged(state, TABLE, DropTable("ks", "t"), DROP)
    for command in (approval(state), RejectPlan("p", state.plans["p"].staged)):
        assert [refused(state, name, command) for name in ("bob", "ops", "shop", "nobody")] == [
            *("", "not_authorized", "not_authorized", "not_authenticated")
        ]


def test_a_revocation_ends_the_plans_of_its_author_and_the_approvals_of_its_principal() -> None:
    state = staged(admins("DropKeyspace"), DROP)
    for change in (RevokePrincipal("ann"), RevokeRole("ann", ADMIN)):
        assert refused(applied(state, change), "bob", approval(state)) == "not_authorized"
    assert refused(applied(state, RevokeRole("bob", ADMIN)), "bob", approval(state)) == "not_authorized"
    assert refused(applied(state, RevokePrincipal("bob")), "bob", approval(state)) == "not_authenticated"


def test_approvals_need_two_admins() -> None:
    alone = applied(ready(), CreatePrincipal("ann", ADMIN), CreatePrincipal("ops", OPERATOR))
    for state in (ready(), alone):
        assert code(state, RequireApprovals(("DropKeyspace",))) == "second_admin_needed"
        assert code(state, RequireApprovals(())) == ""


def test_a_plan_creates_no_foreign_first_admin() -> None:
    state = staged(ready(), CreatePrincipal("thief", ADMIN))
    assert refused(state, "", approval(state)) == "not_authenticated"
    assert refused(ready(), "", plan(CreatePrincipal("thief", ADMIN))) == "not_authenticated"
    assert refused(state, "thief", approval(state)) == ""


def test_the_digest_covers_plans_and_approvals() -> None:
    state = staged(admins("DropKeyspace"), DROP)
    assert decode_state(encode(state)) == state
    for section in ("plans", "approvals"):
        assert digest(replace(state, **{section: Map()})) != digest(state)

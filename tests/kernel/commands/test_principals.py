"""Principals: their commands, and the commands that each role may send."""

from __future__ import annotations

import pytest

from ringlog.kernel.authorization import authorize, authorize_rows
from ringlog.kernel.commands.cdc.writers import AdvanceCdcWriter, RegisterCdcWriter
from ringlog.kernel.commands.cluster.cluster import Noop, TakeOver
from ringlog.kernel.commands.cluster.truncation import RecordArchive, TruncateLog
from ringlog.kernel.commands.control.principals import (
    CreatePrincipal,
    GrantRole,
    RevokePrincipal,
    RevokeRole,
    RotatePrincipalKey,
)
from ringlog.kernel.commands.control.recovery import EnterRecovery, ForceState
from ringlog.kernel.commands.schema.batch import SchemaBatch, statement_of
from ringlog.kernel.commands.schema.keyspaces import AlterKeyspace, CreateKeyspace, DropKeyspace
from ringlog.kernel.commands.topology.movements import Assassinate, Join
from ringlog.kernel.commands.topology.nodes import UpdateNode
from ringlog.kernel.commands.topology.operations import AdvanceOperation
from ringlog.kernel.fold import decide, fold
from ringlog.kernel.invariants.check import violations
from ringlog.kernel.model.outcome import Accepted, EntryContext, OutcomeKind
from ringlog.kernel.model.principals import (
    ADMIN,
    AGENT,
    AGENT_NAMES,
    ANY_ROLE,
    APPLICATION,
    KEYSPACES_MAX,
    NODE,
    OPERATOR,
    PRINCIPAL_ROLES,
    Grant,
    Principal,
)
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.registry import COMMANDS
from ringlog.kernel.values import Command, Replication, replace
from ringlog.protocol.roles import ROLES
from tests.kernel.entries import NODES, SEED, TABLE, applied, entry, founded, node

ROOT = CreatePrincipal("root", ADMIN)
AGENT_KINDS = {
    *("AdvanceOperation", "AdvanceService", "AdvanceTablets", "CloseCdcGeneration", "CommitCdcGeneration"),
    *("ConfirmSnapshot", "ExpireCdcGeneration", "FinishCancel", "FinishResize", "ForgetCdcGeneration"),
    *("PublishCdcGeneration", "PutCdcGenerationData", "SetDataNodes", "SwitchStable", "TakeOver"),
}
ADMIN_KINDS = {
    *("Assassinate", "CreatePrincipal", "DropKeyspace", "EnterRecovery", "ForceState", "GrantRole"),
    *("InitializeCluster", "LeaveRecovery", "RecordArchive", "RevokePrincipal", "RevokeRole", "RotatePrincipalKey"),
    *("RequireApprovals", "TruncateLog"),
}
NODE_KINDS = {"AdvanceCdcWriter", "Join", "RegisterCdcWriter", "RegisterNode", "SettleVerdicts", "UpdateNode"}


def code(state: ClusterState, command: Command) -> str:
    """Return the code of a rejection by the fold; empty if the command applies."""
    return fold(state, entry(state, command)).outcome.code


def refused(state: ClusterState, principal: str, command: Command) -> str:
    """Return the code of a refusal of this sender; empty if the command is authorized."""
    found = authorize(state, principal, command)
    return "" if found is None else found.code


def peopled() -> ClusterState:
    """Return a cluster with one principal of each role, named as the role, and a node ``n1``."""
    others = [CreatePrincipal(role, role) for role in PRINCIPAL_ROLES if role not in (ADMIN, NODE)]
    return applied(founded(), ROOT, *others, CreatePrincipal("n1", NODE), node(1), node(2))


def sender(role: str) -> str:
    return {ADMIN: "root", NODE: "n1"}.get(role, role)


# ---------------------------------------------------------------------------------------------- the state section


def test_principals_have_roles_keys_and_epochs() -> None:
    state = applied(founded(), ROOT, CreatePrincipal("shop", OPERATOR, ("a", "b")))
    assert state.principals["root"] == Principal("root", (Grant(ADMIN),), 1, 2)
    assert state.principals["shop"] == Principal("shop", (Grant(OPERATOR, ("a", "b")),), 1, 3)
    state = applied(state, GrantRole("shop", APPLICATION), GrantRole("shop", OPERATOR, ("c",)))
    assert state.principals["shop"].roles == (Grant(APPLICATION), Grant(OPERATOR, ("c",)))
    state = applied(state, RevokeRole("shop", OPERATOR), RotatePrincipalKey("shop", 2))
    assert state.principals["shop"] == Principal("shop", (Grant(APPLICATION),), 2, 3)
    state = applied(state, RevokePrincipal("shop"))
    assert state.principals["shop"] == Principal("shop", (), 2, 3, revoked=state.epoch)
    assert violations(state) == ()


def test_a_revoked_name_is_never_used_again() -> None:
    state = applied(founded(), ROOT, CreatePrincipal("shop", OPERATOR), RevokePrincipal("shop"))
    assert code(state, CreatePrincipal("shop", OPERATOR)) == "principal_exists"
    for command in (
        GrantRole("shop", OPERATOR),
        RevokeRole("shop", OPERATOR),
        RevokePrincipal("shop"),
        RotatePrincipalKey("shop", 2),
    ):
        assert code(state, command) == "principal_revoked"
        assert code(state, replace(command, principal="nobody")) == "unknown_principal"


def test_a_cluster_with_principals_has_an_admin() -> None:
    assert code(founded(), CreatePrincipal("shop", OPERATOR)) == "admin_needed"
    state = applied(founded(), ROOT, CreatePrincipal("other", ADMIN))
    assert code(state, RevokePrincipal("other")) == ""
    alone = applied(state, RevokePrincipal("other"))
    for command in (RevokePrincipal("root"), RevokeRole("root", ADMIN)):
        assert code(alone, command) == "admin_needed"


@pytest.mark.parametrize("key", [-1, 0, 1, 3, 2**63 - 1])
def test_a_key_is_replaced_by_the_next_one_only(key: int) -> None:
    assert code(applied(founded(), ROOT), RotatePrincipalKey("root", key)) == "stale_key"


@pytest.mark.parametrize(
    ("command", "found"),
    [
        (CreatePrincipal("a b", OPERATOR), "bad_field"),
        (CreatePrincipal("coordinator-1", OPERATOR), "bad_field"),
        (CreatePrincipal("Coordinator", OPERATOR), "bad_field"),
        (CreatePrincipal("validator_2", OPERATOR), "bad_field"),
        (CreatePrincipal("keeper.db", OPERATOR), "bad_field"),
        (CreatePrincipal("keepers", OPERATOR), ""),
        (CreatePrincipal("x", "root"), "bad_field"),
        (CreatePrincipal("x", ADMIN, ("a",)), "bad_field"),
        (CreatePrincipal("x", OPERATOR, ("b", "a")), "bad_field"),
        (CreatePrincipal("x", OPERATOR, ("a", "a")), "bad_field"),
        (CreatePrincipal("x", OPERATOR, ("a-b",)), "bad_field"),
        (CreatePrincipal("x", OPERATOR, tuple(f"k{n:02}" for n in range(KEYSPACES_MAX + 1))), "bad_field"),
        (CreatePrincipal("x", OPERATOR, tuple(f"k{n:02}" for n in range(KEYSPACES_MAX))), ""),
        (CreatePrincipal("root", OPERATOR), "principal_exists"),
        (GrantRole("root", "king"), "bad_field"),
        (RevokeRole("root", OPERATOR), "role_not_granted"),
    ],
)
def test_fields_of_principals_have_rules(command: Command, found: str) -> None:
    assert code(applied(founded(), ROOT), command) == found


def test_the_names_of_agents_are_reserved() -> None:
    assert {*AGENT_NAMES} == ROLES.keys()


# --------------------------------------------------------------------------------------------------- the commands


def test_each_command_declares_the_roles_that_it_needs() -> None:
    for name, kind in COMMANDS.items():
        assert "NEEDS" in vars(kind), f"{name} declares no role"
        assert set() < {*kind.NEEDS} <= {*PRINCIPAL_ROLES}, name
    by_role = {role: {name for name, kind in COMMANDS.items() if role in kind.NEEDS} - {"Noop"} for role in ANY_ROLE}
    assert by_role[AGENT] == AGENT_KINDS | {"SettleVerdicts"}
    assert by_role[ADMIN] == ADMIN_KINDS
    assert by_role[NODE] == NODE_KINDS
    assert by_role[APPLICATION] == set()
    assert all(len(kind.NEEDS) == 1 for name, kind in COMMANDS.items() if name in AGENT_KINDS | ADMIN_KINDS)


@pytest.mark.parametrize("role", PRINCIPAL_ROLES)
def test_a_role_may_send_exactly_the_commands_of_its_row(role: str) -> None:
    state = peopled()
    allowed = {
        APPLICATION: {"Noop"},
        NODE: {"Noop", *NODE_KINDS},
        AGENT: {"Noop", "SettleVerdicts", *AGENT_KINDS},
        OPERATOR: COMMANDS.keys() - AGENT_KINDS - ADMIN_KINDS - NODE_KINDS | {"RegisterNode", "UpdateNode", "Join"},
        ADMIN: COMMANDS.keys() - AGENT_KINDS - NODE_KINDS | {"RegisterNode", "UpdateNode", "Join"},
    }
    own = {
        "RegisterNode": node(1),
        "UpdateNode": UpdateNode(NODES[0], capacity=2),
        "Join": Join(NODES[0], (1,), SEED),
        "RegisterCdcWriter": RegisterCdcWriter("n1", NODES[0]),
        "AdvanceCdcWriter": AdvanceCdcWriter("n1", NODES[0], 1, 1, ()),
        "SchemaBatch": SchemaBatch(()),
    }
    for name, kind in COMMANDS.items():
        command = own.get(name) or kind(**dict.fromkeys(kind.__struct_fields__, ""))
        assert (refused(state, sender(role), command) == "") == (name in allowed[role]), name


def test_a_node_sends_commands_about_itself_only() -> None:
    state = peopled()
    for own, other in (
        (node(1), node(3)),
        (UpdateNode(NODES[0], address="127.0.0.1:1"), UpdateNode(NODES[1], address="127.0.0.1:1")),
        (Join(NODES[0], (1,), SEED), Join(NODES[1], (1,), SEED)),
        (RegisterCdcWriter("n1", NODES[0]), RegisterCdcWriter("cdc", NODES[0])),
        (AdvanceCdcWriter("n1", NODES[0], 1, 1, ()), AdvanceCdcWriter("cdc", NODES[0], 1, 1, ())),
    ):
        assert refused(state, "n1", own) == ""
        assert refused(state, "n1", other) == "not_authorized"
    assert refused(state, "n1", UpdateNode("gone", address="127.0.0.1:1")) == "not_authorized"


def test_an_operator_with_keyspaces_changes_their_schema_only() -> None:
    state = applied(peopled(), CreatePrincipal("shop", OPERATOR, ("ks", "more")), GrantRole("application", APPLICATION))
    simple = Replication("simple", 1)
    for allowed in (TABLE, CreateKeyspace("ks", simple), AlterKeyspace("more", simple), Noop()):
        assert refused(state, "shop", allowed) == ""
    elsewhere = replace(TABLE, keyspace="other")
    for denied in (elsewhere, CreateKeyspace("other", simple), node(5), DropKeyspace("ks"), SchemaBatch(())):
        assert refused(state, "shop", denied) == "not_authorized"
    assert refused(state, "shop", SchemaBatch((statement_of(TABLE),))) == ""
    assert refused(state, "shop", SchemaBatch((statement_of(TABLE), statement_of(elsewhere)))) == "not_authorized"


def test_a_schema_batch_hides_no_command() -> None:
    batch = SchemaBatch((statement_of(TABLE), statement_of(DropKeyspace("ks"))))
    found = authorize(peopled(), OPERATOR, batch)
    assert found is not None
    assert (found.code, found.detail) == (
        "not_authorized",
        "DropKeyspace: operator needs the role admin",
    )
    assert refused(peopled(), "root", batch) == ""


@pytest.mark.parametrize(
    "command",
    [
        AdvanceOperation("join-1", "finished", ()),
        TakeOver("validator", "thief", 2),
        TruncateLog(1),
        RecordArchive(0, 0, ""),
        EnterRecovery("why", "thief"),
        ForceState("why", "thief", ()),
        Assassinate(NODES[0]),
        CreatePrincipal("thief", ADMIN),
        RotatePrincipalKey("root", 2),
    ],
)
def test_a_thief_of_an_applications_or_nodes_key_controls_nothing(command: Command) -> None:
    for name in ("application", "n1"):
        assert refused(peopled(), name, command) == "not_authorized"


def test_agents_are_principals_without_a_command() -> None:
    for name in AGENT_NAMES:
        for command in (AdvanceOperation("join-1", "finished", ()), TABLE, Noop()):
            assert refused(peopled(), name, command) == ""
        assert refused(peopled(), name, TruncateLog(1)) == "not_authorized"
    assert refused(peopled(), "coordinator-1", Noop()) == "not_authenticated"


def test_strangers_and_revoked_principals_may_send_nothing() -> None:
    state = applied(peopled(), RevokePrincipal("operator"))
    for name in ("", "stranger", "operator"):
        for command in (Noop(), node(7), ROOT):
            assert refused(state, name, command) == "not_authenticated"


def test_a_principal_without_roles_may_send_nothing() -> None:
    state = applied(peopled(), RevokeRole("operator", OPERATOR))
    assert refused(state, "operator", Noop()) == "not_authorized"


def test_a_cluster_without_principals_authorizes_everything_but_a_foreign_first_admin() -> None:
    state = founded()
    assert refused(state, "", node(1)) == ""
    assert refused(state, "root", ROOT) == ""
    for name in ("", "other"):
        assert refused(state, name, ROOT) == "not_authenticated"


@pytest.mark.parametrize(
    ("principal", "why"),
    [
        ("shop", ""),
        ("everywhere", ""),
        ("operator", "operator lacks a role: rows of the keyspace ks need the role application there"),
        ("root", "root lacks a role: rows of the keyspace ks need the role application there"),
        ("n1", "n1 lacks a role: rows of the keyspace ks need the role application there"),
        ("other", "other lacks a role: rows of the keyspace ks need the role application there"),
        ("former", "former was revoked with epoch 14; rows of the keyspace ks need the role application there"),
        ("coordinator", "coordinator is not a principal; rows of the keyspace ks need the role application there"),
        (
            "",
            "the holder of the certificate is not a principal; rows of the keyspace ks need the role application there",
        ),
    ],
)
def test_rows_need_the_role_application_in_their_keyspace(principal: str, why: str) -> None:
    state = applied(
        peopled(),
        CreatePrincipal("shop", APPLICATION, ("ks", "more")),
        CreatePrincipal("everywhere", APPLICATION),
        CreatePrincipal("other", APPLICATION, ("ks2",)),
        CreatePrincipal("former", APPLICATION),
        RevokePrincipal("former"),
    )
    former = state.principals["former"].revoked
    found = authorize_rows(state, principal, "ks")
    assert ("" if found is None else found.detail) == why.replace("epoch 14", f"epoch {former}")
    assert found is None or found.code == "not_authorized"
    assert authorize_rows(founded(), principal, "ks") is None, "a cluster without principals checks no rights"


def test_principals_change_no_decision_of_the_fold() -> None:
    """Agents write the log directly. Entries are not authorized again, so replays do not depend on roles."""
    state = peopled()
    assert fold(state, entry(state, DropKeyspace("none"), submitter="application")).outcome.code == "unknown_keyspace"
    assert fold(state, entry(state, Noop(), submitter="")).outcome.kind is OutcomeKind.APPLIED
    assert isinstance(decide(state, Noop(), EntryContext(state.epoch + 1, "s", 1)), Accepted)

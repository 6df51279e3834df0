"""Recoveries: permitted operators and commands, forced sections, and the stored record."""

from __future__ import annotations

import pytest
from immutables import Map

from ringlog.kernel.commands.cdc.verdicts import SettleVerdicts
from ringlog.kernel.commands.cluster.cluster import ChangeSettings, Noop
from ringlog.kernel.commands.cluster.service import ReconfigureService
from ringlog.kernel.commands.control.pauses import PauseChanges
from ringlog.kernel.commands.control.recovery import (
    FORCED_KEPT_MAX,
    STATE_BYTES_MAX,
    EnterRecovery,
    ForcedPart,
    ForceState,
    LeaveRecovery,
)
from ringlog.kernel.commands.schema.functions import CreateAggregate, CreateFunction
from ringlog.kernel.commands.schema.keyspaces import AlterKeyspace, CreateKeyspace
from ringlog.kernel.commands.schema.tables import AlterTable
from ringlog.kernel.commands.schema.user_types import AlterType, CreateType
from ringlog.kernel.commands.schema.views import CreateIndex, CreateView, DropIndex
from ringlog.kernel.commands.topology.movements import Join, Leave
from ringlog.kernel.encoding.encoder import digest, encode
from ringlog.kernel.fold import fold
from ringlog.kernel.invariants.check import violations
from ringlog.kernel.model.modes import Pause
from ringlog.kernel.model.outcome import OutcomeKind
from ringlog.kernel.model.state import PARTS, ClusterState
from ringlog.kernel.service import in_recovery
from ringlog.kernel.values import Column, Command, Replication, TypeField, replace
from ringlog.operator.views import views
from tests.kernel.commands.test_service import code, coordinated, joined
from tests.kernel.entries import NODES, SEED, TABLE, applied, entry, founded, node

ENTER = EnterRecovery("the service is lost", "ann")
LEAVE = LeaveRecovery("it is back", "bob")


def force(*parts: ForcedPart) -> ForceState:
    return ForceState("mended", "ann", parts)


def recovering() -> ClusterState:
    return applied(joined(2), ENTER)


def test_a_recovery_is_shown_and_stored() -> None:
    state = recovering()
    running = in_recovery(state)
    assert running is not None
    assert (running.operator, running.reason, running.entered) == ("ann", "the service is lost", state.epoch)
    assert views.cluster(state)["recovery"]["operator"] == "ann"
    state = applied(state, LEAVE, Noop())
    assert in_recovery(state) is None
    assert "recovery" not in views.cluster(state)
    (told,) = views.recoveries(state)
    assert (told["left"], told["left_by"]) == (state.epoch - 1, "bob")
    state = applied(state, ENTER)
    assert len(views.recoveries(state)) == 2
    assert violations(state) == ()


@pytest.mark.parametrize(
    "kind", [EnterRecovery, LeaveRecovery, lambda r, o: ForceState(r, o, (ForcedPart("pauses", b""),))]
)
@pytest.mark.parametrize(
    ("reason", "operator"),
    [("", "ann"), (" ", "ann"), ("x" * 501, "ann"), ("why", ""), ("why", "  "), ("why", "x" * 101)],
)
def test_a_recovery_needs_an_operator_and_a_reason(kind: type[EnterRecovery], reason: str, operator: str) -> None:
    state = founded() if kind is EnterRecovery else applied(founded(), ENTER)
    assert code(state, kind(reason, operator)) == "bad_field"


def test_recoveries_do_not_overlap() -> None:
    assert code(recovering(), ENTER) == "in_recovery"
    assert code(joined(1), LEAVE) == "not_in_recovery"
    assert code(joined(1), force(ForcedPart("pauses", b""))) == "not_in_recovery"


def test_operations_wait_for_the_end_of_a_recovery() -> None:
    state = recovering()
    assert code(state, Leave(NODES[0])) == "in_recovery"
    assert code(state, Join(NODES[4], (7,), SEED)) == "in_recovery"
    assert code(applied(state, LEAVE), Join(NODES[4], (7,), SEED)) == ""
    keyspace = applied(state, CreateKeyspace("altered", Replication("simple", 1)))
    widened = AlterKeyspace("altered", Replication("simple", 2))
    assert code(keyspace, widened) == "in_recovery"
    assert code(applied(keyspace, LEAVE), widened) == ""
    running = applied(joined(2), Join(NODES[4], (7,), SEED), ENTER)
    assert coordinated(running).nodes[NODES[4]].state == "normal", "running operations continue"


# ForceState


def test_a_forced_section_replaces_the_section() -> None:
    state = applied(joined(2), PauseChanges(("splits",)), ENTER)
    wanted = Map({"all/": Pause("all", "", "while it is repaired", 3)})
    after = applied(state, force(ForcedPart("pauses", encode(wanted))))
    assert after.pauses == wanted
    assert after.changed["pauses"] == after.epoch
    assert all(getattr(after, name) is getattr(state, name) for name in PARTS if name not in ("pauses", "recoveries"))
    running = in_recovery(after)
    assert running is not None
    assert running.forced == (after.epoch,)
    emptied = applied(after, force(ForcedPart("pauses", b"")))
    assert emptied.pauses == Map()
    assert violations(emptied, after) == ()


def test_a_service_is_forced_to_one_member() -> None:
    """The smallest change after a lost majority, as in CEP-21."""
    state = applied(coordinated(applied(joined(3), ReconfigureService(3))), ENTER)
    alone = Map({NODES[0]: state.service[NODES[0]]})
    after = applied(state, force(ForcedPart("service", encode(alone))))
    assert views.service(after)["write"] == ["n1"]


def test_state_that_breaks_an_invariant_is_refused_and_named() -> None:
    state = recovering()
    renamed = replace(state.nodes[NODES[0]], name="n2")
    folded = fold(state, entry(state, force(ForcedPart("nodes", encode(state.nodes.set(NODES[0], renamed))))))
    assert (folded.outcome.kind, folded.outcome.code) == (OutcomeKind.REFUSED, "state_unsound")
    assert folded.outcome.detail.startswith("state: names: ")
    assert folded.state is state


def test_forced_sections_keep_names_and_recoveries() -> None:
    state = applied(founded(), node(1), node(2), ENTER)
    less = (ForcedPart("nodes", encode(state.nodes.delete(NODES[1]))),)
    less = (*less, ForcedPart("node_names", encode(state.node_names.delete("n2"))))
    assert code(state, force(*less)) == "state_unsound"
    assert code(state, force(ForcedPart("recoveries", b""))) == "bad_field"


@pytest.mark.parametrize("name", ["log_bounds", "snapshots"])
def test_the_log_beginning_cannot_be_forced(name: str) -> None:
    """A forced bound would let the cache writer delete entries that no snapshot or archive contains."""
    part = ForcedPart(name, encode(getattr(recovering(), name)))
    assert code(recovering(), force(part)) == "bad_field"


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ((), "bad_field"),
        ((ForcedPart("pauses", b""), ForcedPart("pauses", b"")), "bad_field"),
        ((ForcedPart("epoch", b"I1:9"),), "bad_field"),
        ((ForcedPart("history", b""),), "bad_field"),
        ((ForcedPart("nobody", b""),), "bad_field"),
        ((ForcedPart("pauses", b"x" * (STATE_BYTES_MAX + 1)),), "bad_field"),
        ((ForcedPart("pauses", b"nonsense"),), "state_undecodable"),
        ((ForcedPart("pauses", b"M0:"),), "state_undecodable"),
        ((ForcedPart("pauses", b"M0:M0:"),), "state_undecodable"),
    ],
)
def test_an_unknown_section_is_rejected(parts: tuple[ForcedPart, ...], expected: str) -> None:
    assert code(recovering(), force(*parts)) == expected


def test_the_epochs_of_force_are_bounded() -> None:
    state = applied(founded(), ENTER, *[force(ForcedPart("pauses", b""))] * (FORCED_KEPT_MAX + 3))
    running = in_recovery(state)
    assert running is not None
    assert running.forced == tuple(range(state.epoch - FORCED_KEPT_MAX + 1, state.epoch + 1))


# Schema versions


def schema(state: ClusterState, *commands: Command) -> ClusterState:
    made = applied(state, *commands)
    assert violations(made, state) == ()
    return made


def test_versions_of_the_schema_are_digests_in_a_recovery() -> None:
    state = schema(recovering(), CreateKeyspace("ks", Replication("simple", 1)))
    assert (len(state.schema_version), state.schema_version == state.state_id) == (64, False)
    state = schema(state, TABLE)
    table = state.tables["ks.t"]
    assert (len(table.version), table.committed_by_log) == (64, False)
    other = schema(state, AlterTable("ks", "t", (Column("x", "int"),)))
    assert len({table.version, other.tables["ks.t"].version}) == 2
    assert state.schema_version != other.schema_version
    over = schema(other, LEAVE)
    assert over.tables["ks.t"].committed_by_log is False, "until an entry of the log changes it"
    again = schema(over, AlterTable("ks", "t", (Column("y", "int"),)))
    assert (again.tables["ks.t"].version, again.tables["ks.t"].committed_by_log) == (again.state_id, True)
    assert again.schema_version == again.state_id


def test_the_schema_version_covers_each_schema_section() -> None:
    """Also schema parts that no table, keyspace or type contains: different schemas of one recovery have different
    versions.
    """
    state = schema(recovering(), CreateKeyspace("ks", Replication("simple", 1)), TABLE)
    seen = [state.schema_version]
    for command in (
        CreateType("ks", "address", (TypeField("street", "text"),)),
        CreateFunction("ks", "add", ("int", "int"), ("s", "v"), "int", "lua", "return s + v"),
        CreateAggregate("ks", "sum", ("int",), "add", "int", "", "0"),
        CreateView("ks", "by_v", "t", (), ("v",), ("k", "c")),
        CreateIndex("ks", "t_v_idx", "t", "v"),
        DropIndex("ks", "t_v_idx"),
    ):
        state = schema(state, command)
        seen.append(state.schema_version)
    assert seen[-1] == seen[-3], "the schema is the one before the index"
    assert len(set(seen)) == len(seen) - 1


def test_table_versions_are_digests_in_a_recovery() -> None:
    columns = (*TABLE.columns, Column("a", "frozen<address>"))
    state = schema(
        joined(2),
        CreateKeyspace("ks", Replication("simple", 1)),
        CreateType("ks", "address", (TypeField("street", "text"),)),
        replace(TABLE, columns=columns),
        SettleVerdicts(2**50),
        ENTER,
    )
    state = schema(state, AlterType("ks", "address", (TypeField("zip", "int"),)))
    table = state.tables["ks.t"]
    assert not table.committed_by_log
    assert state.table_lives["ks.t"][-1].versions[-1].table == table
    state = schema(state, LEAVE, AlterType("ks", "address", (TypeField("city", "text"),)))
    assert state.tables["ks.t"].committed_by_log
    assert state.tables["ks.t"].version == state.state_id
    assert state.table_lives["ks.t"][-1].versions[-1].table == state.tables["ks.t"]


def test_other_commands_keep_the_schema_version() -> None:
    state = recovering()
    assert applied(state, ChangeSettings((("history_entries", 200),))).schema_version == state.schema_version
    assert digest(applied(state, Noop())) != digest(state)

"""Rules of cluster creation, settings, terms and nodes, with each rejection."""

from __future__ import annotations

from typing import Any

import pytest

from ringlog.kernel.commands.cluster.cluster import TERM_STEP_MAX, ChangeSettings, Noop, TakeOver
from ringlog.kernel.commands.topology.nodes import DeclareDown, UnregisterNode, UpdateNode
from ringlog.kernel.fold import decide, fold
from ringlog.kernel.model.modes import Term
from ringlog.kernel.model.outcome import EntryContext, OutcomeKind, Rejected
from ringlog.kernel.model.settings import SETTINGS, broken_setting, setting
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.registry import CODES, COMMANDS, RULES
from ringlog.kernel.values import Command, replace
from tests.kernel.entries import applied, entry, founded, node, uuid, with_normal_nodes


def refusal(state: ClusterState, command: Command) -> str:
    """Return the code of the rejection."""
    decision = decide(state, command, EntryContext(state.epoch + 1, uuid(state.epoch + 1), state.time))
    assert isinstance(decision, Rejected), decision
    assert decision.code in CODES
    return decision.code


def test_every_command_has_a_rule() -> None:
    assert set(RULES) == set(COMMANDS.values())


# Settings


def test_default_settings_are_valid() -> None:
    assert broken_setting({}) is None
    assert broken_setting({name: rule.default for name, rule in SETTINGS.items()}) is None
    state = applied(founded(), ChangeSettings((("cdc_leeway_us", 9), ("ranges_max", 2_000))))
    assert (setting(state, "cdc_leeway_us"), setting(state, "history_entries")) == (9, 10_000)


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ((), "bad_field"),
        ((("ranges_max", 2_000), ("ranges_max", 3_000)), "bad_field"),
        ((("ranges_max", 2_000), ("no_such", 1)), "unknown_setting"),
        ((("history_entries", 99),), "bad_setting"),
        ((("history_entries", 2**63 - 1),), "bad_setting"),
        ((("cdc_horizon_ahead_max_us", 120_000_001),), "bad_setting"),
        ((("cdc_horizon_lead_us", 60_000_001),), "bad_setting"),
        ((("cdc_timestamp_ahead_max_us", 1_999_999), ("cdc_horizon_ahead_max_us", 1_000_000)), "bad_setting"),
        ((("ranges_max", 1_023),), "bad_setting"),
    ],
)
def test_settings_are_all_or_none(values: tuple[tuple[str, int], ...], code: str) -> None:
    assert refusal(founded(), ChangeSettings(values)) == code


def test_a_pair_of_settings_may_move_together() -> None:
    both = (("cdc_horizon_ahead_max_us", 200_000_000), ("cdc_timestamp_ahead_max_us", 200_000_000))
    assert applied(founded(), ChangeSettings(both)).epoch == 2


def test_a_setting_that_keeps_its_value_modifies_no_part() -> None:
    state = founded(cdc_leeway_us=9)
    assert applied(state, ChangeSettings((("cdc_leeway_us", 9),))).changed == state.changed


# Roles and barrier


def test_only_a_greater_term_takes_over() -> None:
    state = applied(founded(), TakeOver("validator", "a", 2))
    assert state.terms["validator"] == Term("validator", "a", 2, since=2)
    assert refusal(state, TakeOver("validator", "b", 2)) == "stale_term"
    assert refusal(state, TakeOver("validator", "a", 1)) == "stale_term"
    state = applied(state, TakeOver("coordinator", "b", 1), TakeOver("validator", "b", 9))
    assert state.terms["validator"] == Term("validator", "b", 9, since=4)
    assert state.terms["coordinator"].instance == "b"


def test_a_term_step_is_bounded() -> None:
    """No instance could take over a role with the greatest term."""
    state = founded()
    for term in (TERM_STEP_MAX + 1, 2**62):
        assert refusal(state, TakeOver("validator", "a", term)) == "bad_field"
    state = applied(state, TakeOver("validator", "a", TERM_STEP_MAX))
    assert refusal(state, TakeOver("validator", "b", 2 * TERM_STEP_MAX + 1)) == "bad_field"
    assert applied(state, TakeOver("validator", "b", 2 * TERM_STEP_MAX)).terms["validator"].instance == "b"


@pytest.mark.parametrize("command", [TakeOver("", "a", 1), TakeOver("r", " ", 1), TakeOver("r", "a", 0)])
def test_take_over_fields(command: TakeOver) -> None:
    assert refusal(founded(), command) == "bad_field"


def test_a_noop_modifies_no_part() -> None:
    state = founded()
    after = applied(state, Noop())
    assert (after.epoch, after.changed) == (2, state.changed)


# Nodes


def test_a_registered_node_owns_nothing() -> None:
    state = applied(founded(), node(1, features=("b", "a")))
    made = state.nodes[uuid(1, space=2)]
    assert (made.name, made.state, made.tokens, made.registered, made.features) == ("n1", "none", (), 2, ("a", "b"))
    assert dict(state.node_names) == {"n1": made.id}
    assert not state.token_owners


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"id": uuid(1, space=2)}, "duplicate_id"),
        ({"name": "n1"}, "duplicate_name"),
        ({"address": "127.0.0.1:7001"}, "duplicate_address"),
        ({"name": "n 2"}, "bad_field"),
        ({"id": uuid(10).upper()}, "bad_field"),
        ({"datacenter": ""}, "bad_field"),
        ({"rack": "x" * 101}, "bad_field"),
        ({"shards": 0}, "bad_field"),
        ({"shards": 2**31}, "bad_field"),
        ({"ignore_msb": -1}, "bad_field"),
        ({"ignore_msb": 64}, "bad_field"),
        ({"release": "é"}, "bad_field"),
        ({"features": ("a", "a")}, "bad_field"),
        ({"features": ("",)}, "bad_field"),
        ({"features": tuple(f"f{number}" for number in range(257))}, "bad_field"),
        ({"capacity": 0}, "bad_field"),
    ],
)
def test_registration_refused(changes: dict[str, Any], code: str) -> None:
    assert refusal(applied(founded(), node(1)), node(2, **changes)) == code


@pytest.mark.parametrize("good", ["127.0.0.1:1", "host.example:65535", "a:80", "[::1]:7000", "node_1:7"])
def test_good_addresses(good: str) -> None:
    assert applied(founded(), node(1, address=good)).epoch == 2


@pytest.mark.parametrize("bad", ["", "host", "host:", ":80", "h:0", "h:65536", "h:80\n", "h:８０", "::1:80", "a b:1"])
def test_bad_addresses(bad: str) -> None:
    assert refusal(founded(), node(1, address=bad)) == "bad_field"


def test_names_and_ids_of_departed_nodes_stay_taken() -> None:
    state = applied(founded(), node(1))
    gone = replace(state.nodes[uuid(1, space=2)], state="left")
    state = replace(state, nodes=state.nodes.set(gone.id, gone))
    assert refusal(state, node(2, name="n1")) == "duplicate_name"
    assert refusal(state, node(2, id=gone.id)) == "duplicate_id"
    assert applied(state, node(2, address=gone.address)).epoch == 3


def test_a_field_is_checked_before_the_state() -> None:
    state = applied(founded(), node(1))
    folded = fold(state, entry(state, node(1, capacity=-1)))
    assert (folded.outcome.kind, folded.outcome.code) == (OutcomeKind.REFUSED, "bad_field")
    assert folded.outcome.detail.startswith("capacity: must be")


# Updates of nodes


def test_an_update_changes_only_named_properties() -> None:
    state = applied(founded(), node(1), node(2))
    before = state.nodes[node(1).id]
    after = applied(state, UpdateNode(before.id, release="9", features=("b", "a"), capacity=7, shards=3))
    assert after.nodes[before.id] == replace(before, release="9", features=("a", "b"), capacity=7, shards=3)
    moved = applied(after, UpdateNode(before.id, address="elsewhere:1", features=()))
    assert moved.nodes[before.id] == replace(after.nodes[before.id], address="elsewhere:1", features=())
    assert moved.nodes[node(2).id] is state.nodes[node(2).id]


@pytest.mark.parametrize(
    ("update", "code"),
    [
        ({}, "bad_field"),
        ({"address": "nowhere"}, "bad_field"),
        ({"release": "-"}, "bad_field"),
        ({"features": ("a", "a")}, "bad_field"),
        ({"capacity": 0}, "bad_field"),
        ({"shards": 0}, "bad_field"),
        ({"address": node(2).address}, "duplicate_address"),
    ],
)
def test_updates_that_are_refused(update: dict[str, Any], code: str) -> None:
    state = applied(founded(), node(1), node(2))
    assert refusal(state, UpdateNode(node(1).id, **update)) == code
    if code == "duplicate_address":  # the address of a node that is down or has left is free
        down = applied(state, DeclareDown(node(2).id, ""))
        assert applied(down, UpdateNode(node(1).id, **update)).nodes[node(1).id].address == node(2).address


def test_updates_by_node_state() -> None:
    state = with_normal_nodes(founded(), 1)
    (member,) = state.nodes.values()
    assert refusal(state, UpdateNode(uuid(99), capacity=2)) == "unknown_node"
    assert refusal(state, UpdateNode(member.id, shards=member.shards + 1)) == "wrong_node_state"
    same = UpdateNode(member.id, member.address, shards=member.shards, capacity=2)
    assert applied(state, same).nodes[member.id] == replace(member, capacity=2)
    gone = applied(state, node(9), UnregisterNode(node(9).id))
    assert refusal(gone, UpdateNode(node(9).id, capacity=2)) == "wrong_node_state"

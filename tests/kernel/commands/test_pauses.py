"""Pauses: what they hold up, where, and how they end."""

from __future__ import annotations

import pytest

from ringlog.kernel.balance.advice import advise
from ringlog.kernel.commands.keyspaces import DropKeyspace
from ringlog.kernel.commands.movements import Assassinate, Leave
from ringlog.kernel.commands.pauses import PauseChanges, ResumeChanges
from ringlog.kernel.commands.tablets import MigrateTablets, TabletMigration
from ringlog.kernel.decide import decide
from ringlog.kernel.encoding import digest
from ringlog.kernel.modes import SCOPES
from ringlog.kernel.outcome import Accepted, Decision, EntryContext, Rejected
from ringlog.kernel.state import ClusterState
from ringlog.kernel.swift import replaced
from ringlog.kernel.values import Command
from tests.kernel.balance.test_advice import PILED


def decided(state: ClusterState, command: Command) -> Decision:
    return decide(state, command, EntryContext(state.epoch + 1, "s", 1))


def after(state: ClusterState, command: Command) -> ClusterState:
    found = decided(state, command)
    assert isinstance(found, Accepted), found
    return replaced(found.state, epoch=state.epoch + 1)


def code(state: ClusterState, command: Command) -> str:
    found = decided(state, command)
    return found.code if isinstance(found, Rejected) else ""


REPAIR = MigrateTablets((TabletMigration("ks.t", 0, "repair"),))


@pytest.mark.parametrize(
    ("scope", "command"),
    [
        ("schema", DropKeyspace("ks")),
        ("topology", Leave("n1")),
        ("repairs", REPAIR),
        ("all", DropKeyspace("ks")),
        ("all", Leave("n1")),
        ("all", REPAIR),
    ],
)
def test_a_scope_holds_up_its_commands_and_names_itself(scope: str, command: Command) -> None:
    held = after(PILED, PauseChanges((scope,), reason="upgrade"))
    found = decided(held, command)
    assert isinstance(found, Rejected)
    assert found.code == "changes_paused"
    assert f"{scope} is paused since epoch 10: upgrade" in found.detail
    assert code(after(held, ResumeChanges((scope,))), command) != "changes_paused"
    assert code(after(PILED, PauseChanges(("balancing", "splits"))), command) != "changes_paused"


def test_the_last_resort_is_never_held_up() -> None:
    assert code(after(PILED, PauseChanges(("all",))), Assassinate("n1")) != "changes_paused"


@pytest.mark.parametrize("of", ["", "ks", "ks.t"])
def test_the_balancer_rests_everywhere_in_a_keyspace_or_of_a_table(of: str) -> None:
    assert advise(PILED, {}).moves
    held = after(PILED, PauseChanges(("balancing",), of))
    assert not advise(held, {}).moves
    assert advise(after(held, ResumeChanges(("balancing",), of)), {}).moves


def test_an_operator_still_moves_what_the_balancer_must_not() -> None:
    move = MigrateTablets(advise(PILED, {}).moves[:1])
    assert isinstance(decided(after(PILED, PauseChanges(("balancing",))), move), Accepted)


def test_a_pause_of_splits_holds_up_decisions_alone() -> None:
    least = replaced(PILED, settings=PILED.settings.set("balance_tablets_per_shard_min", 10))
    assert advise(least, {}).resizes
    held = after(least, PauseChanges(("splits",), "ks.t"))
    assert not advise(held, {}).resizes
    assert advise(held, {}).moves


def test_everything_paused_is_the_reason_of_an_empty_plan() -> None:
    assert advise(after(PILED, PauseChanges(("all",))), {}).stop == "paused"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (PauseChanges(()), "bad_field"),
        (PauseChanges(("balancing", "balancing")), "bad_field"),
        (PauseChanges(("holidays",)), "bad_field"),
        (PauseChanges(("schema",), "ks"), "bad_field"),
        (PauseChanges(("balancing",), "ks.u"), "unknown_table"),
        (PauseChanges(("balancing",), "other"), "unknown_keyspace"),
        (PauseChanges(("all",), reason="x" * 10_000), "bad_field"),
        (ResumeChanges(("holidays",)), "bad_field"),
    ],
)
def test_what_is_refused(command: Command, expected: str) -> None:
    assert code(PILED, command) == expected


def test_a_resume_always_passes_and_leaves_nothing_behind() -> None:
    held = after(PILED, PauseChanges(SCOPES))
    assert len(held.pauses) == len(SCOPES)
    assert after(PILED, ResumeChanges(SCOPES)).pauses is PILED.pauses
    resumed = after(held, ResumeChanges(SCOPES))
    assert not resumed.pauses
    same = replaced(resumed, epoch=PILED.epoch, changed=PILED.changed)
    assert digest(same) == digest(PILED), "a state without pauses has no such part"

"""One transcript for each outcome of the fold, in the order of its checks."""

from __future__ import annotations

from typing import Any

import pytest

from ringlog.kernel.commands.cdc.generations import CommitCdcGeneration, PublishCdcGeneration, parts_of
from ringlog.kernel.commands.cluster.cluster import InitializeCluster, Noop, TakeOver
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.topology.movements import Join
from ringlog.kernel.encoding.encoder import digest
from ringlog.kernel.fold import ID_STEP_MAX_MS, fold
from ringlog.kernel.generations.describe import generate_for, ranges_digest, to_prepare
from ringlog.kernel.model.outcome import Entry, OutcomeKind, Undecodable, UnknownCommand, UnreadableEntry
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState
from ringlog.kernel.operations.kinds import next_stage
from ringlog.kernel.ownership.placements import canonical, nodes_of
from ringlog.kernel.registry import CODES, RULES
from ringlog.kernel.values import Replication, replace
from tests.kernel.entries import CLUSTER, applied, entry, founded, node, uuid
from tests.kernel.operations.driver import SEED, advance_of

OTHER = uuid(9, space=9)


def verdict(state: ClusterState, item: Entry | UnreadableEntry) -> tuple[OutcomeKind, str]:
    """Return kind and code of an entry that must not apply and must return the same state object."""
    folded = fold(state, item)
    assert folded.state is state
    assert folded.outcome.epoch == state.epoch
    assert folded.outcome.code in {"", *CODES}
    assert folded.outcome.detail
    return folded.outcome.kind, folded.outcome.code


def test_the_initial_entry_creates_the_cluster() -> None:
    folded = fold(EMPTY_STATE, entry(EMPTY_STATE, InitializeCluster("c", (("cdc_leeway_us", 1),)), at=77))
    state = folded.state
    assert folded.outcome.kind is OutcomeKind.APPLIED
    assert (state.cluster_id, state.name, state.epoch, state.time) == (CLUSTER, "c", 1, 77)
    assert state.state_id == uuid(1)
    assert dict(state.settings) == {"cdc_leeway_us": 1}
    assert dict(state.changed) == {"settings": 1}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"prev_state_id": OTHER}, (OutcomeKind.STALE, "")),
        ({"since_epoch": 1}, (OutcomeKind.EXPIRED, "request_expired")),
        ({"since_epoch": -1}, (OutcomeKind.EXPIRED, "request_expired")),
        ({"kind": "Noop", "command": Noop()}, (OutcomeKind.STALE, "")),
        ({"kind": "Mystery", "command": UnknownCommand("Mystery", 1)}, (OutcomeKind.STALE, "")),
        ({"version": 2, "command": UnknownCommand("InitializeCluster", 2)}, (OutcomeKind.HALT, "unknown_command")),
        ({"command": Undecodable("truncated")}, (OutcomeKind.REFUSED, "undecodable")),
        ({"state_id": "1"}, (OutcomeKind.REFUSED, "bad_field")),
        ({"state_id": uuid(1).upper().replace("0000", "000A")}, (OutcomeKind.REFUSED, "bad_field")),
        ({"cluster_id": ""}, (OutcomeKind.REFUSED, "bad_field")),
        ({"command": InitializeCluster("")}, (OutcomeKind.REFUSED, "bad_field")),
        ({"command": InitializeCluster("c", (("none", 1),))}, (OutcomeKind.REFUSED, "unknown_setting")),
    ],
)
def test_other_entries_do_not_create_a_cluster(changes: dict[str, Any], expected: tuple[OutcomeKind, str]) -> None:
    assert verdict(EMPTY_STATE, entry(EMPTY_STATE, InitializeCluster("c"), **changes)) == expected


def test_unreadable_entries_around_the_initial_entry() -> None:
    for state in (EMPTY_STATE, founded()):
        assert verdict(state, UnreadableEntry("no envelope")) == (OutcomeKind.UNREADABLE, "unreadable_entry")


def test_a_cluster_is_created_once() -> None:
    state = founded()
    assert verdict(state, entry(state, InitializeCluster("c"))) == (OutcomeKind.REFUSED, "already_founded")
    second = entry(EMPTY_STATE, InitializeCluster("c"), state_id=uuid(5), request_id=OTHER)
    assert verdict(state, second) == (OutcomeKind.STALE, "")


def test_checks_run_in_order() -> None:
    """The entry breaks each rule, and the test repairs one rule at a time."""
    state = applied(founded(), Noop(), Noop())
    broken = entry(
        state,
        Noop(),
        cluster_id=OTHER,
        state_id=uuid(2),
        request_id=uuid(2, space=1),
        since_epoch=99,
        prev_state_id=uuid(1),
        digest="another",
        kind="Noop",
        version=9,
        command=UnknownCommand("Noop", 9),
    )
    repairs: list[tuple[dict[str, Any], OutcomeKind, str]] = [
        ({}, OutcomeKind.FOREIGN, ""),
        ({"cluster_id": CLUSTER}, OutcomeKind.DUPLICATE, ""),
        ({"state_id": "0"}, OutcomeKind.DUPLICATE, "request_id_reused"),
        ({"request_id": OTHER}, OutcomeKind.EXPIRED, "request_expired"),
        ({"since_epoch": 3}, OutcomeKind.STALE, ""),
        ({"prev_state_id": state.state_id}, OutcomeKind.HALT, "unknown_command"),
        ({"version": 1, "command": Undecodable("truncated")}, OutcomeKind.REFUSED, "undecodable"),
        ({"command": TakeOver("validator", "", 1)}, OutcomeKind.REFUSED, "bad_field"),
        ({"state_id": uuid(2).replace("-0000-7", "-0001-7")}, OutcomeKind.REFUSED, "state_id_not_above"),
        ({"state_id": uuid(4)}, OutcomeKind.REFUSED, "bad_field"),
    ]
    for changes, kind, code in repairs:
        broken = replace(broken, **changes)
        assert verdict(state, broken) == (kind, code)
    folded = fold(state, replace(broken, command=TakeOver("validator", "x", 1)))
    assert folded.outcome.kind is OutcomeKind.APPLIED
    assert folded.outcome.epoch == 4


def test_the_state_id_must_be_above_its_predecessor() -> None:
    state = applied(founded(), Noop())
    assert verdict(state, entry(state, Noop(), state_id=uuid(0))) == (OutcomeKind.REFUSED, "state_id_not_above")
    assert fold(state, entry(state, Noop(), state_id=uuid(2, space=1))).outcome.kind is OutcomeKind.APPLIED


def test_a_state_id_leaves_room_above_it() -> None:
    """No entry could follow one with the greatest id."""
    state = founded()
    room = int(state.state_id.replace("-", "")[:12], 16) + ID_STEP_MAX_MS
    for number, kind in (
        (room, OutcomeKind.APPLIED),
        (room + 1, OutcomeKind.REFUSED),
        (2**48 - 1, OutcomeKind.REFUSED),
    ):
        time = f"{number:012x}"
        item = entry(state, Noop(), state_id=f"{time[:8]}-{time[8:]}-7fff-bfff-ffffffffffff")
        assert fold(state, item).outcome.kind is kind
    last = entry(EMPTY_STATE, InitializeCluster("c"), state_id="ffffffff-ffff-ffff-bfff-ffffffffffff")
    assert verdict(EMPTY_STATE, last) == (OutcomeKind.REFUSED, "bad_field")


def test_a_repeated_request_applies_once() -> None:
    before = founded()
    first = entry(before, node(1))
    state = fold(before, first).state
    again = entry(state, node(1), request_id=first.request_id, since_epoch=first.since_epoch)
    assert verdict(state, again) == (OutcomeKind.DUPLICATE, "")
    other = entry(state, node(2), request_id=first.request_id, since_epoch=first.since_epoch)
    assert verdict(state, other) == (OutcomeKind.DUPLICATE, "request_id_reused")
    assert verdict(state, first) == (OutcomeKind.DUPLICATE, "")


def test_a_noop_withdraws_a_request() -> None:
    before = founded()
    request = entry(before, node(1))
    state = fold(before, entry(before, Noop(), request_id=request.request_id)).state
    late = entry(state, node(1), request_id=request.request_id, since_epoch=request.since_epoch)
    assert verdict(state, late) == (OutcomeKind.DUPLICATE, "request_id_reused")
    assert not state.nodes


def test_a_lost_race_is_stale_and_harmless() -> None:
    before = founded()
    winner, loser = entry(before, node(1)), entry(before, node(2), state_id=uuid(2, space=7), request_id=OTHER)
    state = fold(before, winner).state
    assert verdict(state, loser) == (OutcomeKind.STALE, "")


def test_state_time_never_decreases() -> None:
    state = fold(founded(), entry(founded(), Noop(), at=2**62)).state
    assert state.time == 2**62
    assert applied(state, Noop()).time == 2**62


def test_a_refused_entry_leaves_the_state_byte_identical() -> None:
    state = applied(founded(), node(1))
    before = digest(state)
    assert verdict(state, entry(state, node(1))) == (OutcomeKind.REFUSED, "duplicate_id")
    assert digest(state) == before


def test_a_defect_of_a_rule_halts_the_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rejection would be a guess, because a release without the defect would apply the entry."""

    def defective(*_: object) -> None:
        raise RecursionError("too deep")

    monkeypatch.setitem(RULES, Noop, defective)
    state = founded()
    assert verdict(state, entry(state, Noop())) == (OutcomeKind.HALT, "broken_rule")


# From an empty cluster to four nodes, entry by entry, with the real generations of the joins.


def _with_generation(state: ClusterState, publish: bool) -> ClusterState:
    """Apply the commands of coordinator and publisher for an operation that waits for its generation."""
    if publish:
        return applied(state, PublishCdcGeneration(state.generations[-1].id))
    wanted = to_prepare(state)
    assert wanted is not None
    generation, seed = wanted
    ranges = generate_for(state, seed)
    state = applied(state, *parts_of(generation, ranges))
    timestamp = 1_000_000 * state.epoch
    return applied(state, CommitCdcGeneration(generation, timestamp, ranges_digest(ranges)))


def _joined(state: ClusterState, number: int, tokens: tuple[int, ...]) -> ClusterState:
    state = applied(state, node(number))
    name = state.node_names[f"n{number}"]
    state = applied(state, Join(name, tokens, SEED))
    operation = f"join-{state.epoch}"
    while (following := next_stage(state.operations[operation])) is not None:
        if following in ("publish_cdc_generation", "write_both_read_old"):
            state = _with_generation(state, publish=following == "write_both_read_old")
        state = applied(state, advance_of(state, operation))
    return state


def test_four_nodes_join_one_after_the_other() -> None:
    state = founded()
    for number in (1, 2, 3):
        state = _joined(state, number, (100 * number,))
    state = applied(state, CreateKeyspace("flights", Replication("simple", 2)))
    state = _joined(state, 4, (150, -150))
    assert [len(generation.ranges) for generation in state.generations] == [1, 2, 3, 5]
    assert all(generation.published is not None for generation in state.generations)
    assert {one.state for one in state.nodes.values()} == {"normal"}
    layout = canonical(Replication("simple", 2), state.token_owners, state.nodes, 0)
    live = state.placements["simple:2"].ranges
    assert [(one.start, one.end, nodes_of(one.read), nodes_of(one.write)) for one in live] == [
        (one.start, one.end, nodes_of(one.read), nodes_of(one.read)) for one in layout
    ]

"""Incremental ownership: it equals a full computation and recomputes only changed ranges."""

from __future__ import annotations

from itertools import pairwise

import pytest

from ringlog.cache import projection
from ringlog.kernel import changes
from ringlog.kernel.columns import blocks
from ringlog.kernel.columns.blocks import BLOCK, Blocks, in_blocks, with_items
from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.generations.admission import AdmissionRules, rules_of
from ringlog.kernel.model.state import ClusterState, Placement, RangeGroup, Replica
from ringlog.kernel.ownership.placements import placement_of_keyspace
from ringlog.kernel.values import replace
from ringlog.node.rows import replica as holders
from ringlog.node.rows.replica import RowReplica
from ringlog.node.rows.store import inside
from ringlog.protocol.nodes import ownership as owners
from ringlog.protocol.nodes.ownership import NOTHING, Owned, Served, lost_ranges, owned_by
from tests.kernel.entries import applied
from tests.node.world import journey, name_of


def in_small_blocks() -> list[ClusterState]:
    """Return the same states with ranges in shared blocks of two."""
    with pytest.MonkeyPatch.context() as patched:
        for name, items in (("BLOCK", 2), ("BLOCK_MAX", 4), ("BLOCKS_FROM", 2)):
            patched.setattr(blocks, name, items)
        return journey()


LOG = journey()
LOGS = {"tuples": LOG, "blocks": in_small_blocks()}


def placement_now(state: ClusterState) -> Placement:
    found = placement_of_keyspace(state, "shop")
    assert found is not None
    return found


@pytest.mark.parametrize("kind", sorted(LOGS))
@pytest.mark.parametrize("number", [1, 2, 3, 8, 9])
def test_incremental_ownership_equals_a_full_computation(number: int, kind: str) -> None:
    log, node = LOGS[kind], name_of(number)
    assert all((type(placement_now(state).ranges) is Blocks) == (kind == "blocks") for state in log)
    tokens = sorted({end + off for state in log for end in placement_now(state).ends for off in (0, 1)})
    for first in range(len(log)):
        for last in range(first, len(log)):
            was, now = placement_now(log[first]), placement_now(log[last])
            served: Served = (was, owned_by(was, node))
            owned = owned_by(now, node, served)
            assert owned == owned_by(now, node)
            for before, after in ((served[1], owned), (served[1], NOTHING), (None, owned), (None, NOTHING)):
                gone, took = lost_ranges(before, after), NOTHING if before is None else before
                for token in tokens:
                    wanted = (before is None or took.accepts_writes(token)) and not after.accepts_writes(token)
                    assert inside(token, gone) == wanted
    assert owned_by(placement_now(LOG[0]), node, (placement_now(LOG[0]), NOTHING)) is NOTHING, "no range has changed"
    assert LOGS["blocks"] == LOG


def test_an_unrelated_epoch_recomputes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    worked_out: list[str] = []

    def noted(placement: Placement, node: str, before: Served | None = None) -> Owned:
        worked_out.append(placement.key)
        return owned_by(placement, node, before)

    def counted_rules_of(
        state: ClusterState, before: tuple[ClusterState, AdmissionRules] | None = None
    ) -> AdmissionRules:
        worked_out.append("rules")
        return rules_of(state, before)

    monkeypatch.setattr(holders, "owned_by", noted)
    monkeypatch.setattr(holders, "rules_of", counted_rules_of)
    node = RowReplica(name_of(1))
    node.adopt(LOG[0])
    assert worked_out == ["rules", *sorted({placement.key for placement in LOG[0].placements.values()})]
    worked_out.clear()
    node.adopt(applied(LOG[0], Noop(), Noop()))
    assert worked_out == []


def test_shared_blocks_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(
        owners, "_is_in", lambda group, node: asked.append(len(group)) or any(one.node == node for one in group)
    )
    ranges = tuple(RangeGroup(end - 1, end, (), (Replica(f"n{end % 7}", 1),), 1) for end in range(2_000))
    before = Placement("simple:1", in_blocks(ranges), tuple(range(2_000)))
    served = owned_by(before, "n2")
    assert len(asked) == 4_000
    asked.clear()
    moved = replace(ranges[700], write=(Replica("n2", 2),))
    after = replace(before, ranges=with_items(before.ranges, (700,), (moved,)))
    owned = owned_by(after, "n2", (before, served))
    assert len(asked) == 2 * BLOCK
    assert owned == owned_by(after, "n2") != served


@pytest.mark.parametrize("kind", sorted(LOGS))
def test_differences_of_states_are_those_of_their_projections(kind: str) -> None:
    log = LOGS[kind]
    told, cached = changes.project(log[0]), projection.project(log[0])
    for before, after in pairwise(log):
        for record in changes.diff(before, after):
            told.pop((record.topic, record.key), None)
            if record.value is not None:
                told[record.topic, record.key] = record.value
        wanted = changes.project(after)
        assert {key: replace(value, epoch=0) for key, value in told.items()} == {
            key: replace(value, epoch=0) for key, value in wanted.items()
        }
        difference = projection.delta(before, after)
        for part, field in difference.remove:
            del cached[part][field]
        for part, field, text in difference.put:
            assert cached[part].get(field) != text
            cached[part][field] = text
        assert cached == projection.project(after)

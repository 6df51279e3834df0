"""Random joins against a brute-force model: placements and cancels in each stage, and intersection of quorums."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from ringlog.kernel.commands.topology.operations import CancelOperation
from ringlog.kernel.model.outcome import EntryContext
from ringlog.kernel.model.state import ClusterState, Plan
from ringlog.kernel.movements.admission import requested
from ringlog.kernel.operations.gates import gate, missing, quorum
from ringlog.kernel.operations.kinds import JOIN
from ringlog.kernel.operations.plan import plan_movement
from ringlog.kernel.operations.stages import JOIN_STAGES
from ringlog.kernel.ownership.placements import canonical, group_at, nodes_of, replications_in_use
from ringlog.kernel.ring.ranges import in_range
from ringlog.kernel.values import replace
from ringlog_testing.placement.layout import walk
from tests.kernel.operations.driver import all_witnesses, applied, at_every_stage, joining, stepped
from tests.kernel.ownership.rings import a_cluster, token_maps

FACTORS = (1, 2, 3, 5)
READS_NEW, WRITES_BOTH = "write_both_read_new", "write_both_read_old"
Joins = tuple[ClusterState, tuple[int, ...]]


@st.composite
def joins(draw: st.DrawFn) -> Joins:
    """Draw an idle cluster with four replication settings and an idle node X, and the tokens of its join."""
    tokens = draw(token_maps())
    taken = {token for own in tokens.values() for token in own}
    free = st.integers(-45, 45).filter(lambda token: token not in taken)
    wanted = draw(st.lists(free, min_size=1, max_size=4, unique=True))
    return a_cluster({**tokens, "X": []}, FACTORS), tuple(wanted)


def expected(
    before: dict[int, str], after: dict[int, str], factor: int, stage: str, position: int
) -> tuple[set[str], set[str]]:
    """Return (readers, writers) of a position during an operation between two token maps."""
    old, new = set(walk(before, position)[:factor]), set(walk(after, position)[:factor])
    reads = new if stage in (READS_NEW, "finished") else old
    writes = {WRITES_BOTH: old | new, READS_NEW: old | new, "finished": new}.get(stage, old)
    return reads, writes


@settings(deadline=None)
@given(joins())
def test_placements_at_every_stage_are_those_of_the_model(case: Joins) -> None:
    state, tokens = case
    before = dict(state.token_owners.items())
    after = before | dict.fromkeys(tokens, "X")
    first, operation = joining(state, "X", tokens)
    for stage, at in at_every_stage(first, operation).items():
        for factor in FACTORS:
            placement = at.placements[f"simple:{factor}"]
            for position in range(-46, 47):
                group = group_at(placement, position)
                reads, writes = set(nodes_of(group.read)), set(nodes_of(group.write))
                assert (reads, writes) == expected(before, after, factor, stage, position)
                assert reads <= writes
                assert len(reads) == min(factor, len(set((after if "X" in reads else before).values())))


@settings(deadline=None)
@given(joins())
def test_quiet_placements_are_canonical(case: Joins) -> None:
    state, tokens = case
    first, operation = joining(state, "X", tokens)
    last = at_every_stage(first, operation)["finished"]
    for quiet in (state, last):
        for key, replication in replications_in_use(quiet):
            live = quiet.placements[key].ranges
            layout = canonical(replication, quiet.token_owners, quiet.nodes, 0)
            assert [(g.start, g.end, nodes_of(g.read), nodes_of(g.write)) for g in live] == [
                (g.start, g.end, nodes_of(g.read), nodes_of(g.write)) for g in layout
            ]


@settings(deadline=None)
@given(joins())
def test_cancel_at_every_stage_leaves_no_trace(case: Joins) -> None:
    state, tokens = case
    first, operation = joining(state, "X", tokens)
    for stage, at in at_every_stage(first, operation).items():
        if stage in ("write_both_read_new", "finished"):
            continue
        back = applied(at, CancelOperation(operation, "changed our minds"))
        assert back.placements == state.placements
        assert back.nodes == state.nodes
        assert back.token_owners == state.token_owners
        again, second = joining(back, "X", tokens)
        assert plan_join(state, "X", tuple(sorted(tokens))) == again.operations[second].plan


@settings(deadline=None)
@given(joins())
def test_the_member_epoch_is_that_of_the_last_entry(case: Joins) -> None:
    state, tokens = case
    first, operation = joining(state, "X", tokens)
    states = at_every_stage(first, operation)
    history = [states[stage] for stage in JOIN_STAGES]
    for factor in FACTORS:
        for position in range(-46, 47):
            for side in ("read", "write"):
                entered: dict[str, int] = {}
                for at in history:
                    group = group_at(at.placements[f"simple:{factor}"], position)
                    members = nodes_of(getattr(group, side))
                    entered = {node: entered.get(node, at.epoch if at is not first else 5) for node in members}
                    assert {replica.node: replica.since for replica in getattr(group, side)} == entered


@settings(deadline=None)
@given(joins())
def test_sources_hold_all_gained_ranges(case: Joins) -> None:
    state, tokens = case
    before = dict(state.token_owners.items())
    after = before | dict.fromkeys(tokens, "X")
    plan = plan_join(state, "X", tokens)
    for factor in FACTORS:
        sources = [source for source in plan.sources if source.replication == f"simple:{factor}"]
        for position in range(-46, 47):
            old, new = (walk(owners, position)[:factor] for owners in (before, after))
            found = [source for source in sources if in_range(position, source.start, source.end)]
            assert bool(found) == ("X" in new)
            if found:
                leaving = set(old).difference(new)
                givers = [source.source for source in found]
                assert set(givers) == leaving or (not leaving and givers == old[: quorum(len(old))])


def plan_join(state: ClusterState, node: str, tokens: tuple[int, ...]) -> Plan:
    return plan_movement(state, replace(requested(JOIN, node, EntryContext(1, "", 0)), tokens=tokens))


def _choices(members: tuple[str, ...], at_least: int) -> list[set[str]]:
    return [set(chosen) for size in range(at_least, len(members) + 1) for chosen in combinations(members, size)]


def _write_quorums(old: tuple[str, ...], new: tuple[str, ...]) -> list[set[str]]:
    """Return all sets of answers with a quorum of the old and of the new group."""
    return [
        chosen
        for chosen in _choices(tuple(sorted({*old, *new})), 1)
        if len(chosen.intersection(old)) >= quorum(len(old)) and len(chosen.intersection(new)) >= quorum(len(new))
    ]


@settings(deadline=None)
@given(joins())
def test_every_quorum_meets_its_neighbours(case: Joins) -> None:
    """Views 0 to 3 are before, after start, middle and finish. Views two apart intersect through the barrier between
    them.
    """
    state, tokens = case
    before = dict(state.token_owners.items())
    after = before | dict.fromkeys(tokens, "X")
    seen: set[tuple[tuple[str, ...], tuple[str, ...]]] = set()
    for factor in FACTORS:
        for position in range(-46, 47):
            seen.add((tuple(sorted(walk(before, position)[:factor])), tuple(sorted(walk(after, position)[:factor]))))
    for old, new in sorted(seen):
        reads = [_choices(group, quorum(len(group))) for group in (old, old, new, new)]
        writes = [_write_quorums(*pair) for pair in ((old, old), (old, new), (old, new), (new, new))]
        for one in range(4):
            for other in range(max(0, one - 1), min(4, one + 2)):
                assert all(r & w for r in reads[one] for w in writes[other]), (old, new, one, other)
        informed = _write_quorums(old, new)  # a barrier asks for a quorum of each group
        for one, other in ((0, 2), (1, 3), (2, 0), (3, 1)):
            for told in informed:
                assert all(r & told for r in reads[one]), (old, new, told)
                assert all(w & told for w in writes[other]), (old, new, told)


@settings(deadline=None)
@given(joins(), st.data())
def test_gate_is_met_exactly_by_a_quorum_of_each_group(case: Joins, data: st.DataObject) -> None:
    state, tokens = case
    before = dict(state.token_owners.items())
    after = before | dict.fromkeys(tokens, "X")
    first, operation = joining(state, "X", tokens)
    for stage, at in at_every_stage(first, operation).items():
        if stage not in ("prepared", "write_both_read_old", "write_both_read_new"):
            continue
        told = data.draw(st.sets(st.sampled_from(sorted(at.nodes))))
        enough = stage == "write_both_read_new" or "X" in told
        for factor in FACTORS:
            for position in range(-46, 47):
                old, new = (set(walk(owners, position)[:factor]) for owners in (before, after))
                if old != new:
                    enough = enough and all(len(told & group) >= quorum(len(group)) for group in (old, new))
        witnesses = [witness for witness in all_witnesses(at) if witness.node in told]
        lacking = missing(gate(at, at.operations[operation]), witnesses)
        assert (lacking == ()) == enough
        assert not told.intersection(lacking)


def test_joins_one_after_the_other_end_in_the_canonical_layout() -> None:
    state = replace(a_cluster({"n0": [0], **{f"n{index}": [] for index in range(1, 9)}}, [1]))
    for index in range(1, 9):
        state, operation = joining(state, f"n{index}", [index * 37 % 90, -index * 11])
        for _ in range(6):
            state = stepped(state, operation)
    layout = canonical(replications_in_use(state)[0][1], state.token_owners, state.nodes, 0)
    live = state.placements["simple:1"].ranges
    assert [(g.start, g.end, nodes_of(g.write)) for g in live] == [(g.start, g.end, nodes_of(g.write)) for g in layout]
    assert len(live) == 17

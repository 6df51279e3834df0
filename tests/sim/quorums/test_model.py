"""The quorum model on examples with results by hand."""

from __future__ import annotations

import ast
import inspect
from itertools import combinations
from types import ModuleType

import pytest

from ringlog_testing.quorums import check as check_module
from ringlog_testing.quorums import model
from ringlog_testing.quorums.check import APART, KEPT, NEIGHBOURS, STREAMED, check
from ringlog_testing.quorums.description import BadDescription, drawn
from ringlog_testing.quorums.model import (
    QuorumRules,
    RangeHistory,
    RangeStream,
    RangeView,
    demanded,
    minimal,
    read_quorums,
    scopes,
    subsets,
    write_quorums,
)

A, B, C, X, Y = (1 << number for number in range(5))
ONE_DATACENTER = ("dc1",) * 5


def one_for_one(old: int, new: int, datacenters: tuple[str, ...] = ONE_DATACENTER) -> RangeHistory:
    views = (
        RangeView("before", old, old, False),
        RangeView("write both", old, old | new, True),
        RangeView("read new", new, old | new, True),
        RangeView("after", new, new, False),
    )
    return RangeHistory(datacenters, views)


def hand(*views: tuple[str, str], **more: object) -> RangeHistory:
    """Return views as (readers, writers), one letter per node."""
    rows = [{"name": f"v{n}", "read": list(r), "write": list(w)} for n, (r, w) in enumerate(views)]
    ((_, placed),) = drawn({"histories": [{"views": rows, **more}]})
    return placed.history


SWAP = hand(("ABC", "ABC"), ("ABC", "ABCX"), ("BCX", "ABCX"), ("BCX", "BCX"), streams={"X": ["A"]})
TWO_AT_ONCE = hand(("ABC", "ABC"), ("ABC", "ABCXY"), ("AXY", "ABCXY"), ("AXY", "AXY"), streams={"X": ["B"], "Y": ["C"]})


def found(history: RangeHistory, rules: QuorumRules) -> set[str]:
    return {conflict.kind for conflict in check(history, rules).conflicts}


def test_minimal_quorums_have_no_smaller_quorum() -> None:
    assert minimal(((A | B | C, 2),)) == (A | B, A | C, B | C)
    everybody = A | B | C | X
    needs = ((A | B | C, 2), (B | C | X, 2))
    enough = [s for s in subsets(everybody) if all((s & group).bit_count() >= need for group, need in needs)]
    smallest = [s for s in enough if not any(other & s == other != s for other in enough)]
    assert sorted(minimal(needs)) == sorted(smallest) == sorted([B | C, A | B | X, A | C | X])
    assert minimal(()) == ()
    assert minimal(((0, 1),)) == ()


def test_a_majority_of_three_writers_holds_one_old_replica_of_two() -> None:
    """Factor 2: {B, X} is a majority of {A, B, X}, but no quorum of {A, B}, so R1 rejects it."""
    history = one_for_one(A | B, B | X)
    writing = history.views[1]
    assert B | X in write_quorums(history, writing, A | B | X, QuorumRules(write="majority"))
    assert write_quorums(history, writing, A | B | X, QuorumRules()) == (A | B | X,)


def test_an_uneven_factor_takes_a_pair_without_the_new_node() -> None:
    history = one_for_one(A | B | C, B | C | X)
    assert sorted(write_quorums(history, history.views[1], 31, QuorumRules())) == sorted([B | C, A | B | X, A | C | X])
    assert C | X in write_quorums(history, history.views[1], 31, QuorumRules(write="off"))


def test_quiet_views_need_a_majority_and_empty_groups_have_no_quorum() -> None:
    history = one_for_one(0, X)
    assert read_quorums(history.views[0], 31) == ()
    assert write_quorums(history, history.views[0], 31, QuorumRules()) == ()
    assert write_quorums(history, history.views[1], 31, QuorumRules()) == (X,)
    assert write_quorums(SWAP, SWAP.views[3], 15, QuorumRules()) == minimal(((SWAP.new, 2),))


def test_each_datacenter_has_its_own_quorums() -> None:
    history = one_for_one(A | B | C, B | C | X, ("dc1", "dc1", "dc2", "dc2", "dc2"))
    assert scopes(history) == (("QUORUM", 31), ("LOCAL_QUORUM in dc1", A | B), ("LOCAL_QUORUM in dc2", C | X | Y))
    assert demanded(history) == (A | B | C | X,)


@pytest.mark.parametrize("history", [SWAP, TWO_AT_ONCE])
def test_the_protocol_has_no_counterexample(history: RangeHistory) -> None:
    verdict = check(history, QuorumRules())
    assert verdict.conflicts == ()
    assert verdict.pairs > 50


WEAKENED = [
    (SWAP, QuorumRules(write="off"), NEIGHBOURS),
    (TWO_AT_ONCE, QuorumRules(write="majority"), NEIGHBOURS),
    (SWAP, QuorumRules(recheck="off"), APART),
    (SWAP, QuorumRules(gate="off"), APART),
    (TWO_AT_ONCE, QuorumRules(gate="union"), APART),
    (SWAP, QuorumRules(gates_off=("v1",)), APART),
    (SWAP, QuorumRules(gates_off=("v2",)), APART),
    (SWAP, QuorumRules(stream="off"), STREAMED),
    (SWAP, QuorumRules(step="off"), NEIGHBOURS),
]


@pytest.mark.parametrize(("history", "rules", "kind"), WEAKENED)
def test_each_rule_has_a_counterexample_without_it(history: RangeHistory, rules: QuorumRules, kind: str) -> None:
    assert kind in found(history, rules)


ONE_LESS = (("ABCDE", "ABCDE"), ("ABCDE", "ABCDE"), ("ABCD", "ABCDE"), ("ABCD", "ABCD"))


def test_a_shrinking_group_must_learn_from_the_leaver() -> None:
    """This step loses nothing, but C and D may be the only nodes with a write of {C, D, E}; the next step would lose
    it.
    """
    assert found(hand(*ONE_LESS), QuorumRules()) == {KEPT}
    (conflict,) = check(hand(*ONE_LESS), QuorumRules()).conflicts
    assert (conflict.write.bit_count(), conflict.kept) == (3, conflict.write & 0b1111)
    merged = {name: ["A", "B", "C"] for name in "ABC"}
    assert found(hand(*ONE_LESS, streams=merged), QuorumRules()) == set()
    two_of_three = {name: ["A", "B", "C"] for name in "AB"}
    assert found(hand(*ONE_LESS, streams=two_of_three), QuorumRules()) == {KEPT}
    assert found(hand(*ONE_LESS, streams=merged), QuorumRules(stream="off")) == {KEPT}


def test_an_even_group_may_lose_one_member() -> None:
    views = (("ABCD", "ABCD"), ("ABCD", "ABCD"), ("ABC", "ABCD"), ("ABC", "ABC"))
    assert found(hand(*views), QuorumRules()) == set()


def test_a_node_without_rows_knows_only_streamed_rows() -> None:
    view = RangeView("before", A | B | C, A | B | C, False)
    for sources, expected in ((A | B, set()), (A, {KEPT})):
        history = RangeHistory(("dc1",) * 3, (view,), streams=(RangeStream(C, sources, A | B, afresh=True),))
        assert found(history, QuorumRules()) == expected


def test_simple_strategy_has_no_datacenter_quorums() -> None:
    views = one_for_one(A | B | C | X, A | B | X | Y, ("dc1", "dc1", "dc1", "dc2", "dc2")).views
    streams = (RangeStream(Y, C, A | B | C | X),)
    for local, levels in ((True, {"LOCAL_QUORUM in dc1", "LOCAL_QUORUM in dc2"}), (False, set())):
        history = RangeHistory(("dc1", "dc1", "dc1", "dc2", "dc2"), views, streams=streams, local=local)
        assert {one.level for one in check(history, QuorumRules()).conflicts if one.kind == KEPT} == levels


def test_for_one_replica_a_majority_of_the_union_is_enough() -> None:
    """The barriers of CEP-21 are safe while one replica replaces one, and unsafe for two at the same time."""
    assert found(SWAP, QuorumRules(gate="union", write="majority")) == set()


def test_the_two_examples_of_cep_21() -> None:
    """Without barriers: a late read of {A, B} with a write to {C, X}, and a late write to {A, B} with a read."""
    late_read = [
        (r, w)
        for r in read_quorums(SWAP.views[1], 15)
        for w in write_quorums(SWAP, SWAP.views[3], 15, QuorumRules())
        if not r & w
    ]
    assert (A | B, C | X) in late_read
    conflicts = [c for c in check(SWAP, QuorumRules(gate="off")).conflicts if c.kind == APART]
    assert [(c.informed, abs(c.reader - c.writer) >= 2, c.read & c.write) for c in conflicts] == [(0, True, 0)]


def test_every_conflict_is_two_quorums_without_a_common_node() -> None:
    for history, rules, _ in WEAKENED:
        for conflict in check(history, rules).conflicts:
            views = check(history, rules).history.views
            assert conflict.read & conflict.write == 0
            assert conflict.read & ~views[conflict.reader].read == 0
            assert conflict.write & ~views[conflict.writer].write == 0


def test_larger_quorums_do_not_matter() -> None:
    """The shortcut with minimal quorums against all quorums, for each pair of views of the swap."""
    for rules in (QuorumRules(), QuorumRules(write="off"), QuorumRules(write="majority")):
        for reader, writer in ((r, w) for r in range(4) for w in range(4)):
            reads = read_quorums(SWAP.views[reader], 15)
            writes = write_quorums(SWAP, SWAP.views[writer], 15, rules)
            all_reads = [s for s in subsets(SWAP.views[reader].read) if any(s & q == q for q in reads)]
            all_writes = [s for s in subsets(SWAP.views[writer].write) if any(s & q == q for q in writes)]
            smallest = any(not r & w for r in reads for w in writes)
            assert smallest == any(not r & w for r in all_reads for w in all_writes)


@pytest.mark.parametrize(("old", "new"), combinations((A, A | B, B | C, A | B | C, C | X, A | B | C | X), 2))
def test_r1_intersects_every_neighbour_for_all_groups(old: int, new: int) -> None:
    history = one_for_one(old, new)
    assert {c.kind for c in check(history, QuorumRules()).conflicts} <= {APART, STREAMED, KEPT}


@pytest.mark.parametrize(
    ("history", "message"),
    [
        ({"views": []}, "at least two"),
        ({"views": [{"read": ["A"], "write": []}, {"read": [], "write": []}]}, "reads but does not write"),
        ({"views": [{"read": "A", "write": []}, {"read": [], "write": []}]}, "list of names"),
        ({"views": [{"read": [], "write": [], "writes": []}] * 2}, "a view can have"),
        ({"views": [{"name": "v", "read": ["A"], "write": ["A"]}] * 2}, "twice in a row"),
        ({"views": [], "colour": 1}, "a history can have"),
    ],
)
def test_a_bad_drawing_is_reported(history: dict[str, object], message: str) -> None:
    with pytest.raises(BadDescription, match=message):
        drawn({"histories": [history]})


@pytest.mark.parametrize("module", [model, check_module])
def test_the_check_does_not_import_the_kernel(module: ModuleType) -> None:
    tree = ast.parse(inspect.getsource(module))
    imported = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    ours = {name for name in imported if name.startswith("ringlog")}
    assert ours <= {"ringlog.kernel.values", "ringlog_testing.quorums.model"}, "only the base class of values is shared"

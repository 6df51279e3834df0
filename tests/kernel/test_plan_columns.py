"""Lists of a plan stored in columns equal plain tuples: as values, in encodings, and by replication setting."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from immutables import Map
from msgspec import structs

from ringlog.kernel.encoding.digester import Digester
from ringlog.kernel.encoding.encoder import digest, encode
from ringlog.kernel.model.outcome import Entry
from ringlog.kernel.model.plan_columns import (
    ChangeList,
    LockList,
    RangeColumn,
    SourceList,
    column_of,
    columns_of,
    in_columns,
)
from ringlog.kernel.model.state import (
    EMPTY_STATE,
    Change,
    ClusterState,
    Deltas,
    LockedRange,
    Operation,
    Plan,
    Source,
    advance,
)
from ringlog.kernel.values import replace
from tests.kernel.entries import Noop, applied, entry, founded
from tests.kernel.operations.driver import SEED

NODES = st.sampled_from("ABCD")
SAID: dict[type, tuple[Any, Any]] = {
    ChangeList: (NODES, Change),
    SourceList: (st.tuples(NODES, NODES), lambda key, start, end, pair: Source(key, start, end, *pair)),
    LockList: (st.integers(1, 9), LockedRange),
}
kinds = pytest.mark.parametrize("kind", list(SAID))
Columns = dict[str, RangeColumn[Any]]


@st.composite
def columns(draw: st.DrawFn, kind: type) -> Columns:
    """Draw columns of a few settings. Some columns share a setting."""
    ends = st.lists(st.integers(-20, 20), min_size=1, max_size=4, unique=True).map(sorted)
    own: list[RangeColumn[Any]] = []
    for _ in range(draw(st.integers(1, 3))):
        ranges = [(end - 1, end) for end in draw(ends)]
        said = st.lists(SAID[kind][0], min_size=1, max_size=2, unique=True).map(tuple)
        own.append(RangeColumn(ranges, [draw(said) for _ in ranges]))
    return {key: draw(st.sampled_from(own)) for key in "pqrs"[: draw(st.integers(1, 4))]}


def plainly(kind: type, of: Columns) -> tuple[Any, ...]:
    one = SAID[kind][1]
    return tuple(
        one(key, *range_, item)
        for key, column in of.items()
        for range_, items in zip(column.ranges, column.items, strict=True)
        for item in items
    )


def listed(kind: type, of: Columns) -> Any:
    return in_columns(kind, of)


@kinds
@given(st.data())
def test_columns_equal_the_values(kind: type, data: st.DataObject) -> None:
    of = data.draw(columns(kind))
    values = listed(kind, of)
    expected = plainly(kind, of)
    assert type(values).__name__ == kind.__name__
    assert (len(values), bool(values)) == (len(expected), True)
    assert values._made is None  # does not create single values
    assert values == expected
    assert expected == values
    assert hash(values) == hash(expected)
    assert encode(values) == encode(expected)
    assert repr(values) == repr(expected)
    assert (values[0], values[1:], values[-1]) == (expected[0], expected[1:], expected[-1])
    assert pickle.loads(pickle.dumps(values)) == values
    assert all(one is other for one, other in zip(values, values[:], strict=True))
    assert columns_of(values) is of
    gathered = columns_of(expected)
    assert list(gathered) == list(of)
    for key, column in of.items():
        assert gathered[key].ranges == column.ranges
        assert list(gathered[key].items) == column.items


@kinds
@given(st.data())
def test_other_values_are_not_equal(kind: type, data: st.DataObject) -> None:
    one, other = data.draw(columns(kind)), data.draw(columns(kind))
    same = plainly(kind, one) == plainly(kind, other)
    assert (listed(kind, one) == listed(kind, other)) is same
    assert (listed(kind, one) == plainly(kind, other)) is same
    assert listed(kind, one) != list(plainly(kind, one))


@kinds
def test_empty_columns_equal_the_empty_tuple(kind: type) -> None:
    assert listed(kind, {}) == ()
    assert type(listed(kind, {})) is tuple
    assert columns_of(()) == {}


def test_empty_ranges_are_skipped() -> None:
    ranges = [(0, 1), (1, 2), (2, 3)]
    assert column_of(ranges, [(), (), ()]) is None
    part = column_of(ranges, [("A",), (), ("B", "C")])
    assert part is not None
    assert list(part.each()) == [((0, 1), ("A",)), ((2, 3), ("B", "C"))]
    whole = column_of(ranges, [("A",)] * 3)
    assert whole is not None
    assert whole.ranges is ranges


@given(st.data())
def test_columns_do_not_change_the_digest(data: st.DataObject) -> None:
    drawn = {kind: data.draw(columns(kind)) for kind in SAID}
    lists = [listed(kind, of) for kind, of in drawn.items()]
    digester = Digester()
    for stage in ("requested", "prepared"):  # the second pass uses the cache
        expected = digest(planned(stage, *(plainly(kind, of) for kind, of in drawn.items())))
        found = planned(stage, *lists)
        assert digester.digest(found) == digest(found) == expected


def planned(stage: str, changes: Any, sources: Any, locks: Any) -> ClusterState:
    """Return a state with one operation that has these lists."""
    plan = Plan(start=Deltas(write_added=changes), sources=sources)
    one = Operation("o", "join", "A", (1,), SEED, stage, 1, plan, locks, None, (), (), "")
    return ClusterState(operations=Map({one.id: one}))


# A value created by the fast constructor equals the value of its class.


STATE = applied(founded(), Noop())


def test_a_state_with_other_fields_is_constructed_alike() -> None:
    again = replace(STATE, epoch=STATE.epoch)
    assert again == STATE
    assert encode(again) == encode(STATE)
    assert pickle.loads(pickle.dumps(replace(EMPTY_STATE, name="x"))) == ClusterState(name="x")


def test_a_value_never_changes() -> None:
    made = entry(STATE, Noop())
    assert replace(made, at=7) == Entry(**structs.asdict(made) | {"at": 7}) != made
    assert replace(made) == made
    with pytest.raises(TypeError, match="epoch"):
        replace(made, epoch=1)  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        made.at = 8  # type: ignore[misc]


def test_a_changed_section_is_stamped() -> None:
    same, other = STATE.nodes, STATE.settings.set("history_entries", 7)
    after = advance(STATE, 9, nodes=same, settings=other, name="x")
    assert after == replace(STATE, settings=other, name="x", changed=STATE.changed.set("settings", 9))
    assert advance(STATE, 9) == STATE
    with pytest.raises(TypeError, match="node"):
        advance(STATE, 9, node=same)

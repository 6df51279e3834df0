"""Reading by last write wins: worked cases, and against a model that decides column by column."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ringlog.node.merge import SECOND_US, CellState, RowState, merged
from ringlog.wire.records import INSERT, PARTITION_DELETE, ROW_DELETE, UPDATE, Cell, Mutation
from tests.node.world import write

ROW = (1).to_bytes(8, "big")
FOREVER = 0


def put(at: int, operation: str = INSERT, ttl: int | None = None, number: int = 1, **cells: bytes | None) -> Mutation:
    changes: dict[str, object] = {"operation": operation, "ttl": ttl}
    changes["cells"] = tuple(Cell(name, value) for name, value in cells.items())
    if operation == PARTITION_DELETE:
        changes["clustering_key"] = ()
    return write("k", number, at, **changes)


def only(*writes: Mutation, now: int = FOREVER) -> RowState | None:
    found = merged(writes, now)
    assert merged(reversed(writes), now) == found, "the order of arrival counts"
    return found[0] if found else None


def test_the_later_write_of_a_column_wins_and_others_stay() -> None:
    assert only(put(1, a=b"1", b=b"1"), put(2, UPDATE, a=b"2")) == RowState(
        (ROW,), 1, (CellState("a", b"2", 2), CellState("b", b"1", 1))
    )


def test_of_equal_timestamps_a_delete_wins_then_the_greater_value() -> None:
    assert only(put(1, a=b"1"), put(1, UPDATE, a=b"2"), put(1, UPDATE, b=b"1"), put(1, UPDATE, b=None)) == RowState(
        (ROW,), 1, (CellState("a", b"2", 1),)
    )


def test_a_row_delete_covers_up_to_its_timestamp() -> None:
    assert only(put(1, a=b"1"), put(1, ROW_DELETE)) is None
    assert only(put(1, a=b"1"), put(1, ROW_DELETE), put(2, UPDATE, b=b"2")) == RowState(
        (ROW,), None, (CellState("b", b"2", 2),)
    )


def test_a_partition_delete_covers_every_row() -> None:
    assert merged([put(1, number=1, a=b"1"), put(3, number=2, a=b"3"), put(2, PARTITION_DELETE)], FOREVER) == (
        RowState(((2).to_bytes(8, "big"),), 3, (CellState("a", b"3", 3),)),
    )


def test_an_updated_row_lives_by_its_cells_only() -> None:
    assert only(put(1, UPDATE, a=b"1"), put(2, UPDATE, a=None)) is None
    assert only(put(1, INSERT, a=b"1"), put(2, UPDATE, a=None)) == RowState((ROW,), 1, ())


def test_what_expired_does_not_bring_back_what_it_replaced() -> None:
    writes = (put(1, a=b"1"), put(2, UPDATE, ttl=10, a=b"2"))
    end = 2 + 10 * SECOND_US
    assert only(*writes, now=end - 1) == RowState((ROW,), 1, (CellState("a", b"2", 2),))
    assert only(*writes, now=end) == RowState((ROW,), 1, ())
    assert only(put(1, INSERT, ttl=10, a=b"1"), now=1 + 10 * SECOND_US) is None


operations = st.sampled_from([INSERT, UPDATE, ROW_DELETE, PARTITION_DELETE])
values = st.none() | st.sampled_from([b"", b"1", b"2"])
writes_ = st.lists(
    st.builds(
        lambda at, operation, a, b: put(at, operation, None, 1, **({} if "DELETE" in operation else {"a": a, "b": b})),
        st.integers(0, 4),
        operations,
        values,
        values,
    ),
    max_size=8,
)


@given(writes_)
def test_against_a_model_per_column(given_: list[Mutation]) -> None:
    deletes = [w.timestamp for w in given_ if "DELETE" in w.operation]
    alive = [w for w in given_ if "DELETE" not in w.operation and w.timestamp > max(deletes, default=-1)]
    expected = {}
    for column in ("a", "b"):
        cells = [(w.timestamp, c.value) for w in alive for c in w.cells if c.column == column]
        newest = [value for at, value in cells if at == max(at for at, _ in cells)]
        if newest and None not in newest:
            expected[column] = max(newest)  # type: ignore[type-var]
    row = only(*given_)
    inserts = [w.timestamp for w in alive if w.operation == INSERT]
    if not expected and not inserts:
        assert row is None
    else:
        assert row is not None
        assert {cell.column: cell.value for cell in row.cells} == expected
        assert row.inserted == max(inserts, default=None)

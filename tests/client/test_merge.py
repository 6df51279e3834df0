"""One partition as a reader sees it: examples of the merged writes of a node."""

from __future__ import annotations

from ringlog.client.data.row_merge import LiveCell, LivePartition, LiveRow, merged
from ringlog.kernel.cql.types import serialize
from ringlog.kernel.generations.statements import TableShape
from ringlog.kernel.values import SECOND_US
from ringlog.wire.records import (
    INSERT,
    PARTITION_DELETE,
    ROW_DELETE,
    UPDATE,
    Cell,
    DeletedElements,
    Mutation,
    MutationStatement,
)
from tests.node.world import write

ROW = (1).to_bytes(8, "big")
SHAPE = TableShape(1, 1, False, ("text",), ("bigint",), ("s",), (("m", "map<text, int>"),))
EARLY = 0


def put(at: int, operation: str = INSERT, ttl: int | None = None, number: int = 1, **cells: bytes | None) -> Mutation:
    changes: dict[str, object] = {"operation": operation, "ttl": ttl}
    changes["cells"] = tuple(Cell(name, value) for name, value in cells.items())
    if operation == PARTITION_DELETE:
        changes["clustering_key"] = ()
    return write("k", number, at, **changes)


def merged_in_any_order(*writes: Mutation, now: int = EARLY) -> LivePartition:
    found = merged(writes, SHAPE, now)
    assert merged([*reversed(writes), *writes], SHAPE, now) == found, "the order of arrival counts"
    return found


def only(*writes: Mutation, now: int = EARLY) -> LiveRow | None:
    rows = merged_in_any_order(*writes, now=now).rows
    return rows[0] if rows else None


def test_the_later_write_of_a_column_wins_and_others_stay() -> None:
    assert only(put(1, a=b"1", b=b"1"), put(2, UPDATE, a=b"2")) == LiveRow(
        (ROW,), 1, (LiveCell("a", b"2", 2), LiveCell("b", b"1", 1))
    )


def test_equal_timestamps_prefer_deletes_then_expiring_then_greater_values() -> None:
    assert only(put(1, a=b"1"), put(1, UPDATE, a=b"2"), put(1, UPDATE, b=b"1"), put(1, UPDATE, b=None)) == LiveRow(
        (ROW,), 1, (LiveCell("a", b"2", 1),)
    )
    assert only(put(1, a=b"2"), put(1, UPDATE, 9, a=b"1")) == LiveRow((ROW,), 1, (LiveCell("a", b"1", 1),))


def test_deletes_cover_up_to_their_timestamp() -> None:
    assert only(put(1, a=b"1"), put(1, ROW_DELETE)) is None
    assert only(put(1, a=b"1"), put(1, ROW_DELETE), put(2, UPDATE, b=b"2")) == LiveRow(
        (ROW,), None, (LiveCell("b", b"2", 2),)
    )
    assert merged_in_any_order(put(1, number=1, a=b"1"), put(3, number=2, a=b"3"), put(2, PARTITION_DELETE)).rows == (
        LiveRow(((2).to_bytes(8, "big"),), 3, (LiveCell("a", b"3", 3),)),
    )


def test_an_updated_row_lives_by_its_cells_only() -> None:
    assert only(put(1, UPDATE, a=b"1"), put(2, UPDATE, a=None)) is None
    assert only(put(1, INSERT, a=b"1"), put(2, UPDATE, a=None)) == LiveRow((ROW,), 1, ())


def test_an_expired_cell_does_not_restore_the_replaced_one() -> None:
    writes = (put(1, a=b"1"), put(2, UPDATE, ttl=10, a=b"2"))
    end = 2 + 10 * SECOND_US
    assert only(*writes, now=end - 1) == LiveRow((ROW,), 1, (LiveCell("a", b"2", 2),))
    assert only(*writes, now=end) == LiveRow((ROW,), 1, ())
    assert only(put(1, INSERT, ttl=10, a=b"1"), now=1 + 10 * SECOND_US) is None


def test_a_collection_is_merged_by_its_elements_and_shown_whole() -> None:
    def pairs(*items: tuple[str, int]) -> bytes:
        return serialize("frozen<map<text, int>>", items)

    first = put(1, m=pairs(("x", 1), ("y", 1)))
    more = (
        MutationStatement(UPDATE, (ROW,), (Cell("s", b"s"),), 3),
        MutationStatement(UPDATE, (ROW,), (Cell("m", pairs(("z", 3))),), 3),
    )
    second = write("k", 1, 2, operation=UPDATE, cells=(), more=more)
    third = write("k", 1, 4, operation=UPDATE, cells=(), deleted_elements=(DeletedElements("m", (b"x",)),))
    row = LiveRow((ROW,), 1, (LiveCell("m", pairs(("y", 1), ("z", 3)), 3),))
    assert merged_in_any_order(first, second, third) == LivePartition((LiveCell("s", b"s", 3),), (row,))


def test_a_value_older_than_the_collection_type_is_ignored() -> None:
    assert only(put(1, m=b"no map", a=b"1")) == LiveRow((ROW,), 1, (LiveCell("a", b"1", 1),))

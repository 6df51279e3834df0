"""Compaction removes only versions that no reader needs: all orders of arrival, at any instant."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from itertools import combinations, permutations
from pathlib import Path
from random import Random

import pytest

from ringlog.client.data.row_merge import partition_of
from ringlog.kernel.commands.cdc.verdicts import SettleVerdicts
from ringlog.kernel.commands.schema.tables import DropTable
from ringlog.kernel.generations.statements import TableShape
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.ring.murmur3 import compose
from ringlog.kernel.rows.reading import seen
from ringlog.kernel.rows.writes import columns_of
from ringlog.kernel.values import replace
from ringlog.node.checks import token_of_partition
from ringlog.node.rows import compaction
from ringlog.node.rows.compaction import COMPACTED_AFTER, PAGE_BYTES, PartitionScan, RedundantVersions
from ringlog.node.rows.disk_rows import DiskRows
from ringlog.node.rows.memory_rows import MemoryRows
from ringlog.node.rows.replica import RowReplica
from ringlog.node.rows.row_reads import answered
from ringlog.wire.data import NOT_MEMBER, PARTITION_BYTES_MAX, TOO_LARGE, ReadRowsReply, ReadRowsRequest, RowVersion
from ringlog.wire.records import PARTITION_DELETE, Cell, Mutation, decode_mutation, encode_mutation
from tests.kernel.entries import applied, uuid
from tests.kernel.rows import histories
from tests.kernel.rows.histories import SECOND, Statement, draw, model, mutation_of, viewed
from tests.node.world import APPENDED, TABLE, cluster, name_of, write
from tests.record_keys import record_key

SHAPE = replace(histories.SHAPE, columns=("s", "v", "w", "m", "e", "u"))
COLUMNS = columns_of(SHAPE)
NAME = ("ks.t", b"p")
TOKEN = token_of_partition(b"p")


class Rows:
    """Rows in memory without a node."""

    def __init__(self, shape: TableShape = SHAPE) -> None:
        self.drops = 0
        self.scans: list[PartitionScan] = []
        self.store = MemoryRows()
        self.lock = threading.RLock()
        self._shape = shape

    def shape(self, _: str) -> TableShape:
        return self._shape

    def has_table(self, _: str) -> bool:
        return True

    def partition(self, table: str, key: bytes, bytes_max: int) -> list[RowVersion] | None:
        return self.store.partition(table, TOKEN, key, bytes_max)

    def remove(self, versions: Sequence[RowVersion]) -> None:
        self.store.remove(versions)

    def add(self, mutation: Mutation) -> None:
        value = encode_mutation(mutation)
        self.store.add(RowVersion(*NAME[:1], TOKEN, b"p", mutation.clustering_key, mutation.timestamp, value))

    def compact(self) -> None:
        scan = PartitionScan(self, NAME)
        while not scan.is_done:
            scan.step(keeps=False)

    def writes(self) -> list[Mutation]:
        return [decode_mutation(one.value) for one in self.store.versions(((0, 0),))]


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "PAGE_VERSIONS", 3)


def test_a_partition_has_the_same_state_with_and_without_compaction() -> None:
    removed = 0
    for number in range(250):
        chance = Random(number)
        statements = [[draw(chance, 12) for _ in range(chance.choice((1, 1, 1, 2)))] for _ in range(14)]
        compacted, whole = Rows(), Rows()
        for together in statements:
            for rows in (compacted, whole):
                rows.add(mutation_of(together))
            if chance.random() < 0.4:
                compacted.compact()
        state = partition_of(compacted.writes(), SHAPE)
        assert state == partition_of(whole.writes(), SHAPE), f"seed {number}"
        for now in (5 * SECOND, 15 * SECOND, 40 * SECOND):
            wanted = model([one for together in statements for one in together], now)
            assert viewed(seen(state, COLUMNS, now)) == wanted, f"seed {number} at {now}"
        removed += len(whole.writes()) - len(compacted.writes())
    assert removed > 250, "many writes are redundant"


KEY = (0, 0)


@pytest.mark.parametrize("is_earlier", [False, True], ids=["written below it", "written above it"])
def test_a_deleted_partition_removes_unknown_columns(is_earlier: bool) -> None:
    """A partition tombstone covers all columns, even dropped or growing ones that keep their versions."""
    deleted = (0 if is_earlier else 9) * SECOND
    rows, whole = Rows(replace(SHAPE, columns=("s", "w"))), Rows()
    for one in (rows, whole):
        for second in (1, 2, 3):
            one.add(mutation_of([Statement("update", second * SECOND, KEY, (("v", second),))]))
        one.add(mutation_of([Statement("partition_delete", deleted)]))
        one.add(mutation_of([Statement("update", 12 * SECOND, KEY, (("w", "a"),))]))
    rows.compact()
    assert len(rows.writes()) == (5 if is_earlier else 2)
    assert partition_of(rows.writes(), SHAPE) == partition_of(whole.writes(), SHAPE)


FEW = (
    Statement("insert", SECOND, KEY, (("v", 1), ("w", "a"))),
    Statement("insert", 2 * SECOND, KEY, (("v", 2),), ttl=3),
    Statement("update", 2 * SECOND, KEY, (("v", None),)),
    Statement("update", 3 * SECOND, KEY, (("w", "b"), ("e", (1,))), replaced=("e",)),
    Statement("row_delete", 2 * SECOND, KEY),
    Statement("range_delete", 3 * SECOND, bounds=((0,), True, (0,), True)),
    Statement("partition_delete", 2 * SECOND),
    Statement("static", 3 * SECOND, (), (("s", 1),)),
)


def test_every_arrival_order_leads_to_the_same_state() -> None:
    for some in combinations(FEW, 3):
        wanted = partition_of([mutation_of([one]) for one in some], SHAPE)
        for arrival in permutations(some):
            rows = Rows()
            for one in arrival:
                rows.add(mutation_of([one]))
                rows.compact()
            assert partition_of(rows.writes(), SHAPE) == wanted, arrival


def test_tombstones_and_the_newest_values_stay() -> None:
    rows = Rows()
    kept = [
        Statement("partition_delete", 2 * SECOND),
        Statement("range_delete", 5 * SECOND, bounds=((1,), True, (1,), True)),
        Statement("update", 6 * SECOND, (1, 0), (("v", 2),)),
        Statement("update", 6 * SECOND, KEY, (("w", "b"),)),
    ]
    redundant = [
        Statement("partition_delete", SECOND),
        Statement("insert", 2 * SECOND, KEY, (("v", 1),)),
        Statement("insert", 5 * SECOND, (1, 1), (("v", 1),)),
        Statement("update", 5 * SECOND, KEY, (("w", "a"),)),
        Statement("static", 2 * SECOND, (), (("s", 1),)),
    ]
    for one in (*redundant, *kept):
        rows.add(mutation_of([one]))
    rows.compact()
    assert sorted(map(repr, rows.writes())) == sorted(repr(mutation_of([one])) for one in kept)


@pytest.mark.parametrize(
    ("shape", "column"),
    [(replace(SHAPE, columns=("s", "v", "m", "e", "u")), "w"), (SHAPE, "u"), (replace(SHAPE, columns=None), "v")],
    ids=["a column that is not known", "a user type may grow", "columns are not known"],
)
def test_versions_that_another_schema_reads_differently_stay(shape: TableShape, column: str) -> None:
    value = {"w": "a", "u": {"a": 1}, "v": 1}[column]
    rows = Rows(shape)
    for at in (1, 2, 3):
        rows.add(mutation_of([Statement("update", at * SECOND, KEY, ((column, value),), replaced=())]))
    rows.compact()
    assert len(rows.writes()) == 3


def test_invalid_collection_bytes_stay() -> None:
    rows = Rows()
    for at in (1, 2):
        wrong = mutation_of([Statement("update", at * SECOND, KEY)])
        rows.add(replace(wrong, cells=(Cell("m", b"\xff"),)))
    rows.compact()
    assert len(rows.writes()) == 2


# ------------------------------------------------------------------------------------------------- compaction in a node

STATE = applied(cluster((0,), factor=1), SettleVerdicts(APPENDED + 10**12))
ANN = compose([b"ann"])


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RowReplica]:
    """Return a node that has the whole ring on its disk."""
    monkeypatch.setattr(compaction, "PAGE_VERSIONS", 500)
    rows = DiskRows(tmp_path / "rows.sqlite", name_of(1))
    made = RowReplica(name_of(1), rows)
    made.positions[0] = 0
    made.adopt(STATE)
    made.caught_up = True
    made.topic_id = uuid(7)
    yield made
    rows.close()


def written(node: RowReplica, at: int, number: int = 1, **changes: object) -> bytes:
    value = encode_mutation(write("ann", number, APPENDED + at, **changes))
    assert node.validate_record(value, APPENDED + at, record_key(value)) == "kept"
    node.advance_position(0, node.positions[0] + 1)
    return value


def read_rows(node: RowReplica, state: ClusterState = STATE) -> ReadRowsReply:
    table_id = uuid(1, space=9)
    where = state.cluster_id, node.node, state.epoch, state.state_id, TABLE, table_id, ANN
    return answered(node, ReadRowsRequest(*where, (), False, False))


def overwritten(node: RowReplica, size: int, times: int) -> bytes:
    for at in range(times):
        last = written(node, at, cells=(Cell("note", b"x" * size),))
    return last


def test_an_often_overwritten_row_stays_readable(node: RowReplica) -> None:
    last = overwritten(node, 2_000, PARTITION_BYTES_MAX // 2_000 + 500)
    assert read_rows(node).writes == (last,)
    assert len(node.store) == 1
    deleted = written(node, 10**6, operation=PARTITION_DELETE, clustering_key=(), cells=())
    assert set(read_rows(node).writes) == {last, deleted}, "a small partition is returned unchanged"


def test_an_unread_partition_is_compacted_in_the_background(node: RowReplica) -> None:
    last = overwritten(node, 10, COMPACTED_AFTER + 10)
    for _ in range(COMPACTED_AFTER // 500 + 4):
        node.commit()
        node.compact()
    assert [one.value for one in node.partition(TABLE, ANN) or ()] == [last]
    node.commit(sync=True)


def test_a_read_of_a_large_partition_stops_at_the_bound(node: RowReplica, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(300):
        written(node, number, number, cells=(Cell("note", b"x" * 100_000),))
    pages: list[int] = []
    page = node.store.page

    def counted(*arguments: object) -> list[RowVersion]:
        found: list[RowVersion] = page(*arguments)  # type: ignore[arg-type]
        pages.append(sum(len(one.value) for one in found))
        return found

    monkeypatch.setattr(node.store, "page", counted)
    assert read_rows(node).refused == TOO_LARGE
    assert max(pages) <= PAGE_BYTES + 200_000
    assert sum(pages) <= PARTITION_BYTES_MAX + PAGE_BYTES + 200_000


def test_an_answer_contains_writes_between_its_pages(node: RowReplica, monkeypatch: pytest.MonkeyPatch) -> None:
    """The positions of the answer include the concurrent write, so the answer must contain it."""
    overwritten(node, 300, 2_000)
    among = RedundantVersions.among
    meanwhile: list[bytes] = []

    def busy(self: RedundantVersions, versions: Sequence[RowVersion]) -> list[RowVersion]:
        if not meanwhile:
            other = threading.Thread(target=lambda: meanwhile.append(written(node, 5_000, 2)))
            other.start()
            other.join(60)
            assert meanwhile, "the lock is free"
        return among(self, versions)

    monkeypatch.setattr(RedundantVersions, "among", busy)
    reply = read_rows(node)
    assert meanwhile[0] in reply.writes
    assert dict(reply.positions) == dict(node.positions)


def test_a_table_dropped_during_a_read_returns_nothing(node: RowReplica, monkeypatch: pytest.MonkeyPatch) -> None:
    overwritten(node, 300, 2_000)
    among, after = RedundantVersions.among, applied(STATE, DropTable("shop", "orders"))

    def dropped(self: RedundantVersions, versions: Sequence[RowVersion]) -> list[RowVersion]:
        node.adopt(after)
        return among(self, versions)

    monkeypatch.setattr(RedundantVersions, "among", dropped)
    assert read_rows(node).refused == NOT_MEMBER
    assert len(node.store) == 0

"""Last-write-wins rows: the join satisfies the laws of a semilattice, and readers see the rows of a brute-force
model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import reduce
from random import Random

from ringlog.kernel.cql.types import serialize
from ringlog.kernel.rows.cells import NEVER, NOTHING, RowCell, RowState, join_rows, row_state, under
from ringlog.kernel.rows.partition import PartitionState, join, partition_state
from ringlog.kernel.rows.reading import live_rows, next_expiry, seen
from ringlog.kernel.rows.writes import columns_of, effect_of, written_row
from ringlog.kernel.values import replace
from ringlog.wire.records import Mutation
from tests.kernel.rows.histories import KINDS, SECOND, SHAPE, Statement, draw, model, mutation_of, viewed

COLUMNS = columns_of(SHAPE)
SEEDS = 250


def effect(mutation: Mutation) -> PartitionState:
    return effect_of(mutation, SHAPE, COLUMNS)


def joined(states: Iterable[PartitionState]) -> PartitionState:
    return reduce(lambda one, other: join(one, other, COLUMNS), states, PartitionState())


def drawn(chance: Random, most: int = 6) -> list[Statement]:
    latest = chance.choice((3, 30))
    return [draw(chance, latest) for _ in range(chance.randint(1, most))]


def test_rows_equal_the_model_in_any_order_of_arrival() -> None:
    met: Counter[str] = Counter()
    for seed in range(SEEDS):
        chance = Random(seed)
        writes = [drawn(chance) for _ in range(chance.randint(1, 6))]
        met.update(statement.kind for write in writes for statement in write)
        arrivals = [*writes, *chance.sample(writes, len(writes) // 2)]
        chance.shuffle(arrivals)
        state = joined(effect(mutation_of(write)) for write in arrivals)
        for now in (0, 15 * SECOND, 31 * SECOND, 60 * SECOND):
            wanted = model([statement for write in writes for statement in write], now)
            assert viewed(seen(state, COLUMNS, now)) == wanted, (seed, now)
    assert set(met) == set(KINDS)


def test_the_join_is_commutative_associative_and_idempotent() -> None:
    for seed in range(SEEDS):
        chance = Random(seed)
        a, b, c = (joined(effect(mutation_of(drawn(chance, 8))) for _ in range(2)) for _ in range(3))
        assert join(a, b, COLUMNS) == join(b, a, COLUMNS), seed
        assert join(join(a, b, COLUMNS), c, COLUMNS) == join(a, join(b, c, COLUMNS), COLUMNS), seed
        assert join(a, a, COLUMNS) == a, seed
        assert join(join(a, b, COLUMNS), b, COLUMNS) == join(a, b, COLUMNS), seed
        assert join(PartitionState(), a, COLUMNS) == a == join(a, PartitionState(), COLUMNS), seed


def test_single_rows_satisfy_the_join_laws() -> None:
    for seed in range(SEEDS):
        chance = Random(seed)
        a, b, c = (row(chance) for _ in range(3))
        assert join_rows(a, b) == join_rows(b, a), seed
        assert join_rows(join_rows(a, b), c) == join_rows(a, join_rows(b, c)), seed
        assert join_rows(a, a) == a == join_rows(a, NOTHING), seed
        gone = chance.randint(0, 4)
        assert under(join_rows(a, b), gone) == under(join_rows(under(a, gone), b), gone), seed


def row(chance: Random) -> RowState:
    cells = [
        (chance.choice((("v", None), ("m", b"x"), ("m", b"y"))), cell(chance)) for _ in range(chance.randint(0, 4))
    ]
    wiped = {"m": chance.randint(0, 4)} if chance.random() < 0.3 else {}
    deleted = chance.choice((NEVER, NEVER, chance.randint(0, 4)))
    return row_state(deleted, chance.choice((None, cell(chance, (b"",)))), cells, wiped)


def cell(chance: Random, values: tuple[bytes | None, ...] = (None, b"", b"1")) -> RowCell:
    value = chance.choice(values)
    return RowCell(chance.randint(0, 4), value, None if value is None else chance.choice((None, 5, 6)))


def test_a_write_equals_the_join_of_its_statements() -> None:
    for seed in range(SEEDS):
        statements = drawn(Random(seed), 8)
        assert effect(mutation_of(statements)) == joined(effect(mutation_of([one])) for one in statements), seed


def test_statements_inherit_timestamp_and_ttl() -> None:
    whole = mutation_of([Statement("insert", 5 * SECOND, (1, 1), (("v", 1),), ttl=7)])
    (more,) = mutation_of([Statement("update", 1, (1, 1), (("v", 2),))] * 2).more
    same = effect(replace(whole, more=(replace(more, timestamp=None, ttl=None),)))
    assert [found.expires for found in same.rows[whole.clustering_key].cells.values()] == [12 * SECOND]
    stays = effect(replace(whole, more=(replace(more, timestamp=6 * SECOND, ttl=0),)))
    ((place, kept),) = stays.rows[whole.clustering_key].cells.items()
    assert (place, kept) == (("v", None), RowCell(6 * SECOND, serialize("int", 2)))
    assert next_expiry(stays, 0) == 12 * SECOND, "of the row marker"
    assert next_expiry(stays, 12 * SECOND) is None


def test_a_replaced_collection_keeps_its_new_elements() -> None:
    def put(at: int, *cells: tuple[str, bytes | None]) -> RowState:
        return written_row(COLUMNS, at, None, cells)

    one, two = serialize("frozen<set<int>>", (1,)), serialize("frozen<set<int>>", (2,))
    state = join_rows(put(9, ("e", one)), put(10, ("e", None), ("e", two)))
    assert {key for _, key in state.cells} == {serialize("int", 2)}
    assert ("e", serialize("int", 1)) in join_rows(put(10, ("e", one)), state).cells, "an equal timestamp keeps it"
    static, rows = live_rows(PartitionState(static=state), COLUMNS, 0)
    assert static is not None
    assert not rows


def test_an_empty_range_deletion_is_not_stored() -> None:
    empty = Statement("range_delete", 3, bounds=((1,), True, (0,), True))
    assert effect(mutation_of([empty])) == PartitionState()


def test_equal_sorting_keys_are_ordered_by_bytes() -> None:
    """Otherwise the hash seed of a process would determine the order for readers."""
    columns = columns_of(replace(SHAPE, clustering_key=1, clustering_types=("double",)))
    keys = [(serialize("double", value),) for value in (0.0, -0.0)]
    live = RowState(marker=RowCell(1, b""))
    for some in (keys, keys[::-1]):
        state = partition_state(columns, rows=[(key, live) for key in some])
        assert [key for key, _ in live_rows(state, columns, 0)[1]] == sorted(keys)

"""One admission rule for base rows and CDC rows: the kernel's definition against the CDC job, write by write."""

from __future__ import annotations

import json

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from ringlog.kernel.generations.admission import refused, rules_of
from ringlog.kernel.generations.describe import generate
from ringlog.kernel.model.state import Generation
from ringlog.kernel.ring.murmur3 import COMPONENT_BYTES_MAX, compose, token_of
from ringlog.kernel.values import replace
from ringlog.node.rows.partial_decode import plain
from ringlog.node.rows.replica import KEPT, NOT_OWNED, RowReplica
from ringlog.wire.records import Cell, Mutation, encode_mutation
from ringlog_cdc.bulk.arrow import going_out
from ringlog_cdc.bulk.routing import bulk_table
from ringlog_cdc.definition.decision import PartContext
from ringlog_cdc.definition.reasons import CODES, ROUTED, SKIPPED
from ringlog_cdc.plan.decisions import context_of, table_of
from tests.node.world import APPENDED, cluster, name_of, partial_key, write
from tests.record_keys import record_key

LEEWAY = 5_000_000
BASE = cluster((-(2**62),), (0,), (2**62,), cdc=True)
STATE = replace(
    BASE,
    generations=tuple(
        Generation(
            f"g{at}",
            at,
            generate(dict(BASE.token_owners.items()), BASE.nodes, bytes(16)),
            "published",
            1,
            1,
            None,
            (),
            leeway,
        )
        for at, leeway in ((APPENDED - 4 * LEEWAY, None), (APPENDED - LEEWAY // 2, 4 * LEEWAY))
    ),
    tables=BASE.tables.set(
        "shop.quiet",
        replace(BASE.tables["shop.orders"], name="quiet", cdc=replace(BASE.tables["shop.orders"].cdc, enabled=False)),
    ),
)
parts = st.lists(st.sampled_from([b"", b"k", b"\xff", None, b"x" * (COMPONENT_BYTES_MAX + 1)]), max_size=2).map(tuple)
writes = st.builds(
    lambda timestamp, **changes: write("k", 1, timestamp, **changes),
    st.sampled_from([-5, -4, -1, 0, 1]).flatmap(lambda n: st.integers(-2, 2).map(lambda d: APPENDED + n * LEEWAY + d)),
    cluster_id=st.sampled_from([None, None, BASE.cluster_id, "00000000-0000-7000-8000-00000000dead"]),
    table=st.sampled_from(["orders", "orders", "orders", "quiet", "none"]),
    operation=st.sampled_from(["INSERT", "INSERT", "UPDATE", "ROW_DELETE", "PARTITION_DELETE", "UNKNOWN"]),
    partition_key=st.just((b"k",)) | parts,
    clustering_key=st.just((b"c" * 8,)) | parts,
    cells=st.lists(
        st.builds(
            Cell, st.sampled_from(["note", "note", "other", "nose", "number"]), st.sampled_from([b"x", b"\xff", None])
        ),
        max_size=2,
    ).map(tuple),
)


def batch_of(found: list[Mutation], own_keys: list[bool]) -> pa.RecordBatch:
    """Return the records of the writes as Spark passes them."""
    columns = {
        "partition": pa.array([0] * len(found), pa.int32()),
        "offset": pa.array(range(len(found)), pa.int64()),
        "appended": pa.array([APPENDED] * len(found), pa.int64()),
        "key": pa.array([record_key(m) if own else b"?" for m, own in zip(found, own_keys, strict=True)], pa.binary()),
        "value": pa.array([encode_mutation(mutation) for mutation in found], pa.binary()),
    }
    return pa.record_batch(columns)


@given(writes, st.booleans())
def test_a_node_applies_the_same_rules_without_the_id(mutation: Mutation, own_key: bool) -> None:
    row_replica = RowReplica(name_of(1))
    row_replica.adopt(STATE)
    value = encode_mutation(mutation)
    assert plain(value) is not None
    found = partial_key(value)
    is_mine = (
        found is None or found[0] not in STATE.tables or row_replica.has(found[0], token_of(compose(found[1])), True)
    )
    expected = (refused(rules_of(STATE), mutation, APPENDED, own_key)[0] or KEPT) if is_mine else NOT_OWNED
    key = record_key(value) if own_key else None
    assert row_replica.validate_record(value, APPENDED, key) == expected


@given(st.lists(st.tuples(writes, st.booleans()), min_size=1, max_size=30))
def test_pipeline_and_node_reject_the_same_writes(drawn: list[tuple[Mutation, bool]]) -> None:
    found, own_keys = [mutation for mutation, _ in drawn], [key for _, key in drawn]
    rules = rules_of(STATE)
    table = table_of(json.loads(json.dumps(context_of(STATE, "t", 8, 1_000_000))), (), STATE)
    part = PartContext("t", "w", 1, 1_000_000)
    made = going_out(bulk_table(table), batch_of(found, own_keys), part)
    verdicts = dict(zip(made.numbers.tolist(), made.reasons.tolist(), strict=True))
    for number, (mutation, own_key) in enumerate(drawn):
        own, _ = refused(rules, mutation, APPENDED, own_key)
        if verdicts[number] == SKIPPED:
            assert mutation.table == "quiet"
            assert own == ""
        else:
            assert own == ("" if verdicts[number] == ROUTED else CODES[verdicts[number]])

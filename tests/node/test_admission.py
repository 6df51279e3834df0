"""One admission rule for base rows and CDC rows: the kernel's definition against the pipeline's fast routing, row by
row.
"""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
from hypothesis import assume, given
from hypothesis import strategies as st

from ringlog.kernel.generations.admission import refusal, rules_of
from ringlog.kernel.generations.describe import generate
from ringlog.kernel.model.state import Generation
from ringlog.kernel.ring.murmur3 import COMPONENT_BYTES_MAX, compose, token_of
from ringlog.node.rows.partial_decode import plain
from ringlog.node.rows.replica import KEPT, NOT_OWNED, RowReplica
from ringlog.wire.records import Cell, Mutation, encode_mutation
from ringlog_cdc.columnar.routing import CODES, NO_OPERATION, OPERATION_CODES, ROUTED, SKIPPED, MutationColumns, route
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


def columns(found: list[Mutation], own_keys: list[bool]) -> MutationColumns:
    """Return the writes as the columns that the pipeline passes to its routing."""
    known = [[part or b"" for part in m.partition_key] for m in found]
    return MutationColumns(
        readable=np.ones(len(found), dtype=bool),
        foreign=np.array([m.cluster_id not in (None, STATE.cluster_id) for m in found]),
        names=pa.array([f"{m.keyspace}.{m.table}" for m in found]),
        operations=np.array([OPERATION_CODES.get(m.operation, NO_OPERATION) for m in found], dtype=np.int32),
        timestamps=np.array([m.timestamp for m in found]),
        appended=np.full(len(found), APPENDED),
        keys=pa.array([compose([p[:9] for p in key]) if key else b"" for key in known], type=pa.large_binary()),
        key_sizes=np.array([len(key) for key in known], dtype=np.int32),
        missing_key=np.array([None in m.partition_key for m in found]),
        clustering_sizes=np.array([len(m.clustering_key) for m in found], dtype=np.int32),
        bad_component=np.array(
            [
                None in m.clustering_key or any(len(p) > COMPONENT_BYTES_MAX for p in key)
                for m, key in zip(found, known, strict=True)
            ]
        ),
        mistyped_clustering=np.array(
            [any(part is not None and len(part) != 8 for part in m.clustering_key) for m in found]
        ),
        unknown_column=np.array([any(cell.column not in ("note", "other") for cell in m.cells) for m in found]),
        mistyped_value=np.array([any(cell.value == b"\xff" for cell in m.cells) for m in found]),
        record_keys=pa.array([record_key(m) if key else b"?" for m, key in zip(found, own_keys, strict=True)]),
        identities=pa.array([b""] * len(found), type=pa.large_binary()),
        partitions=np.zeros(len(found), dtype=np.int32),
        offsets=np.arange(len(found)),
    )


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
    expected = (refusal(rules_of(STATE), mutation, APPENDED, own_key) or KEPT) if is_mine else NOT_OWNED
    key = record_key(value) if own_key else None
    assert row_replica.validate_record(value, APPENDED, key) == expected


def names_each_column_once(mutation: Mutation) -> bool:
    """Return whether the write names each column once. The bulk path rejects the others as compound writes."""
    return len({cell.column for cell in mutation.cells}) == len(mutation.cells)


@given(st.lists(st.tuples(writes, st.booleans()), min_size=1, max_size=30))
def test_pipeline_and_node_reject_the_same_writes(drawn: list[tuple[Mutation, bool]]) -> None:
    drawn = [one for one in drawn if names_each_column_once(one[0])]
    assume(drawn)
    found, own_keys = [mutation for mutation, _ in drawn], [key for _, key in drawn]
    rules = rules_of(STATE)
    table = table_of(json.loads(json.dumps(context_of(STATE, "t", 8, 1_000))), (), STATE)
    verdicts = route(table, columns(found, own_keys)).verdict
    for (mutation, own_key), verdict in zip(drawn, verdicts.tolist(), strict=True):
        own = refusal(rules, mutation, APPENDED, own_key)
        if verdict == SKIPPED:
            assert mutation.table == "quiet"
            assert own not in ("timestamp_in_future", "timestamp_too_old", "no_generation")
        else:
            assert own == ("" if verdict == ROUTED else CODES[verdict])

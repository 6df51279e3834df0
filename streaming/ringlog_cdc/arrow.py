"""The Arrow function of the routing step: what Spark's Python workers run, and all of it.

Only the deciding columns come here; see ``ringlog_cdc.routing`` for what is decided. The function is named by its
module, so a worker imports this and never the job.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import Column
from pyspark.sql.pandas.functions import pandas_udf

from ringlog.wire.errors import WireError
from ringlog.wire.records import decode_mutation
from ringlog_cdc.pieces import Compound, route_compound
from ringlog_cdc.routing import Routed, RoutingTable, Rows, route

VERDICT_TYPE = (
    "verdict int, generation bigint, cdc_partition int, "
    "stream_high bigint, stream_low bigint, time_high bigint, time_low bigint, epoch bigint"
)


PIECE_NAMES = ("generations", "partitions", "streams", "rows")
PIECES = "generations array<bigint>, partitions array<int>, streams array<binary>, rows array<binary>"
"""What comes back of compound writes: an item a row of the log; null for all other writes."""


def routing_function(table: Any, epoch: int, topic: str, row_bytes_max: int, wide: bool) -> Callable[..., Column]:
    """The Arrow function of a broadcast ``RoutingTable`` for a plan part made at ``epoch``.

    The epoch comes back as a column: as a number in the expressions it would have them compiled anew for each batch.
    ``topic``: where the mutations come from. ``wide``: there may be compound writes, and ``PIECES`` come back, too.
    """

    def verdicts(
        readable: pd.Series,
        doubtful: pd.Series,
        foreign: pd.Series,
        names: pd.Series,
        operations: pd.Series,
        timestamps: pd.Series,
        appended: pd.Series,
        keys: pd.Series,
        key_sizes: pd.Series,
        missing_key: pd.Series,
        clustering_sizes: pd.Series,
        bad_component: pd.Series,
        identities: pd.Series,
        partitions: pd.Series,
        offsets: pd.Series,
        compound: pd.Series,
    ) -> pd.DataFrame:
        known: RoutingTable = table.value
        rows = Rows(
            readable=readable.to_numpy() & sound(doubtful),
            foreign=foreign.to_numpy(),
            names=pa.array(names, type=pa.string()),
            operations=operations.to_numpy(),
            timestamps=timestamps.to_numpy(),
            appended=appended.to_numpy(),
            keys=pa.array(keys, type=pa.large_binary()),
            key_sizes=key_sizes.to_numpy(),
            missing_key=missing_key.to_numpy(),
            clustering_sizes=clustering_sizes.to_numpy(),
            bad_component=bad_component.to_numpy(),
            identities=pa.array(identities, type=pa.large_binary()),
            partitions=partitions.to_numpy(),
            offsets=offsets.to_numpy(),
        )
        found = route(known, rows)
        pieces = apart(known, topic, row_bytes_max, rows, compound, found.verdict) if wide else {}
        return pd.DataFrame(_columns(found, epoch) | pieces)

    returned = f"{VERDICT_TYPE}, {PIECES}" if wide else VERDICT_TYPE
    wrapped: Callable[..., Column] = pandas_udf(verdicts, returned)  # type: ignore[call-overload]
    return wrapped


def _columns(found: Routed, epoch: int) -> dict[str, Any]:
    """The columns of ``VERDICT_TYPE``."""
    return {
        "verdict": found.verdict,
        "generation": found.generation,
        "cdc_partition": found.partition,
        "stream_high": found.stream_high,
        "stream_low": found.stream_low,
        "time_high": found.time_high,
        "time_low": found.time_low,
        "epoch": epoch,
    }


def apart(
    table: RoutingTable, topic: str, row_bytes_max: int, rows: Rows, compound: pd.Series, verdict: NDArray[np.int32]
) -> dict[str, pd.Series]:
    """The columns of ``PIECES``; verdicts of compound writes, which are not null here, are put into ``verdict``."""
    columns: dict[str, Any] = {name: np.full(len(verdict), None, dtype=object) for name in PIECE_NAMES}
    places = np.flatnonzero(compound.notna().to_numpy())
    writes = [
        Compound(bytes(compound.iloc[at]), int(rows.appended[at]), int(rows.partitions[at]), int(rows.offsets[at]))
        for at in places
    ]
    for at, found in zip(places, route_compound(table, topic, row_bytes_max, writes), strict=True):
        verdict[at] = found.verdict
        for name in PIECE_NAMES:
            columns[name][at] = list(getattr(found, name))
    return {name: pd.Series(column, dtype=object) for name, column in columns.items()}


def sound(doubtful: pd.Series) -> NDArray[np.bool_]:
    """True where a value is null, or is a mutation by the strict decoder that base nodes use; a loop over the others.

    The JVM's decoder is lenient: it takes bytes that follow the record, and text that is no UTF-8. Only such values
    come here, so that base and CDC log agree on them.
    """
    flags = np.ones(len(doubtful), dtype=bool)
    for index in np.flatnonzero(doubtful.notna().to_numpy()):
        try:
            decode_mutation(bytes(doubtful.iloc[index]))
        except WireError:
            flags[index] = False
    return flags

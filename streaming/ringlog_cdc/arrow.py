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
from ringlog_cdc.routing import RoutingTable, Rows, route

VERDICT_TYPE = (
    "verdict int, generation bigint, cdc_partition int, "
    "stream_high bigint, stream_low bigint, time_high bigint, time_low bigint, epoch bigint"
)


def routing_function(table: Any, epoch: int) -> Callable[..., Column]:
    """The Arrow function of a broadcast ``RoutingTable`` for a plan part made at ``epoch``.

    The epoch comes back as a column: as a number in the expressions it would have them compiled anew for each batch.
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
        return pd.DataFrame(
            {
                "verdict": found.verdict,
                "generation": found.generation,
                "cdc_partition": found.partition,
                "stream_high": found.stream_high,
                "stream_low": found.stream_low,
                "time_high": found.time_high,
                "time_low": found.time_low,
                "epoch": epoch,
            }
        )

    wrapped: Callable[..., Column] = pandas_udf(verdicts, VERDICT_TYPE)  # type: ignore[call-overload]
    return wrapped


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

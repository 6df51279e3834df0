"""A Spark Connect client without a JVM: it reads a table's CDC log as a batch and as a stream and prints the numbers.

Its arguments are the server's address, the brokers, the cluster, the expected count, and a folder.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from ringlog_cdc import read_cdc
from ringlog_cdc.driver.job import CdcJob
from ringlog_cdc.errors import CdcError
from ringlog_cdc.settings import JobSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TABLE = "shop.orders"


def numbers(frame: DataFrame) -> list[int]:
    return sorted(row["number"] for row in frame.select("number").collect())


def main(remote: str, bootstrap: str, cluster: str, count: int, folder: Path) -> None:
    spark = SparkSession.builder.remote(remote).getOrCreate()
    found = {"batch": numbers(read_cdc(spark, bootstrap, cluster, TABLE))}
    query = (
        read_cdc(spark, bootstrap, cluster, TABLE, stream=True)
        .writeStream.format("memory")
        .queryName("followed")
        .option("checkpointLocation", str(folder / "followed"))
        .start()
    )
    deadline = time.monotonic() + 120
    while len(numbers(spark.table("followed"))) < count and time.monotonic() < deadline:
        assert query.exception() is None, query.exception()
        threading.Event().wait(0.2)
    found["stream"] = numbers(spark.table("followed"))
    query.stop()
    try:
        CdcJob(JobSettings(bootstrap, cluster, folder / "job"), spark).start()
    except CdcError as error:
        print(error.code)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), Path(sys.argv[5]))

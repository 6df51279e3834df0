"""The Spark session of the job, and the lock that keeps a second driver away from its checkpoint.

The session is small and local unless ``spark-submit`` says otherwise.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from ringlog_cdc.errors import CdcError
from ringlog_cdc.lake import delta

SQL_SETTINGS = {
    "spark.sql.adaptive.enabled": "false",  # partitioning is the job's own; each batch is small
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",  # numpy works on whole batches: their number costs
    "spark.sql.sources.useV1SourceList": "",  # the old write path of the Kafka sink does not report observed counts
    "spark.sql.streaming.stopTimeout": "30s",
}
LOCK_WAIT_S = 30.0
LOCK_LOOK_S = 0.2


def open_session(
    name: str, jars: Sequence[Path], master: str | None, memory: str = "1g", java_options: str = "", lake: bool = False
) -> SparkSession:
    """A session with the Kafka connector; the Python workers run under this interpreter.

    ``master`` None: that of ``spark-submit`` or of the Spark configuration. ``lake``: with Delta, which is in ``jars``.
    """
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder: Any = (
        SparkSession.builder.appName(name)
        .config("spark.driver.memory", memory)
        .config("spark.driver.extraJavaOptions", f"-XX:+UseSerialGC {java_options}")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
    )
    for key, value in delta.SETTINGS.items() if lake else ():
        builder = builder.config(key, value)
    if master is not None:
        builder = builder.master(master)
    if jars:
        builder = builder.config("spark.jars", ",".join(str(jar) for jar in jars))
    session: SparkSession = builder.getOrCreate()
    return session


def prepare_session(session: SparkSession) -> None:
    """Set what the job's expressions rely on; harmless to repeat."""
    for key, value in SQL_SETTINGS.items():
        session.conf.set(key, value)
    session.sparkContext.setLogLevel("ERROR")


def _jvm(session: SparkSession) -> Any:
    return session.sparkContext._jvm


class CheckpointLock:
    """An exclusive lock on ``<checkpoint>/lock``, held by the JVM: the process that writes, which may outlive Python
    a moment.

    The operating system frees it when that process ends, however it ends.
    """

    def __init__(self, session: SparkSession, checkpoint: Path, stopping: threading.Event) -> None:
        self._path = checkpoint / "lock"
        self._file = _jvm(session).java.io.RandomAccessFile(str(self._path), "rw")
        self._lock = self._acquire(stopping)

    def _acquire(self, stopping: threading.Event) -> Any:
        waited = 0.0
        while True:
            lock = self._try()
            if lock is not None:
                return lock
            if waited >= LOCK_WAIT_S or stopping.is_set():
                self._file.close()
                raise CdcError(
                    "checkpoint_in_use",
                    f"another driver holds {self._path}, {waited:.0f} s waited for it",
                    "stop it first; only one driver works on a checkpoint",
                )
            stopping.wait(LOCK_LOOK_S)
            waited += LOCK_LOOK_S

    def _try(self) -> Any:
        try:
            return self._file.getChannel().tryLock()
        except Py4JJavaError as error:
            if "OverlappingFileLockException" in str(error.java_exception):
                return None
            raise

    def release(self) -> None:
        """Let another driver have it."""
        self._lock.release()
        self._file.close()

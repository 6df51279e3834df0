"""The Spark session of the job, and the lock of its checkpoint.

A local session is small and uses the loopback address. Any other Spark is left to its own configuration: executors must
reach the driver, and their Python must have everything that the Arrow functions import. Missing modules are found
before the job registers, not in its first batch.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import ensure_callback_server_started, launch_gateway
from pyspark.sql import SparkSession

from ringlog.runtime.kafka.config import jvm_options
from ringlog.stack import java
from ringlog.stack.java import SPARK, prefer_fitting
from ringlog_cdc.bulk.arrow_batching import ARROW_RECORDS
from ringlog_cdc.driver.preflight import Emit, checkpoint_in_use, lock_driver, starting
from ringlog_cdc.errors import CdcError
from ringlog_cdc.lake import delta

LOCAL = "local[2]"
"""Default master: two threads."""
LOCAL_SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.authenticate": "true",  # other users of the machine reach 127.0.0.1, too; Spark draws the secret
}
SQL_SETTINGS = {
    "spark.sql.adaptive.enabled": "false",  # the job partitions its data, and batches are small
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_RECORDS),
    "spark.sql.sources.useV1SourceList": "",  # batches use the data source API v2, as streams do, and are planned once
    "spark.sql.streaming.stopTimeout": "30s",
}
FILES_SETTING = "spark.sql.streaming.checkpointFileManagerClass"
FILES = "org.apache.spark.sql.execution.streaming.{}FileSystemBasedCheckpointFileManager"
"""Format of the class name. Spark 4.1 moved the class to a separate package."""
CONNECT_VARIABLES = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
PROBES = 2
"""Tasks that check the workers."""
SPARK_GONE = (Py4JNetworkError, ConnectionError)
"""Errors of calls into a JVM that has ended."""
LOCK_WAIT_S = 30.0
LOCK_LOOK_S = 0.2


def open_session(
    name: str,
    jars: Sequence[Path],
    master: str | None,
    memory: str = "",
    java_options: str = "",
    lake: bool = False,
) -> SparkSession:
    """Return a session with the Kafka connector.

    A local session runs its Python workers with this interpreter. Others use ``PYSPARK_PYTHON``, or else the
    interpreter at the same path on their host.

    Args:
        name: Name of the application.
        jars: Jars of the connector.
        master: Spark master. None: the one of ``spark-submit`` or of Spark's configuration.
        memory: Memory of a local driver.
        java_options: Further options for the driver's JVM.
        lake: Configure Delta.

    Raises:
        CdcError: ``connect_unsupported`` or ``spark_not_started``.
    """
    if (master or "").startswith("sc://") or any(name in os.environ for name in CONNECT_VARIABLES):
        raise connect_unsupported()
    builder: Any = SparkSession.builder.appName(name).config("spark.ui.showConsoleProgress", "false")
    is_local = master is not None and master.startswith("local")
    if is_local:
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        builder = builder.config(map=LOCAL_SETTINGS | ({"spark.driver.memory": memory} if memory else {}))
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if lake:
        builder = builder.config(map=delta.SETTINGS)
    if master is not None:
        builder = builder.master(master)
    if not is_submitted():  # a submitted program's JVM runs already, with its own jars and options
        prefer_fitting(os.environ)
        ours = ("-XX:+UseSerialGC", *java.options(SPARK)) if is_local else ()
        flags = " ".join((*ours, *jvm_options(), java_options)).strip()
        if flags:
            builder = builder.config("spark.driver.extraJavaOptions", flags)
        if jars:
            builder = builder.config("spark.jars", ",".join(str(jar) for jar in jars))
    try:
        if not is_submitted():
            _launch(builder)
        session: SparkSession = builder.getOrCreate()
    except (PySparkException, Py4JError, ConnectionError) as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[-1]
        raise CdcError(
            "spark_not_started",
            said,
            "read Spark's messages above; check that Java 17 is installed and that the master is up",
        ) from error
    return session


def _launch(builder: Any) -> None:
    """Start the JVM in a separate session (and process group), unless one runs.

    Tools that stop a program signal its process group: ``timeout``, terminals, supervisors. The JVM would end at once,
    in the middle of a batch that the driver wants to finish. It still ends together with the driver, because it reads
    from a pipe that the driver holds.
    """
    if SparkContext._gateway is None:
        conf = SparkConf()
        for name, value in builder._options.items():
            conf.set(name, value)
        gateway = launch_gateway(conf, {"start_new_session": True})  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=gateway)


def shield(session: SparkSession) -> None:
    """Make the JVM ignore SIGTERM and SIGINT, which reach it if a whole control group is signalled."""
    signals = _jvm(session).sun.misc
    for name in ("TERM", "INT"):
        signals.Signal.handle(signals.Signal(name), signals.SignalHandler.SIG_IGN)


def is_submitted() -> bool:
    """Return True if ``spark-submit`` started this program."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


class _Forwarded:
    """Signal handler in the JVM that calls a Python function."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop

    def handle(self, _signal: Any) -> None:
        """Handle the signal."""
        self._stop()

    class Java:
        """Py4J's declaration of the implemented interface."""

        implements: ClassVar = ["sun.misc.SignalHandler"]


def forward_signals(session: SparkSession, stop: Callable[[], None]) -> None:
    """Make SIGTERM and SIGINT of a submitted program call ``stop``.

    They reach the JVM, which is the parent of this process. Its default is to end at once, in the middle of a batch.
    """
    context = session.sparkContext
    ensure_callback_server_started(context._gateway)  # type: ignore[no-untyped-call]
    signals = _jvm(session).sun.misc
    for name in ("TERM", "INT"):
        signals.Signal.handle(signals.Signal(name), _Forwarded(stop))


def connect_unsupported() -> CdcError:
    """Return the error for a Spark Connect session."""
    return CdcError(
        "connect_unsupported",
        (
            "the job does not run through Spark Connect: a Connect client has no driver that could store "
            "plans and write leases"
        ),
        (
            "start the job beside the server with spark-submit (ringlog cdc launcher); reading the log "
            "works through Connect"
        ),
    )


def check_session(session: SparkSession) -> None:
    """Check that the job can run on the session.

    Raises:
        CdcError: ``connect_unsupported`` or ``workers_lack_ringlog``.
    """
    if type(session).__module__.startswith("pyspark.sql.connect"):
        raise connect_unsupported()
    found = _first_said(session, import_probe())
    if found:
        raise CdcError(
            "workers_lack_ringlog",
            f"a Python worker of {session.sparkContext.master} reports {found}",
            ("install ringlog[spark] for the workers' Python, or send it: PYSPARK_PYTHON, --archives, --py-files"),
        )


def check_shared(session: SparkSession, path: Path) -> None:
    """Check that the workers see this file of the checkpoint, where tasks keep image states.

    Raises:
        CdcError: ``workers_lack_checkpoint``.
    """
    name = str(path)

    def missing(_: int) -> str:
        import os

        return "" if os.path.exists(name) else f"{name} does not exist"

    found = _first_said(session, missing)
    if found:
        raise CdcError(
            "workers_lack_checkpoint",
            f"a Python worker of {session.sparkContext.master} reports: {found}",
            "for tables with images, put the checkpoint in a file system that driver and workers share",
        )


def _first_said(session: SparkSession, probe: Callable[[int], str]) -> str:
    """Return the first complaint of a worker, or empty.

    Workers of a local session have everything that this host has.
    """
    context = session.sparkContext
    if str(context.master).startswith("local"):
        return ""
    return next(filter(None, context.parallelize(range(PROBES), PROBES).map(probe).collect()), "")


def import_probe() -> Callable[[int], str]:
    """Return a function for a task that reports what its worker lacks, or empty.

    Spark pickles a nested function by value, so it runs on workers without this module.
    """

    def missing(_: int) -> str:
        import importlib

        try:
            importlib.import_module("ringlog_cdc.bulk.arrow")
        except ImportError as error:
            return f"{type(error).__name__}: {error}"
        return ""

    return missing


def prepare_session(session: SparkSession) -> None:
    """Set the options that the job depends on. May be repeated."""
    for key, value in SQL_SETTINGS.items():
        session.conf.set(key, value)
    session.sparkContext.setLogLevel("ERROR")


@contextmanager
def logs_without_shell(session: SparkSession) -> Iterator[None]:
    """For queries started in the block, write Spark's offset and commit logs without subprocesses.

    For local folders Spark uses Hadoop's ``FileContext``. Without Hadoop's native library, that runs ``readlink``
    several times per renamed file. Both ways rename a complete file to its final name, and the checkpoint's lock admits
    one driver only.
    """
    before = session.conf.get(FILES_SETTING, None)
    session.conf.set(FILES_SETTING, FILES.format("" if session.version.startswith("4.0.") else "checkpointing."))
    try:
        yield
    finally:
        if before is None:
            session.conf.unset(FILES_SETTING)
        else:
            session.conf.set(FILES_SETTING, before)


def _jvm(session: SparkSession) -> Any:
    return session.sparkContext._jvm


class CheckpointLock:
    """An exclusive lock on ``<checkpoint>/lock``, and the driver's own lock (``ringlog_cdc.driver.preflight``).

    The JVM holds the first one, since that process writes and may briefly outlive Python. The operating system releases
    a lock when its process ends.
    """

    def __init__(self, session: SparkSession, checkpoint: Path, stopping: threading.Event, emit: Emit) -> None:
        self._driver = lock_driver(checkpoint, stopping)
        self._path = checkpoint / "lock"
        try:
            self._file = _jvm(session).java.io.RandomAccessFile(str(self._path), "rw")
            self._lock = self._acquire(stopping, emit)
        except BaseException:
            self._driver.close()
            raise

    def _acquire(self, stopping: threading.Event, emit: Emit) -> Any:
        """Wait for the lock. Raises CdcError ``checkpoint_in_use``."""
        waited = 0.0
        while True:
            lock = self._try()
            if lock is not None:
                return lock
            if not waited:
                starting(emit, f"the lock {self._path}, which the JVM of an ended driver may hold for a while")
            if waited >= LOCK_WAIT_S or stopping.is_set():
                self._file.close()
                raise checkpoint_in_use(self._path, waited)
            stopping.wait(LOCK_LOOK_S)
            waited += LOCK_LOOK_S

    def _try(self) -> Any:
        """Try to lock. Return None if another holder exists, also in this JVM."""
        try:
            return self._file.getChannel().tryLock()
        except Py4JJavaError as error:
            # This JVM holds the lock itself, for another session.
            if "OverlappingFileLockException" in str(error.java_exception):
                return None
            raise

    def release(self) -> None:
        """Release the lock."""
        self._lock.release()
        self._file.close()
        self._driver.close()

"""The program ``ringlog cdc run``: checks, the Spark session, signals, and one job after another."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ringlog.runtime.process import stop_on_signals
from ringlog_cdc.driver.job import SIGNALLED, CdcJob
from ringlog_cdc.driver.preflight import check, starting
from ringlog_cdc.driver.session import SPARK_GONE, forward_signals, is_submitted, open_session, shield
from ringlog_cdc.errors import CdcError, PartitionsAdded, StopRequested
from ringlog_cdc.report.progress import BatchProgress
from ringlog_cdc.settings import JobSettings


class StopSignal(threading.Event):
    """A request to stop the program. Setting it also stops the running job."""

    job: CdcJob | None = None

    def set(self) -> None:
        """Set this event and the job's, and report the stop at once: a batch may take a while to end."""
        super().set()
        if (job := self.job) is not None:
            job.report_stopping(SIGNALLED)
            job.stopping.set()


def run(settings: JobSettings, jars: tuple[Path, ...], master: str | None, java_options: str = "") -> None:
    """Run the job until SIGTERM or SIGINT, or until it is idle. Return after a clean stop, or raise the cause of a
    failure.

    If partitions are added to the source topic, another job continues on the same session.
    """
    stopping, emit = StopSignal(), BatchProgress().emit
    stop_on_signals(stopping)  # before Spark starts: a JVM that is abandoned during its start would stay behind
    check(settings, jars, emit, stopping)
    starting(emit, "Spark to start")
    session = open_session(
        f"ringlog-cdc-{settings.cluster}", jars, master, java_options=java_options, lake=settings.lake is not None
    )
    stop_on_signals(stopping)  # again, because Spark has set its own handler for SIGINT
    try:
        if is_submitted():
            forward_signals(session, stopping.set)
        else:
            shield(session)
        run_jobs(lambda: CdcJob(settings, session), stopping)
    except SPARK_GONE as error:
        raise CdcError(
            "spark_lost", "Spark's JVM has ended", "the checkpoint is intact: start the job again"
        ) from error
    finally:
        with suppress(*SPARK_GONE):
            session.stop()


def run_jobs(make: Callable[[], CdcJob], stopping: StopSignal) -> None:
    """Run a job to its end. If it ends because partitions were added, run the next one."""
    while True:
        job = stopping.job = make()
        if stopping.is_set():
            return
        try:
            return _until_stopped(job)
        except PartitionsAdded as added:
            print(added.message, file=sys.stderr, flush=True)


def _until_stopped(job: CdcJob) -> None:
    """Start a job, wait for its end, and stop it."""
    try:
        job.start()
    except StopRequested:
        return
    try:
        job.wait()
    except BaseException as error:
        job.report_stopping(reason_of(error))
        raise
    finally:
        job.stop()


def reason_of(error: BaseException) -> str:
    """Return the reason of a stop for its line."""
    return str(error) or type(error).__name__

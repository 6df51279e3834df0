"""Checks before Spark starts: a job that would be refused ends in seconds, and leaves the checkpoint unchanged.

The job repeats each check under its lock, since everything can change while Spark starts. If the broker
does not answer, the job continues and waits for it.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from ringlog.client.watch import MetadataWatch
from ringlog.extras import require
from ringlog.kernel.commands.cdc.writers import held_source, source_owner
from ringlog.kernel.model.state import ClusterState
from ringlog.log.errors import LogUnavailable
from ringlog.log.kafka.lag import ANSWER_S
from ringlog.log.kafka.topics import admin_client, describe
from ringlog_cdc.errors import CdcError, checkpoint_lost, source_in_use
from ringlog_cdc.plan.recovered_rows import is_lost
from ringlog_cdc.plan.store import check_claim, stored_claim
from ringlog_cdc.settings import JobSettings

LOCK = "driver.lock"
"""File of a checkpoint that its driver locks, in addition to the lock of its JVM."""
LOCK_S = 2.0
LOOK_S = 0.2

Emit = Callable[..., None]


def check(settings: JobSettings, jars: tuple[Path, ...], emit: Emit, stopping: threading.Event) -> None:
    """Check installation, checkpoint, topics and writer.

    Raises:
        CdcError, LogError, OSError: The job would be refused.
    """
    check_installation(jars)
    check_checkpoint(settings, stopping)
    topics = (settings.source_topic, settings.sink_topic, settings.letters_topic)
    starting(emit, "the brokers to list the topics")
    try:
        describe(admin_client(settings.bootstrap_servers), topics, ANSWER_S)
        starting(emit, "the metadata log to be read")
        with MetadataWatch(settings.bootstrap_servers, settings.cluster) as watch:
            check_writer(settings, watch.state)
    except LogUnavailable as error:
        emit("broker_away", broker=settings.bootstrap_servers, why=error.message, ends="the job waits for the broker")


def starting(emit: Emit, what: str) -> None:
    """Write the line that a start waits for ``what``."""
    emit("starting", waiting=what)


def check_installation(jars: tuple[Path, ...]) -> None:
    """Check that the libraries and the given jars exist. Raises ExtraMissing, CdcError ``connector_missing``."""
    require("spark")
    for jar in jars:
        if ":" not in str(jar) and not jar.is_file():  # others are addresses
            raise CdcError("connector_missing", f"the jar {jar} does not exist", "pass the jars of the connector")


def check_checkpoint(settings: JobSettings, stopping: threading.Event) -> None:
    """Check that the checkpoint can be used, belongs to the writer, and has no other driver."""
    folder = settings.checkpoint
    if not folder.exists():
        return
    os.listdir(folder)  # raises the reason for which it cannot be read
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"{folder} cannot be written")
    claim = stored_claim(folder)
    if claim is not None:
        check_claim(claim, claim["cluster_id"], settings.writer)
    if (folder / LOCK).exists():
        lock_driver(folder, stopping).close()


def check_writer(settings: JobSettings, state: ClusterState) -> None:
    """Check that the writer may process its source with this checkpoint."""
    other = source_owner(state, settings.writer, settings.source_topic)
    if other is not None:
        raise source_in_use(held_source(other, settings.source_topic))
    claim = stored_claim(settings.checkpoint)
    if claim is not None:
        check_claim(claim, state.cluster_id, settings.writer)
    elif is_lost(state.writers.get(settings.writer)):
        raise checkpoint_lost(settings.writer)


def lock_driver(checkpoint: Path, stopping: threading.Event) -> TextIO:
    """Lock the checkpoint for this process until the returned file is closed.

    The lock of the JVM protects the files. It may be held for a while after the driver was killed, so that a start
    waits for it. This lock ends with the driver. If it is held, the other driver is alive, and waiting would not help.

    Raises:
        CdcError: ``checkpoint_in_use``.
    """
    file = (checkpoint / LOCK).open("a", encoding="utf-8")
    waited = 0.0
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        if waited >= LOCK_S or stopping.is_set():
            file.close()
            raise checkpoint_in_use(checkpoint / LOCK, waited)
        stopping.wait(LOOK_S)
        waited += LOOK_S


def checkpoint_in_use(path: Path, waited: float) -> CdcError:
    """Return the error for a locked checkpoint."""
    return CdcError(
        "checkpoint_in_use",
        f"another driver has locked {path}; waited {waited:.0f} s for it",
        "stop the other driver: only one driver may use a checkpoint",
    )

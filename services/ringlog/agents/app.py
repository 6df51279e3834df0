"""The faust app of one agent: it assigns the role's partition to one process, and passes the records to its worker.

The consumer group decides which instance tries to become the active one. Safety does not depend on it: terms and fences
ensure that. Each assignment starts a new worker, which takes the role over again. A revoked assignment stops the
worker.

The event loop only passes on records and acknowledgements. Acknowledgement must survive crashes, so it follows a fixed
recipe: one partition, one stream, ``noack()``, in offset order, and only when the worker reports that a record's
answers are published. An exception in the stream would acknowledge the record. So the stream raises nothing, except
after ``app.crash``, which ends the process.

Some workers read the records themselves. Then faust is only needed for acknowledgement, and each delivered record would
cost it more than the worker needs for its answer. So faust is paused, and only gets the newest answered record, at most
once in ``KEEP_UP_S``.

At its end, faust commits offsets and leaves the group. It retries forever if the broker is away or the topic is gone.
An instance that ended its role has nothing left to write, so its process ends after ``GOODBYE_S`` in any case.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

import faust
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaConnectionError
from faust.tables.manager import TableManager
from faust.types import TP, EventT
from faust.types.auth import CredentialsT

from ringlog.agents.exits import CRASHED, HALTED, STOPPED, SUPERSEDED, End, end_of, log_end
from ringlog.agents.monitoring.health_view import ProcessView
from ringlog.agents.monitoring.outage import Outage, redirect_library_logs
from ringlog.agents.ports import MakeWorker, RoleWorker
from ringlog.log.replicas.topic_watch import LostTopic, TopicWatch
from ringlog.runtime.kafka.config import SILENCE_MS, current
from ringlog.runtime.kafka.oauth import NoToken, OAuth
from ringlog.runtime.kafka.security import BadKafkaConfig, Security
from ringlog.runtime.logs import get_logger
from ringlog.runtime.settings import ProcessSettings

PENDING_MAX, PENDING_BYTES_MAX = 5_000, 64 << 20
"""The most records without an acknowledgement, and the most bytes of them. Above either, the stream waits."""
BUFFERED_MAX = 256
"""The most records that faust fetches ahead. A record of requests may have two megabytes."""
KEEP_UP_S = 1.0
"""How often a paused faust gets the newest answered record."""
GOODBYE_S = 10.0
"""How long faust may take to leave the broker after the role has ended."""

log = get_logger(__name__)


class AgentApp:
    """The faust app of one role.

    ``source``: the topic whose only partition is the role's. ``reset``: the start position of a new group. ``topics``:
    the ids of all topics that the role needs, with the metadata topic first.
    """

    def __init__(
        self, role: str, settings: ProcessSettings, source: str, reset: str, topics: Mapping[str, str], make: MakeWorker
    ) -> None:
        self.role = role
        self.end = End(STOPPED, "stopped on request")
        self._cluster = settings.cluster
        self._outage = Outage(settings.bootstrap_servers, lambda: self._watch.request_check())
        self._watch = TopicWatch(
            settings.bootstrap_servers, topics, self._lost, self._outage.record_failure, self._outage.record_answer
        )
        self.app = make_app(role, settings, reset)
        self._make = make
        self._source = TP(source, 0)
        self._worker: RoleWorker | None = None
        self._assignment = 0
        self._acked = self._noted = self._delivered = -1
        self._rests = False
        self._pending: deque[EventT[Any]] = deque()
        self._pending_bytes = 0
        self._room = asyncio.Condition()
        self._over = threading.Event()
        topic = self.app.topic(source, key_serializer="raw", value_serializer="raw", value_type=bytes, key_type=bytes)
        self.app.agent(topic, name=role, concurrency=1)(self._consume)
        signals: Any = self.app
        signals.on_partitions_assigned.connect(self._on_assigned, weak=False)
        signals.on_partitions_revoked.connect(self._on_revoked, weak=False)
        signals.on_before_shutdown.connect(self._on_shutdown, weak=False)

    def execute(self) -> End:
        """Run the faust worker until a stop is requested or the role ends. Closes the event loop."""
        redirect_library_logs(self._outage)
        worker = _Worker(self.app, quiet=True, redirect_stdouts=False, override_logging=False)
        worker.spinner = None
        self._loop = worker.loop
        self._watch.start()
        _future = self.app.add_future(self._watch_group())
        log.info("stands_by", role=self.role)
        try:
            worker.execute_from_commandline()
        except SystemExit as error:
            failed = error.code not in (None, 0)
            why = f"the worker ended with status {error.code}"
        except Exception as error:
            failed, why = True, f"{type(error).__name__}: {error}"
        self._over.set()
        self._watch.stop()
        # The role's own end has precedence: faust reports even an orderly end as a crash.
        return self._explained(End(CRASHED, why)) if failed and self.end.code == STOPPED else self.end

    def seen(self) -> ProcessView:
        """Return a view of the process. Callable from any thread."""
        worker = self._worker
        end = None if self.end.code == STOPPED else self.end
        return ProcessView(None, self._outage.shown, end, None if worker is None else worker.seen())

    async def _consume(self, stream: Any) -> None:
        """Pass each record to the worker, and pause faust if the worker reads the topic itself."""
        async for event in stream.noack().events():
            message = event.message
            assert message.partition == 0, "the role's topic has one partition"
            self._pending.append(event)
            self._pending_bytes += len(message.value or b"")
            self._delivered = max(self._delivered, message.offset)
            if self._worker is not None and not self._worker.add_record(message.offset, message.value):
                self._rests = True
                self.app.consumer.pause_partitions({self._source})
                # The worker may have answered this record before faust delivered it.
                await self._acknowledge(self._assignment, max(self._acked, self._noted))
            async with self._room:
                await self._room.wait_for(self._has_room)

    def _has_room(self) -> bool:
        return len(self._pending) < PENDING_MAX and self._pending_bytes < PENDING_BYTES_MAX

    async def _on_assigned(self, _app: Any, assigned: set[TP], **_: Any) -> None:
        """Start a worker for a new assignment.

        Its callbacks carry the number of the assignment, so that late acknowledgements of an earlier worker are
        ignored.
        """
        if self.end.code != STOPPED:
            # The process is ending: a new worker would take the role from the active instance, then end with it.
            return
        if self._source in assigned and self._worker is None:
            self._assignment += 1
            self._acked = self._noted = self._delivered = -1
            self._rests = False
            number, loop = self._assignment, asyncio.get_running_loop()

            def acknowledge(offset: int) -> None:
                if self._notes_only(number, offset):
                    return
                loop.call_soon_threadsafe(lambda: asyncio.ensure_future(self._acknowledge(number, offset)))

            def ended(end: End) -> None:
                loop.call_soon_threadsafe(lambda: asyncio.ensure_future(self._ended(number, end)))

            self._worker = self._make(acknowledge, ended)
            self._worker.start()
            _future = self.app.add_future(self._keep_up(number))

    async def _keep_up(self, assignment: int) -> None:
        """Move faust to the newest answered record in each ``KEEP_UP_S``, so that the committed offset follows.

        After a failure the offset is only behind: the next round moves it, or another instance answers the records
        again.
        """
        while assignment == self._assignment:
            await asyncio.sleep(KEEP_UP_S)
            self._acked = max(self._acked, self._noted)
            try:
                if self._rests and self._acked > self._delivered:
                    consumer: Any = self.app.consumer
                    await consumer.seek_wait({self._source: self._acked})
                    # Without this, faust waits for the skipped records. They are answered, and count as acknowledged
                    # once faust sees the gap.
                    consumer._read_offset[self._source] = self._delivered
            except Exception as error:
                log.debug("acknowledges_later", role=self.role, error=f"{type(error).__name__}: {error}")
                continue
            if self._rests and assignment == self._assignment:
                self._rests = False
                self.app.consumer.resume_partitions({self._source})

    async def _watch_group(self) -> None:
        """End the process after the library's task for the consumer group has ended with an error.

        Nothing starts that task again. The library raises its error to an instance that reads records, but a standby
        reads none and would stay a standby.
        """
        while (group := self._group_task()) is None or not group.done():
            await asyncio.sleep(KEEP_UP_S)
        if self.end.code == STOPPED and not group.cancelled() and group.exception() is not None:
            self.end = End(CRASHED, f"the consumer group was left: {group.exception()}")
            self._start_exit_timer()
            await self._crash()

    def _group_task(self) -> asyncio.Task[None] | None:
        """Return the library's task for the consumer group; None before the consumer has started."""
        consumer: Any = self.app._consumer  # the property would make one
        thread: Any = None if consumer is None else consumer._thread
        client: Any = None if thread is None else thread._consumer
        coordinator: Any = None if client is None else client._coordinator
        task: asyncio.Task[None] | None = None if coordinator is None else coordinator._coordination_task
        return task

    async def _on_revoked(self, _app: Any, revoked: set[TP], **_: Any) -> None:
        if self._source in revoked:
            await self._stop_worker()

    async def _on_shutdown(self, _app: Any, **_: Any) -> None:
        await self._stop_worker()

    async def _stop_worker(self) -> None:
        """Stop the worker. Pending records stay unacknowledged, so the next owner of the partition gets them again."""
        worker, self._worker = self._worker, None
        self._assignment += 1
        self._pending.clear()
        self._pending_bytes = 0
        async with self._room:
            self._room.notify_all()
        if worker is not None:
            await asyncio.get_running_loop().run_in_executor(None, worker.stop)

    def _notes_only(self, assignment: int, offset: int) -> bool:
        """Note an answered offset, and return True if faust has no record to acknowledge for it.

        Runs in the worker's thread, and spares a wake-up of the event loop per answer. ``_keep_up`` uses the noted
        offset. A record that faust delivers later is acknowledged at once.
        """
        if not self._rests or assignment != self._assignment:
            return False
        self._noted = max(self._noted, offset)
        return not self._pending

    async def _acknowledge(self, assignment: int, offset: int) -> None:
        if assignment != self._assignment:
            return
        self._acked = max(self._acked, offset)
        while self._pending and self._pending[0].message.offset <= offset:
            event = self._pending.popleft()
            self._pending_bytes -= len(event.message.value or b"")
            event.ack()
        async with self._room:
            self._room.notify_all()

    async def _ended(self, assignment: int, end: End) -> None:
        """End the process after its worker has ended. Pending records stay unacknowledged."""
        if self.end.code != STOPPED or (assignment != self._assignment and end.code != SUPERSEDED):
            return
        self.end = end
        if end.code in (CRASHED, HALTED):
            self.end = await asyncio.get_running_loop().run_in_executor(None, self._explained, end)
        self._start_exit_timer()
        await self._crash()

    def _explained(self, end: End) -> End:
        """Return the loss of a topic as the reason if there is one, even if another error was seen first."""
        lost = self._watch.check_until_certain()
        return end if lost is None else end_of(lost, self._cluster)

    def _lost(self, lost: LostTopic) -> None:
        """End the process because one of the role's topics is gone, active or not. Runs in the thread of the watch."""
        if self.end.code not in (STOPPED, CRASHED):
            return
        self.end = end_of(lost, self._cluster)
        self._start_exit_timer()
        # A closed loop has ended already.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(lambda: asyncio.ensure_future(self._crash()))

    def _start_exit_timer(self) -> None:
        """Start the time limit for faust's shutdown."""
        self._outage.drop_records()
        threading.Thread(target=self._force_exit, name="goodbye", daemon=True).start()

    async def _crash(self) -> None:
        """Make faust end. An orderly end is reported as ``AgentEnded``, not as a crash."""
        error = self.end.error if self.end.error is not None else RuntimeError(self.end.detail)
        await self.app.crash(error if self.end.code == CRASHED else AgentEnded(self.end.detail))

    def _force_exit(self) -> None:
        """End the process even if faust does not. Records without an acknowledgement are delivered again."""
        if not self._over.wait(GOODBYE_S):
            log_end(self.role, self.end, goodbye=False)
            sys.stderr.flush()
            os._exit(self.end.code)


class _NoTables(TableManager):
    """A table manager for an app without tables.

    It leaves out the second that faust gives tables to register before the first subscription.
    """

    async def on_start(self) -> None:
        await self._update_channels()
        await self.recovery.start()


class _Worker(faust.Worker):
    """A worker without faust's pause of a second after the stop, so that the process ends at once."""

    async def _sentinel_task(self) -> None:
        await asyncio.sleep(0)


class AgentEnded(Exception):
    """An orderly end of the process: the role was taken over, or must halt."""


class Tokens(AbstractTokenProvider):  # type: ignore[misc]
    """The source of OAuth tokens for aiokafka. Raises BadKafkaConfig if it is not configured correctly.

    A token that cannot be fetched now counts as an unavailable broker, so the client retries.
    """

    def __init__(self, oauth: OAuth) -> None:
        try:
            self._source = oauth.source()
        except ValueError as error:
            raise BadKafkaConfig(str(error)) from error

    async def token(self) -> str:
        """Return the present token. Fetched in a thread, because the fetch may block."""
        try:
            return (await asyncio.to_thread(self._source)).value
        except NoToken as error:
            log.warning("no_kafka_token", why=str(error))
            raise KafkaConnectionError(str(error)) from error


def credentials(security: Security) -> CredentialsT | None:
    """Return the credentials for faust and aiokafka; None for plain text. Raises BadKafkaConfig."""
    context = security.ssl_context()
    if security.oauth is not None:
        return faust.OAuthCredentials(oauth_cb=Tokens(security.oauth), ssl_context=context)
    if security.logs_in:
        return faust.SASLCredentials(
            username=security.username, password=security.password, mechanism=security.mechanism, ssl_context=context
        )
    return None if context is None else faust.SSLCredentials(context)


def make_app(role: str, settings: ProcessSettings, reset: str) -> faust.App:
    """Return the faust app, without web server, tables or topics. Its group is named after cluster and role."""
    return faust.App(
        f"{settings.cluster}.{role}",
        broker=f"kafka://{settings.bootstrap_servers}",
        broker_credentials=credentials(current().security),
        datadir=str(settings.data_dir / "agents"),
        store="memory://",
        web_enabled=False,
        autodiscover=False,
        topic_disable_leader=True,
        topic_allow_declare=False,
        consumer_auto_offset_reset=reset,
        broker_session_timeout=settings.session_timeout_s,
        broker_heartbeat_interval=min(1.0, settings.session_timeout_s / 4),
        broker_request_timeout=max(settings.session_timeout_s, SILENCE_MS / 1000),
        broker_commit_interval=1.0,
        stream_wait_empty=False,
        stream_buffer_maxsize=BUFFERED_MAX,
        TableManager=_NoTables,
        worker_redirect_stdouts=False,
    )

"""What the workers of all roles share: a replica, the take-over, waiting for news, a heartbeat, and an orderly end.

One thread does the role's work; it blocks on brokers as it likes, since the event loop is elsewhere. A worker serves
one term: it takes the role over when it starts, and ends by itself (``ended``) when a higher term is folded, when it is
fenced, when the log halts its replica, or when the broker fails it. What it had not answered is delivered again to the
next one.
"""

from __future__ import annotations

import threading
import uuid
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from ringlog.agents.contract import Acknowledge, Ended
from ringlog.agents.exits import CRASHED, HALTED, SUPERSEDED, Diverged, End, Superseded
from ringlog.agents.reporting import Reporting
from ringlog.agents.snapshots import SnapshotSteps, SnapshotThread, looks_after
from ringlog.agents.soundness import Soundness
from ringlog.agents.truncation import LogEnds
from ringlog.agents.watch import records_of
from ringlog.agents.watched import ACTIVE, RoleView
from ringlog.client.direct import DirectAuthor
from ringlog.kernel.outcome import Entry, Outcome, UnreadableEntry
from ringlog.kernel.state import ClusterState
from ringlog.log.agreement import EVIDENCE, Agreement
from ringlog.log.driver import LogDriver, micros
from ringlog.log.errors import (
    LogDamaged,
    LogError,
    LogPassed,
    LogUnavailable,
    RecordTooLarge,
    ReplicaHalted,
    TopicMisconfigured,
)
from ringlog.log.figures import seen_log
from ringlog.log.kafka import KafkaLog
from ringlog.log.opening import beginning_of, open_metadata, open_snapshots
from ringlog.log.pace import Pace
from ringlog.log.port import LogRecord
from ringlog.log.producer import AckedProducer
from ringlog.log.reading import read_to_end
from ringlog.log.recent import LAST_ALONE, RecentEntries
from ringlog.log.replica import LogReplica
from ringlog.log.topics import AGENTS, topic_name
from ringlog.private import private_folder
from ringlog.protocol.role import Accept, Acts, Look, superseded, take_role
from ringlog.runtime.clock import SystemClock
from ringlog.runtime.draw import SystemDraw
from ringlog.runtime.figures import Sample
from ringlog.runtime.health import WHY_CHARS_MAX
from ringlog.runtime.logs import Seldom, get_logger
from ringlog.runtime.settings import ProcessSettings
from ringlog.wire.records import AgentStatus, RefusedProposal, encode_agent_status

LOOK_S = 0.1
WAIT_S = 0.5
TAKE_OVER_TIMEOUT_S = 30.0

log = get_logger(__name__)

Offered = tuple[int, bytes | None]
"""Offset and value of a record of the role's topic."""


class Stopping(Exception):
    """The worker was asked to stop."""


class RoleThread(ABC):
    """One instance of a role, from its take-over to its end."""

    role: str
    answers_commits = False
    """Does each commit wait for it? Else its replica is at ease (``ringlog.log.pace``)."""

    def __init__(self, settings: ProcessSettings, acknowledge: Acknowledge, ended: Ended) -> None:
        self.settings = settings
        self.acknowledge = acknowledge
        self.clock = SystemClock()
        self.draw = SystemDraw()
        self.instance = str(uuid.uuid4())
        self.term = 0
        self.log = open_metadata(
            settings.bootstrap_servers, settings.cluster, self.role, is_at_ease=not self.answers_commits
        )
        self.beginning = beginning_of(settings.bootstrap_servers, settings.cluster)
        records = records_of(settings, self.role)
        self.replica = LogReplica(self.log, record=records, beginning=self.beginning)
        self.replica.pace = Pace(is_at_ease=not self.answers_commits)
        self.replica.recent = RecentEntries(LAST_ALONE, keeps_mark=looks_after(self.role))
        self.author = DirectAuthor(self.log, self.replica, f"{self.role}-{self.instance[:8]}", self.clock, self.draw)
        snapshots = partial(open_snapshots, settings.bootstrap_servers, settings.cluster)
        self._agreement = Agreement(self.replica, self._evidence, snapshots)
        steps = SnapshotSteps(
            self.role,
            snapshots,
            lambda: self.replica.identity,
            self.clock.now_us,
            lambda: str(uuid.uuid4()),
            self.log_ends(),
        )
        self._snapshots = SnapshotThread(self.role, steps, lambda: self.replica.state, self.author.submit)
        self.producer = AckedProducer(settings.bootstrap_servers, f"ringlog-{self.role}")
        self._ended = ended
        self._inbox: deque[Offered] = deque()
        self._news = threading.Condition()
        self._folded = False
        self._stopping = threading.Event()
        self._status, self._why = "starting", ""
        self._sound = Soundness(self.role)
        self.seldom = Seldom(log)
        self._threads = (
            threading.Thread(target=self._run, name=self.role, daemon=True),
            threading.Thread(target=self._beat, name=f"{self.role}-heartbeat", daemon=True),
        )

    # ---------------------------------------------------------------------------------- for the faust app

    def start(self) -> None:
        """Begin in threads of its own; returns at once."""
        for thread in self._threads:
            thread.start()

    def offer(self, offset: int, value: bytes | None) -> bool:
        """Take one record of the role's topic; returns at once."""
        with self._news:
            self._inbox.append((offset, value))
            self._news.notify_all()
        return True

    def seen(self) -> RoleView:
        """A look at the role, and its own figures."""
        is_active, refused = self._status == ACTIVE, len(self.refused())
        handled, more = self.handled_epoch(), tuple(self.figures())
        alarm, waits = self._sound.alarm, self._snapshots.waits
        return RoleView(seen_log(self.replica), self.term, is_active, handled, refused, alarm, more, waits)

    def stop(self) -> None:
        """Finish what is under way, then return; nothing is written afterwards."""
        self._stopping.set()
        with self._news:
            self._news.notify_all()
        for thread in self._threads:
            thread.join()

    # --------------------------------------------------------------------------------------- for the role

    def prepare(self) -> None:
        """What must be there before the replica starts."""
        return

    def log_ends(self) -> LogEnds | None:
        """The archive and the beginning of the log, for the role that looks after them."""
        return None

    @abstractmethod
    def work(self) -> None:
        """The role's work, after the take-over; ends only by an exception (``look`` and ``news`` raise in time)."""

    @abstractmethod
    def handled_epoch(self) -> int:
        """The epoch up to which this role has done its work; shown in its status."""

    def refused(self) -> tuple[RefusedProposal, ...]:
        """What this role would do and is refused; shown in its status."""
        return ()

    def figures(self) -> Iterator[Sample]:
        """What is shown of this role alone. Called in threads of those who watch."""
        return iter(())

    def is_news(self, before: ClusterState, after: ClusterState) -> bool:  # noqa: ARG002
        """True if the role is to be woken for a newer state; in the replica's thread."""
        return True

    def accepting(self) -> None:
        """Preparations are over: the role is shown as active."""
        self._status = ACTIVE
        log.info("active", role=self.role, instance=self.instance, term=self.term, epoch=self.replica.state.epoch)
        self._tell()

    def look(self) -> None:
        """Raises Superseded or Stopping if this instance must not go on."""
        self._raise_if_superseded()
        if self._stopping.is_set():
            raise Stopping

    def goes_on(self) -> bool:
        """False if ``look`` would raise."""
        return not self._stopping.is_set() and superseded(self.replica.state, self.role, self.term) is None

    def _raise_if_superseded(self) -> None:
        why = superseded(self.replica.state, self.role, self.term)
        if why is not None:
            raise Superseded(why)

    def news(self, timeout_s: float = WAIT_S) -> list[Offered]:
        """Wait for records or for a folded epoch, at most ``timeout_s``; gives the records. Raises as ``look`` does."""
        with self._news:
            if not self._inbox and not self._folded and not self._stopping.is_set():
                self._news.wait(timeout_s)
            records = list(self._inbox)
            self._inbox.clear()
            self._folded = False
        self.look()
        self.raise_if_halted()
        return records

    def rest(self, pause_s: float) -> list[Offered]:
        """As ``news``, but after a pause that no news shortens: what was tried just now did not work."""
        self._stopping.wait(pause_s)
        return self.news(0)

    def read_to_end(self, records: KafkaLog) -> Iterator[LogRecord]:
        """All records of a log that are there now, from its beginning."""
        tail = records.tail(records.begin_offset())
        try:
            yield from read_to_end(records, tail, look=self.look)
        finally:
            tail.close()

    # ------------------------------------------------------------------------------------------ internals

    def _run(self) -> None:
        end: End | None = None
        try:
            self.prepare()
            self.replica.start()
            self.driver = LogDriver(self.replica.log, self.replica, self.clock, self.look, WAIT_S)
            self.driver.handlers |= {
                Acts: self._act,
                Look: lambda _: self.look(),
                Accept: lambda _: self.accepting(),
            }
            with self.author.translated():
                steps = take_role(self.author.protocol, self.role, self.instance, micros(TAKE_OVER_TIMEOUT_S))
                self.driver.carry_out(steps)
                self.work()
        except Stopping:
            end = self._last_look()
        except Superseded as error:
            end = End(SUPERSEDED, str(error))
        except (ReplicaHalted, LogDamaged, TopicMisconfigured, Diverged) as error:
            end = End(CRASHED if getattr(error, "code", "") == LogPassed.code else HALTED, str(error), error)
        except RecordTooLarge as error:
            # The next one would meet the same record: to start again would only add a term to the log, for ever.
            log.error("record_too_large", role=self.role, topic=error.topic, bytes=error.size)
            end = End(HALTED, f"{error.code}: {error}", error)
        except LogUnavailable as error:  # the broker's defect, none of this program: how it came about says nothing
            log.error("role_failed", role=self.role, code=error.code, why=str(error))
            end = End(CRASHED, f"{error.code}: {error}", error)
        except Exception as error:
            log.exception("role_failed", role=self.role)
            end = End(CRASHED, f"{type(error).__name__}: {error}", error)
        finally:
            self._status, self._why = "halted", "" if end is None else end.detail[:WHY_CHARS_MAX]
            self._stopping.set()
            self._snapshots.stop()
            self.replica.stop()
            self.log.close()
            self._say_goodbye(end)
        if end is not None:
            log.warning("ended", role=self.role, instance=self.instance, term=self.term, code=end.code, why=end.detail)
            self._ended(end)

    def _last_look(self) -> End | None:
        """Who slept through its own replacement loses its partition first: does the log hold a higher term?"""
        try:
            self.replica.read_barrier(WAIT_S)
            self._raise_if_superseded()
        except Superseded as error:
            return End(SUPERSEDED, str(error))
        except LogError:
            return None
        return None

    def _act(self, acts: Acts) -> None:
        self.term = acts.term
        self.replica.subscribe(self._on_folded)
        self.replica.subscribe(self._agreement.folded)
        self._snapshots.acts(self.replica.state, self.replica.recent.take_mark())

    def _on_folded(
        self, before: ClusterState, after: ClusterState, _item: Entry | UnreadableEntry, _outcome: Outcome, offset: int
    ) -> None:
        if after is not before:
            self._snapshots.folded(before, after, offset)
            if not self.is_news(before, after):
                return
            if self._folded:
                return  # nobody has taken that yet, and who does looks at the newest state afterwards
            with self._news:
                self._folded = True
                self._news.notify_all()

    def _evidence(self, state: ClusterState) -> Path:
        folder = private_folder(self.settings.data_dir / "agents", ours=True)
        return folder / f"{self.settings.cluster}.{state.cluster_id}.{self.role}.{EVIDENCE}"

    def raise_if_halted(self) -> None:
        """Raises ReplicaHalted: nothing that was folded may be shown as if the log went on."""
        halt = self.replica.halted
        if halt is not None:
            raise ReplicaHalted(halt.code, halt.detail, halt.offset, halt.hint)

    def _beat(self) -> None:
        reporting = Reporting()
        while not self._stopping.wait(LOOK_S):
            self._sound.look(self.replica.state)
            if reporting.is_due(self.handled_epoch(), (self._status, self.refused(), self._wrong()), LOOK_S):
                self._tell()

    def _wrong(self) -> str:
        """What is wrong with a role that goes on with its work; empty if nothing is."""
        return self._sound.alarm or self._snapshots.waits

    def _say_goodbye(self, end: End | None) -> None:
        """The last status, from the thread that did the work: until here it may have used the producer.

        Who was taken over is silent: the status is that of the instance which acts now.
        """
        if end is None or end.code != SUPERSEDED:
            self._tell()
        self.producer.close()

    def _tell(self) -> None:
        """Publish the status; one that gets lost is followed by the next."""
        if superseded(self.replica.state, self.role, self.term) is not None:
            return
        epoch, now = self.handled_epoch(), self.clock.now_us()
        why = (self._why or self._wrong())[:WHY_CHARS_MAX]
        status = AgentStatus(self.role, self.instance, self.term, epoch, self._status, now, self.refused(), why)
        topic = topic_name(self.settings.cluster, AGENTS.suffix)
        try:
            self.producer.send(topic, encode_agent_status(status), key=self.role.encode(), partition=0)
        except LogError as error:
            log.warning("heartbeat_not_sent", role=self.role, why=error.message)

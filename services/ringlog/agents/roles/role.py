"""The common parts of all roles' workers: replica, take-over, wait for news, heartbeat, orderly end.

One thread does the role's work. It may block on brokers, because the event loop runs elsewhere. A worker serves one
term, and takes the role over when it starts. It ends itself (``ended``) when its replica folds a higher term, when it
is fenced, when the log halts its replica, or when the broker fails. Requests without an answer are delivered again to
the next worker.

A ``FollowingThread`` works on the metadata log itself, and its replica folds each entry in any case. When faust also
delivered these entries, that cost two thirds of the agent's processor time. So faust pauses (``ringlog.agents.app``),
and only gets the role's position from time to time.

``InvariantMonitor`` checks the folded state from time to time. It reports a broken invariant in the process log and in
the agent's status (code ``invariant_broken``), and does nothing else, because the log defines the state for every
reader. The cause is a defect of this release, or broken memory. The heartbeat's thread checks every ``EPOCHS`` epochs,
but never twice within ``BEATS`` beats. So no fold waits for it. It shares the interpreter, so checks must be rare even
at thousands of commits a second. The first check covers everything (half a second for a ring of 16,000 tokens). Later
ones cover the changes since the previous check.
"""

from __future__ import annotations

import threading
import uuid
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from ringlog import __version__
from ringlog.agents.exits import CRASHED, HALTED, SUPERSEDED, Diverged, End, Superseded, records_of
from ringlog.agents.maintenance.snapshots import SnapshotSteps, SnapshotThread, handles_snapshots
from ringlog.agents.maintenance.truncation import LogEnds
from ringlog.agents.monitoring.health_view import ACTIVE, RoleView
from ringlog.agents.ports import Acknowledge, Ended
from ringlog.agents.status import ReportSchedule
from ringlog.client.direct import DirectAuthor
from ringlog.files import private_folder
from ringlog.kernel.invariants.check import CODE, violations
from ringlog.kernel.model.outcome import Entry, Outcome, UnreadableEntry
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState
from ringlog.log.author import this_sender
from ringlog.log.errors import (
    LogDamaged,
    LogError,
    LogPassed,
    LogUnavailable,
    RecordTooLarge,
    ReplicaHalted,
    TopicMisconfigured,
)
from ringlog.log.kafka.adapter import KafkaLog
from ringlog.log.kafka.producer import AckedProducer
from ringlog.log.kafka.topics import AGENTS, topic_name
from ringlog.log.opening import open_metadata, open_snapshots, start_point_finder
from ringlog.log.port import LogRecord
from ringlog.log.reading import read_to_end
from ringlog.log.replicas.driver import LogDriver, micros
from ringlog.log.replicas.metrics import log_view
from ringlog.log.replicas.poll_policy import PollPolicy
from ringlog.log.replicas.recent import LAST_ALONE, RecentEntries
from ringlog.log.replicas.replica import LogReplica
from ringlog.log.replicas.state_agreement import EVIDENCE, DigestComparison
from ringlog.protocol.role import BecomeActive, CheckSuperseded, StartServing, superseded, take_role
from ringlog.runtime.clock import SystemClock
from ringlog.runtime.draw import SystemDraw
from ringlog.runtime.logs import RateLimitedWarnings, get_logger
from ringlog.runtime.monitoring.health import WHY_CHARS_MAX
from ringlog.runtime.monitoring.metrics import Sample
from ringlog.runtime.settings import ProcessSettings
from ringlog.wire.records import AgentStatus, RefusedProposal, encode_agent_status

EPOCHS = 5_000
"""Rare enough not to slow a busy validator. One busy CDC writer makes 17,280 epochs a day."""
BEATS = 100
"""Beats of the heartbeat, ten seconds in all."""


class InvariantMonitor:
    """The invariant checks of a role. ``alarm``: the broken invariant in one line; empty if there is none."""

    def __init__(self, role: str) -> None:
        self.alarm = ""
        self._role = role
        self._known = EMPTY_STATE
        self._looked_at = -EPOCHS
        self._beats = BEATS

    def check(self, state: ClusterState) -> None:
        """Count one beat, and check the state if enough epochs and beats have passed.

        After a broken invariant, the next check covers the whole state again.
        """
        self._beats += 1
        if self._beats < BEATS or state.epoch == 0 or state.epoch < self._looked_at + EPOCHS:
            return
        self._looked_at, self._beats = state.epoch, 0
        found = violations(state, self._known)
        self._known = EMPTY_STATE if found else state
        self.alarm = f"{CODE}: {found[0].invariant} at epoch {state.epoch}: {found[0].detail}" if found else ""
        for one in found:
            log.error(
                CODE, role=self._role, epoch=state.epoch, invariant=one.invariant, promise=one.sentence, why=one.detail
            )


LOOK_S = 0.1
WAIT_S = 0.5
TAKE_OVER_TIMEOUT_S = 30.0

log = get_logger(__name__)

InboxRecord = tuple[int, bytes | None]
"""Offset and value of a record of the role's topic."""


class Stopping(Exception):
    """The worker must stop."""


class RoleThread(ABC):
    """One instance of a role, from its take-over to its end."""

    role: str
    answers_commits = False
    """Whether commits wait for this role. If not, its replica has a relaxed pace (``log.replicas.poll_policy``)."""

    def __init__(self, settings: ProcessSettings, acknowledge: Acknowledge, ended: Ended) -> None:
        self.settings = settings
        self.acknowledge = acknowledge
        self.clock = SystemClock()
        self.draw = SystemDraw()
        self.instance = str(uuid.uuid4())
        self.term = 0
        self.log = open_metadata(
            settings.bootstrap_servers, settings.cluster, self.role, is_relaxed=not self.answers_commits
        )
        self.start_finder = start_point_finder(settings.bootstrap_servers, settings.cluster)
        records = records_of(settings, self.role)
        self.replica = LogReplica(self.log, record=records, start_finder=self.start_finder)
        self.replica.poll_policy = PollPolicy(is_relaxed=not self.answers_commits)
        self.replica.recent = RecentEntries(LAST_ALONE, keeps_mark=handles_snapshots(self.role))
        submitter = this_sender(f"{self.role}-{self.instance[:8]}")
        self.author = DirectAuthor(self.log, self.replica, submitter, self.clock, self.draw)
        snapshots = partial(open_snapshots, settings.bootstrap_servers, settings.cluster)
        self._agreement = DigestComparison(self.replica, self._evidence, snapshots)
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
        self._inbox: deque[InboxRecord] = deque()
        self._wakeup = threading.Condition()
        self._folded = False
        self._stopping = threading.Event()
        self._status, self._why = "starting", ""
        self._invariants = InvariantMonitor(self.role)
        self.warnings = RateLimitedWarnings(log)
        self._threads = (
            threading.Thread(target=self._run, name=self.role, daemon=True),
            threading.Thread(target=self._beat, name=f"{self.role}-heartbeat", daemon=True),
        )

    # ---------------------------------------------------------------------------------- for the faust app

    def start(self) -> None:
        """Start the threads, and return at once."""
        for thread in self._threads:
            thread.start()

    def add_record(self, offset: int, value: bytes | None) -> bool:
        """Add one record of the role's topic to the inbox. Does not block."""
        with self._wakeup:
            self._inbox.append((offset, value))
            self._wakeup.notify_all()
        return True

    def seen(self) -> RoleView:
        """Return a view of the role with its metrics."""
        is_active, refused = self._status == ACTIVE, len(self.refused())
        handled, more = self.handled_epoch(), tuple(self.figures())
        alarm, waits = self._invariants.alarm, self._snapshots.waits
        return RoleView(log_view(self.replica), self.term, is_active, handled, refused, alarm, more, waits)

    def stop(self) -> None:
        """Finish the work in progress, then return. Nothing is written afterwards."""
        self._stopping.set()
        with self._wakeup:
            self._wakeup.notify_all()
        for thread in self._threads:
            thread.join()

    # --------------------------------------------------------------------------------------- for the role

    def prepare(self) -> None:
        """Prepare the worker before the replica starts. By default, do nothing."""
        return

    def log_ends(self) -> LogEnds | None:
        """Return the archive and the beginning of the log, for the role that maintains them. Default: None."""
        return None

    @abstractmethod
    def work(self) -> None:
        """Do the role's work after the take-over, until ``check_active`` or ``wait_for_records`` raises."""

    @abstractmethod
    def handled_epoch(self) -> int:
        """Return the epoch that the role has done its work for, for its status."""

    def refused(self) -> tuple[RefusedProposal, ...]:
        """Return the rejected proposals of this role, for its status."""
        return ()

    def figures(self) -> Iterator[Sample]:
        """Return the metrics of this role alone. Called in other threads."""
        return iter(())

    def wakes_role(self, before: ClusterState, after: ClusterState) -> bool:  # noqa: ARG002
        """Return whether a newer state must wake the role. Called in the replica's thread."""
        return True

    def mark_active(self) -> None:
        """Mark the role as active: its preparations are over."""
        self._status = ACTIVE
        log.info("active", role=self.role, instance=self.instance, term=self.term, epoch=self.replica.state.epoch)
        self._publish_status()

    def check_active(self) -> None:
        """Raise Superseded or Stopping if this instance must not continue."""
        self._raise_if_superseded()
        if self._stopping.is_set():
            raise Stopping

    def may_continue(self) -> bool:
        """Return False if ``check_active`` would raise."""
        return not self._stopping.is_set() and superseded(self.replica.state, self.role, self.term) is None

    def _raise_if_superseded(self) -> None:
        why = superseded(self.replica.state, self.role, self.term)
        if why is not None:
            raise Superseded(why)

    def wait_for_records(self, timeout_s: float = WAIT_S) -> list[InboxRecord]:
        """Wait for records or a folded epoch, at most ``timeout_s``. Return the records. Raises as ``check_active``."""
        with self._wakeup:
            if not self._inbox and not self._folded and not self._stopping.is_set():
                self._wakeup.wait(timeout_s)
            records = list(self._inbox)
            self._inbox.clear()
            self._folded = False
        self.check_active()
        self.raise_if_halted()
        return records

    def records_after_pause(self, pause_s: float) -> list[InboxRecord]:
        """Pause after a failure, then return the records as ``wait_for_records`` does. No record shortens the pause."""
        self._stopping.wait(pause_s)
        return self.wait_for_records(0)

    def read_to_end(self, records: KafkaLog) -> Iterator[LogRecord]:
        """Yield all present records of a log, from its beginning."""
        tail = records.tail(records.begin_offset())
        try:
            yield from read_to_end(records, tail, check=self.check_active)
        finally:
            tail.close()

    # ------------------------------------------------------------------------------------------ internals

    def _run(self) -> None:
        """Serve one term, and turn the exception that ends it into an ``End``."""
        end: End | None = None
        try:
            self.prepare()
            self.replica.start()
            self.driver = LogDriver(self.replica.log, self.replica, self.clock, self.check_active, WAIT_S)
            self.driver.handlers |= {
                BecomeActive: self._become_active,
                CheckSuperseded: lambda _: self.check_active(),
                StartServing: lambda _: self.mark_active(),
            }
            with self.author.translated():
                steps = take_role(self.author.protocol, self.role, self.instance, micros(TAKE_OVER_TIMEOUT_S))
                self.driver.run_steps(steps)
                self.work()
        except Stopping:
            end = self._end_after_stop()
        except Superseded as error:
            end = End(SUPERSEDED, str(error))
        except (ReplicaHalted, LogDamaged, TopicMisconfigured, Diverged) as error:
            # After LogPassed a restarted process begins with a snapshot. After the others a restart does not help.
            end = End(CRASHED if getattr(error, "code", "") == LogPassed.code else HALTED, str(error), error)
        except RecordTooLarge as error:
            # A restarted agent would meet the same record, and each restart would add a term to the log.
            log.error("record_too_large", role=self.role, topic=error.topic, bytes=error.size)
            end = End(HALTED, f"{error.code}: {error}", error)
        except LogUnavailable as error:
            # The broker failed, not this program: a traceback would not help.
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
            self._publish_last_status(end)
        if end is not None:
            log.warning("ended", role=self.role, instance=self.instance, term=self.term, code=end.code, why=end.detail)
            self._ended(end)

    def _end_after_stop(self) -> End | None:
        """Return the end of an instance that was stopped: superseded if the log has a higher term.

        An instance that slept through its replacement first loses its partition, before it has folded the new term.
        """
        try:
            self.replica.read_barrier(WAIT_S)
            self._raise_if_superseded()
        except Superseded as error:
            return End(SUPERSEDED, str(error))
        except LogError:
            return None
        return None

    def _become_active(self, acts: BecomeActive) -> None:
        """Become the active instance: subscribe to folded entries, and continue the maintenance work that was left."""
        self.term = acts.term
        self.replica.subscribe(self._on_folded, self.replica.halt_on_defect)
        self.replica.subscribe(self._agreement.folded, self.replica.halt_on_defect)
        self._snapshots.resume(self.replica.state, self.replica.recent.take_mark())

    def _on_folded(
        self, before: ClusterState, after: ClusterState, _item: Entry | UnreadableEntry, _outcome: Outcome, offset: int
    ) -> None:
        """Wake the role and the maintenance work after a folded entry. Runs in the replica's thread."""
        if after is not before:
            self._snapshots.folded(before, after, offset)
            if not self.wakes_role(before, after):
                return
            if self._folded:
                return  # the role is woken already, and reads the newest state afterwards
            with self._wakeup:
                self._folded = True
                self._wakeup.notify_all()

    def _evidence(self, state: ClusterState) -> Path:
        """Return the file for evidence of a state that differs from another agent's."""
        folder = private_folder(self.settings.data_dir / "agents", ours=True)
        return folder / f"{self.settings.cluster}.{state.cluster_id}.{self.role}.{EVIDENCE}"

    def raise_if_halted(self) -> None:
        """Raise ReplicaHalted if the replica has halted: its last state is not that of a live log."""
        halt = self.replica.halted
        if halt is not None:
            raise ReplicaHalted(halt.code, halt.detail, halt.offset, halt.hint)

    def _beat(self) -> None:
        """Check invariants and report the status at each beat, until the worker stops."""
        reporting = ReportSchedule()
        while not self._stopping.wait(LOOK_S):
            self._invariants.check(self.replica.state)
            if reporting.is_due(self.handled_epoch(), (self._status, self.refused(), self._problem()), LOOK_S):
                self._publish_status()

    def _problem(self) -> str:
        """Return the defect or wait of a role that continues its work; empty if there is none."""
        return self._invariants.alarm or self._snapshots.waits

    def _publish_last_status(self, end: End | None) -> None:
        """Publish the last status, in the thread of the work, which may have used the producer until now.

        A superseded instance publishes none, because the status belongs to the active instance.
        """
        if end is None or end.code != SUPERSEDED:
            self._publish_status()
        self.producer.close()

    def _publish_status(self) -> None:
        """Publish the status. If it is lost, the next one follows."""
        if superseded(self.replica.state, self.role, self.term) is not None:
            return
        epoch, now = self.handled_epoch(), self.clock.now_us()
        why = (self._why or self._problem())[:WHY_CHARS_MAX]
        status = AgentStatus(
            self.role, self.instance, self.term, epoch, self._status, now, self.refused(), why, __version__
        )
        topic = topic_name(self.settings.cluster, AGENTS.suffix)
        try:
            self.producer.send(topic, encode_agent_status(status), key=self.role.encode(), partition=0)
        except LogError as error:
            log.warning("heartbeat_not_sent", role=self.role, why=error.message)


class FollowingThread(RoleThread):
    """One instance of a role that works on the metadata log itself."""

    _passed = 0

    def add_record(self, offset: int, value: bytes | None) -> bool:  # noqa: ARG002
        """Return False, because the replica reads the record itself."""
        return False

    def passed(self, position: int) -> None:
        """Record that the role has done its work for everything before ``position``."""
        if position > self._passed:
            self._passed = position
            self.acknowledge(position - 1)

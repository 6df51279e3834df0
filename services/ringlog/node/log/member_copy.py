"""A member's copy of the log: performs ``ringlog.node.protocol.copying`` on a thread and a file.

While the node belongs to a group of the metadata service, a thread writes every log record to
``ringlog.node.log.log_copy``. The node acknowledges an epoch only after the copy contains it. So the acknowledgement
that makes a node a member also proves that it has the log, and no other barrier is needed. The thread reads the log
with its own consumer because the copy needs the original bytes. It also folds them separately, so the copy does not
depend on the state that the node serves.

The thread continues where the file ends. If the log now begins after that point, the copy starts again with a snapshot,
like any other reader. If the log has a different history, the node stops instead: the file may be the only copy of the
old history, so it is not touched. A damaged file is renamed and kept as evidence. A node that is no longer a member
keeps its file but does not extend it.

Source: CEP-21, members of the metadata service; decisions 31 and 81.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ringlog.client.participant.retry import Stopped
from ringlog.kernel.history import contradicts
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch, OperationId
from ringlog.log.errors import CopyDamaged, LogTruncated, LogUnavailable, TopicMissing, WaitTimedOut
from ringlog.log.folding import Start
from ringlog.log.port import LogTail, MetadataLog
from ringlog.log.replicas.poll_policy import PollBudget
from ringlog.log.replicas.replica import LogReplica
from ringlog.log.replicas.start_point import StartPointFinder
from ringlog.node.log.log_copy import CopyFile, CopyState, reopen_copy
from ringlog.node.protocol.acks import RegisterSide
from ringlog.node.protocol.copying import AppendRecords, AwaitMember, CloseCopy, CopyProgress, OpenCopy, keep_copy
from ringlog.node.protocol.mutation_loop import MayAcknowledge, Sleep
from ringlog.protocol.effects import run_steps
from ringlog.protocol.nodes.errors import NodeFailed
from ringlog.runtime.logs import get_logger

POLL_INTERVAL_S: Final = 1.0
EVIDENCE: Final = ".damaged"

log = get_logger("ringlog.node")


class MemberCopy(CopyProgress):
    """A ``CopyProgress`` that stores the copy in a file. Thread-safe, except that ``run`` needs a dedicated thread.

    Args:
        start_finder: Selects the starting state when the copy must start again.
        acknowledged: The newest epoch that the node has acknowledged.
        wakeup: Set when there may be something to acknowledge.
        stopping: Ends ``run``.
    """

    def __init__(
        self,
        path: Path,
        node: str,
        replica: LogReplica,
        start_finder: StartPointFinder,
        acknowledged: Epoch,
        wakeup: threading.Event,
        stopping: threading.Event,
    ) -> None:
        super().__init__(node, acknowledged)
        self._path = path
        self._replica = replica
        self._start_finder = start_finder
        self._wakeup = wakeup
        self._stopping = stopping
        self._copy: CopyFile | None = None
        self._tail: LogTail | None = None
        self._poll_pauses = PollBudget()

    @property
    def entries(self) -> CopyFile | None:
        """The copy that serves peers, even without a broker. None while the node is not a member."""
        return self._copy

    def run(self) -> None:
        """Maintain the copy whenever the node is a member, until the node stops. Raises NodeFailed, LogError."""
        handlers: dict[type, Callable[[Any], Any]] = {
            AwaitMember: lambda _: self._await_member(),
            OpenCopy: lambda _: self._open_copy(),
            AppendRecords: lambda effect: self._append_records(effect.timeout / 1e6),
            CloseCopy: lambda _: self._replace_copy(None),
            MayAcknowledge: lambda _: self._wakeup.set(),
            Sleep: lambda effect: self._stopping.wait(effect.time / 1e6),
        }

        def perform(effect: Any) -> Any:
            if self._stopping.is_set():
                raise Stopped
            return handlers[type(effect)](effect)

        try:
            run_steps(keep_copy(self, lambda: self._replica.state), perform)
        except OSError as error:
            raise NodeFailed(f"{self._path}: {error.strerror}: the node's copy of the log cannot be kept") from error
        except Stopped:
            pass
        finally:
            self._replace_copy(None)

    def _await_member(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(WaitTimedOut):
                self._replica.wait_for(self.is_member, POLL_INTERVAL_S, "the node to be a member")
                return

    def _open_copy(self) -> bool:
        try:
            copy = open_copy(self._path, self._replica.log, self._start_finder)
            # Replace the copy before opening the tail: peers are served from it even if the broker does not answer.
            self._replace_copy(copy)
            self._tail, self._poll_pauses = self._replica.log.tail(copy.state.next), PollBudget()
        except (LogUnavailable, TopicMissing):
            return False
        return True

    def _append_records(self, timeout_s: float) -> Epoch | None:
        assert self._copy is not None, "a copy is open"
        assert self._tail is not None, "a copy is open"
        try:
            records = self._tail.poll(timeout_s)
            epoch = self._copy.append(records)
        except (LogTruncated, LogUnavailable, TopicMissing):
            return None
        self._replica.poll_policy.pause(self._poll_pauses, records)
        return epoch

    def _replace_copy(self, copy: CopyFile | None) -> None:
        before, self._copy = self._copy, copy
        tail, self._tail = self._tail, None
        if tail is not None:
            tail.close()
        if before is not None:
            before.close()


class CopyGatedRegisters:
    """A ``RegisterSide`` that also delays acknowledgements until the copy of the log contains the epoch.

    Args:
        state: Returns the state that the node serves.
    """

    def __init__(self, registers: RegisterSide, copy: CopyProgress, state: Callable[[], ClusterState]) -> None:
        self._registers = registers
        self._copy = copy
        self._state = state

    def acknowledgeable(self) -> Epoch:
        return min(self._registers.acknowledgeable(), self._copy.acknowledgeable(self._state()))

    def received(self, operation: OperationId) -> bool:
        return self._registers.received(operation)


def open_copy(path: Path, metadata: MetadataLog, start_finder: StartPointFinder) -> CopyFile:
    """Open the copy and check that this log continues it; otherwise start a new copy.

    Raises:
        LogTruncated: The copy belongs to a different history.
        LogUnavailable: The broker does not answer.
        OSError: The file cannot be read or written.
    """
    kept = _intact_copy(path)
    before = None if kept is None else kept.state
    held = continue_or_restart(
        before, metadata, lambda: start_finder.start(metadata, metadata.identity(), lambda _: ()), str(path)
    )
    if kept is not None and held is before:
        return kept
    if kept is not None:
        kept.close()
    return CopyFile(path, held, ())


def continue_or_restart(
    kept: CopyState | None, metadata: MetadataLog, start: Callable[[], Start], where: str
) -> CopyState:
    """Return ``kept`` if this log continues it, otherwise the beginning of a new copy. Raises as ``open_copy``."""
    identity, begin, end = metadata.identity(), metadata.begin_offset(), metadata.end_offset()
    # The last record of the copy must still be in the log, so that the first read can compare it.
    if kept is not None and begin <= kept.next < end:
        kept.topic_id = identity
        return kept
    found = start()
    # Starting again deletes the old file. Do that only if the new beginning is a later state of the same history.
    if kept is not None and kept.last is not None:
        before, now = kept.at.state, found.state
        if now.epoch < before.epoch or contradicts(now, before.epoch, before.state_id):
            raise LogTruncated(
                f"{metadata.name} does not have epoch {before.epoch}, which {where} holds",
                "the log lost entries: `ringlog recover` can rebuild it from that file",
            )
    return CopyState(identity, found)


def _intact_copy(path: Path) -> CopyFile | None:
    """Open the existing file. A damaged file is renamed, and None is returned."""
    try:
        return reopen_copy(path)
    except CopyDamaged as damaged:
        aside = path.with_suffix(EVIDENCE)
        path.replace(aside)
        log.error("copy_damaged", kept=str(aside), why=damaged.message)
        return None

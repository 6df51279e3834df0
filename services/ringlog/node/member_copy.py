"""A member of the metadata service keeps a copy of the log: the thread that does, and what waits for it.

While the node is in a group of the service, everything that the log has goes to its file (``ringlog.node.log_copy``),
and no epoch is acknowledged before it is there: so the acknowledgement that makes a node a member says that it has the
log, and no other gate is needed. The thread reads the log by itself, since the bytes count, and folds them by itself,
so what it holds does not rest on the fold that serves.

It goes on where its file ends. Where the log begins later by now, it begins anew with a snapshot, as every reader
does, unless that is another history: then the file is all that is left of the first one, and stays. A file that is
damaged is set aside as evidence. Who is no member any more keeps what he had, and adds nothing. Peers that are behind
are answered from it, also while the broker is away.

Source: CEP-21, members of the metadata service; decisions 81 and 89.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ringlog.kernel.history import contradicts
from ringlog.kernel.state import ClusterState
from ringlog.kernel.values import Epoch, NodeId, OperationId
from ringlog.log.beginning import Beginning
from ringlog.log.errors import CopyDamaged, LogTruncated, LogUnavailable, TopicMissing, WaitTimedOut
from ringlog.log.folding import Start
from ringlog.log.pace import LooksToSpare
from ringlog.log.port import MetadataLog
from ringlog.log.replica import LogReplica
from ringlog.node.errors import NodeFailed
from ringlog.node.identity import EPOCH_MAX
from ringlog.node.log_copy import CopyFile, HeldLog, reopened
from ringlog.node.protocol.acks import RegisterSide
from ringlog.runtime.logs import get_logger

POLL_S: Final = 0.2
LOOK_S: Final = 1.0
EVIDENCE: Final = ".damaged"

log = get_logger("ringlog.node")


class CopySide:
    """How far the copy of node ``node`` goes. ``acknowledged``: the epoch that the node acknowledged so far."""

    def __init__(self, node: NodeId, acknowledged: Epoch) -> None:
        self._node = node
        self._held = acknowledged

    def is_member(self, state: ClusterState) -> bool:
        """True while the node is in a group of the metadata service: it keeps the log."""
        return self._node in state.service

    def acknowledgeable(self, state: ClusterState) -> Epoch:
        """The newest epoch that a node may acknowledge under this state as far as its copy goes."""
        return self._held if self.is_member(state) else EPOCH_MAX

    def holds(self, epoch: Epoch) -> bool:
        """All up to that epoch is on the disk by now; True if that is news."""
        is_news, self._held = epoch > self._held, max(epoch, self._held)
        return is_news


class MemberCopy(CopySide):
    """The copy in a file.

    ``news`` is set when there may be more to acknowledge. ``run`` is for a thread of its own; the rest for any.
    """

    def __init__(
        self,
        path: Path,
        node: str,
        replica: LogReplica,
        beginning: Beginning,
        acknowledged: Epoch,
        news: threading.Event,
        stopping: threading.Event,
    ) -> None:
        super().__init__(node, acknowledged)
        self._path = path
        self._replica = replica
        self._beginning = beginning
        self._news = news
        self._stopping = stopping
        self._copy: CopyFile | None = None

    @property
    def entries(self) -> CopyFile | None:
        """What peers are answered from; None while the node is no member. A broker that is away changes nothing."""
        return self._copy

    def run(self) -> None:
        """Keep the copy while the node is a member, until it stops. Raises NodeFailed, LogError."""
        try:
            while not self._stopping.is_set():
                with contextlib.suppress(WaitTimedOut):
                    self._replica.wait_for(self.is_member, LOOK_S, "the node to be a member")
                    with contextlib.suppress(LogUnavailable, TopicMissing):
                        self._follow()
                self._stopping.wait(POLL_S if self.is_member(self._replica.state) else 0)
        finally:
            self._hold(None)

    def _follow(self) -> None:
        """Keep it until the node is no member, or the log begins behind it. Raises LogUnavailable, and as ``run``."""
        try:
            copy = opened(self._path, self._replica.log, self._beginning)
            self._hold(copy)
            self._fill(copy)
            self._hold(None)
        except OSError as error:
            raise NodeFailed(f"{self._path}: {error.strerror}: the node's copy of the log cannot be kept") from error

    def _hold(self, copy: CopyFile | None) -> None:
        before, self._copy = self._copy, copy
        if before is not None:
            before.close()

    def _fill(self, copy: CopyFile) -> None:
        looks = LooksToSpare()
        with contextlib.closing(self._replica.log.tail(copy.held.next)) as tail:
            while not self._stopping.is_set() and self.is_member(self._replica.state):
                try:
                    records = tail.poll(POLL_S)
                    epoch = copy.take(records)
                except LogTruncated:
                    return  # what is there now is looked at anew
                if self.holds(epoch):
                    self._news.set()
                self._replica.pace.rest(looks, records)


class CopiedSide:
    """The registers of a member; acknowledgements wait for its copy of the log, too. ``state``: what it serves."""

    def __init__(self, registers: RegisterSide, copy: CopySide, state: Callable[[], ClusterState]) -> None:
        self._registers = registers
        self._copy = copy
        self._state = state

    def acknowledgeable(self) -> Epoch:
        """See ``RegisterSide``."""
        return min(self._registers.acknowledgeable(), self._copy.acknowledgeable(self._state()))

    def received(self, operation: OperationId) -> bool:
        """See ``RegisterSide``."""
        return self._registers.received(operation)


def opened(path: Path, metadata: MetadataLog, beginning: Beginning) -> CopyFile:
    """The copy with which to go on in this log.

    Raises LogTruncated where it is of another history, LogUnavailable, OSError.
    """
    kept = _sound(path)
    before = None if kept is None else kept.held
    held = goes_on(before, metadata, lambda: beginning.start(metadata, metadata.identity(), lambda _: ()), str(path))
    if kept is not None and held is before:
        return kept
    if kept is not None:
        kept.close()
    return CopyFile(path, held, ())


def goes_on(kept: HeldLog | None, metadata: MetadataLog, start: Callable[[], Start], where: str) -> HeldLog:
    """With what to go on in this log: what is held, or another beginning. Raises as ``opened``."""
    identity, begin, end = metadata.identity(), metadata.begin_offset(), metadata.end_offset()
    if kept is not None and begin <= kept.next < end:
        kept.topic_id = identity
        return kept
    found = start()
    if kept is not None and kept.last is not None:
        before, now = kept.at.state, found.state
        if now.epoch < before.epoch or contradicts(now, before.epoch, before.state_id):
            raise LogTruncated(
                f"{metadata.name} does not have epoch {before.epoch}, which {where} holds",
                "the log lost entries: `ringlog recover` can rebuild it from that file",
            )
    return HeldLog(identity, found)


def _sound(path: Path) -> CopyFile | None:
    """The file that is there; one that is damaged is set aside."""
    try:
        return reopened(path)
    except CopyDamaged as damaged:
        aside = path.with_suffix(EVIDENCE)
        path.replace(aside)
        log.error("copy_damaged", kept=str(aside), why=damaged.message)
        return None

"""Agents store snapshots and confirm them, each from its own fold, in a thread beside the role's work.

The keeper stores the state behind a ``TakeSnapshot``; coordinator and publisher wait for its head in the topic, and say
what digest they have. The validator does neither: commits wait for it. A thread that is busy when the next one is taken
goes on with that one: of an older snapshot nobody has need then. What the broker does not take is left out, with a
warning; readers begin with an older one.

Who confirms puts that into the log (``ConfirmSnapshot``), unless another one has. The keeper's thread also extends the
archive, and deletes what may be deleted (``ringlog.agents.truncation``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from ringlog.agents.truncation import LogEnds
from ringlog.kernel.commands.snapshots import last_snapshot
from ringlog.kernel.commands.truncation import ConfirmSnapshot, allowed_begin
from ringlog.kernel.encoding import digest
from ringlog.kernel.state import ClusterState
from ringlog.kernel.values import Command, Micros
from ringlog.log.beginning import SnapshotTopic
from ringlog.log.errors import LogError
from ringlog.log.folding import Start
from ringlog.protocol import coordinator_core, keeper, publisher
from ringlog.runtime.clock import Clock
from ringlog.runtime.logs import get_logger
from ringlog.wire.records import SnapshotConfirmation, StoredSnapshot

STORES: Final = (keeper.ROLE,)
CONFIRM: Final = (coordinator_core.ROLE, publisher.ROLE)
HEAD_WAIT_S: Final = 120.0
"""How long a reader waits for the head of a snapshot: its writer encodes, and may have been away."""
RETRY_S: Final = 10.0
"""How long a deletion rests for which something was lacking."""

log = get_logger(__name__)


def is_mark(before: ClusterState, after: ClusterState) -> bool:
    """True if what made ``after`` asks for a snapshot of it."""
    return after.snapshots is not before.snapshots and last_snapshot(after) == after.epoch


def is_order(before: ClusterState, after: ClusterState) -> bool:
    """True if what made ``after`` lets entries of the log go."""
    return allowed_begin(after) > allowed_begin(before)


class SnapshotThread:
    """What a role does for snapshots. ``open_topic``: called in the thread, when there is something to do.

    ``identity``: the id of the log's topic; ``new_id``: draws the name of a snapshot; ``submit``: puts a command into
    the log; ``ends``: archive and beginning of the log, for who stores; ``retry_s``: when a deletion is tried again.
    """

    def __init__(
        self,
        role: str,
        open_topic: Callable[[], SnapshotTopic],
        identity: Callable[[], str],
        clock: Clock,
        new_id: Callable[[], str],
        submit: Callable[[Command], object] = lambda _: None,
        ends: LogEnds | None = None,
        retry_s: float = RETRY_S,
    ) -> None:
        self._role = role
        self._open = open_topic
        self._identity = identity
        self._clock = clock
        self._new_id = new_id
        self._submit = submit
        self._ends = ends
        self._due: Start | None = None
        self._ordered: ClusterState | None = None
        self._is_news = False
        self._retry_s = retry_s
        self._over = False
        self._news = threading.Condition()
        self._thread: threading.Thread | None = None

    def acts(self, state: ClusterState) -> None:
        """The role is taken over: what was ordered before may be left to do."""
        if self._ends is not None and allowed_begin(state) > 0:
            with self._news:
                self._wake(None, state)

    def folded(self, before: ClusterState, after: ClusterState, offset: int) -> None:
        """In the replica's thread: is there something to do now?"""
        is_taken, is_ordered = is_mark(before, after), self._ends is not None and is_order(before, after)
        if self._role in (*STORES, *CONFIRM) and (is_taken or is_ordered):
            with self._news:
                self._wake(Start(after, offset + 1) if is_taken else None, after if is_ordered else None)

    def _wake(self, due: Start | None, ordered: ClusterState | None) -> None:
        self._due, self._ordered, self._is_news = due or self._due, ordered or self._ordered, True
        self._news.notify_all()
        if self._thread is None and not self._over:
            self._thread = threading.Thread(target=self._run, name=f"{self._role}-snapshots", daemon=True)
            self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Begin nothing more; what is under way ends by itself, or with the process."""
        with self._news:
            self._over = True
            self._news.notify_all()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        topic: SnapshotTopic | None = None
        try:
            while (work := self._next()) is not None:
                start, ordered = work
                try:
                    topic = topic or self._open()
                    if start is not None:
                        (self._store if self._role in STORES else self._confirm)(topic, start)
                    if ordered is not None:
                        self._truncate(ordered)
                except LogError as error:
                    epoch = 0 if start is None else start.state.epoch
                    log.warning("snapshot_given_up", role=self._role, epoch=epoch, why=str(error))
        finally:
            if topic is not None:
                topic.close()

    def _next(self) -> tuple[Start | None, ClusterState | None] | None:
        """What there is to do; what was ordered is tried again after a rest. None: nothing any more."""
        with self._news:
            self._news.wait_for(lambda: self._over or self._is_news, None if self._ordered is None else self._retry_s)
            start, self._due, self._is_news = self._due, None, False
            return None if self._over else (start, self._ordered)

    def _truncate(self, ordered: ClusterState) -> None:
        assert self._ends is not None, "only who has the log's ends is woken by an order"
        self._ends.truncate(ordered)
        with self._news:
            if self._ordered is ordered:
                self._ordered = None

    def _store(self, topic: SnapshotTopic, start: Start) -> None:
        begin = 0 if self._ends is None else self._ends.begin()
        head = topic.store(start, self._identity(), self._role, self._clock.now_us(), self._new_id(), begin)
        size = sum(part.size for part in head.parts)
        log.info("snapshot_stored", epoch=head.epoch, bytes=size, chunks=len(head.chunks), digest=head.digest)
        if self._ends is not None and (grown := self._ends.archive(start)) is not None:
            self._submit(grown)

    def _confirm(self, topic: SnapshotTopic, start: Start) -> None:
        epoch = start.state.epoch
        head = topic.await_head(epoch, lambda: not self._over and self._due is None, HEAD_WAIT_S)
        if head is None:
            return
        said, confirms = compared(start, head, self._identity(), self._role, self._clock.now_us())
        topic.confirm(said)
        if confirms is not None:
            log.info("snapshot_confirmed", role=self._role, epoch=epoch)
            self._submit(confirms)
        else:
            log.error("snapshot_disputed", role=self._role, epoch=epoch, digest=said.digest, stored=head.digest)


def compared(
    start: Start, head: StoredSnapshot, topic_id: str, role: str, now: Micros
) -> tuple[SnapshotConfirmation, ConfirmSnapshot | None]:
    """What ``role``, whose own fold is ``start``, says beside a head, and puts into the log if the two agree."""
    state, mine = start.state, digest(start.state)
    whose = state.cluster_id, topic_id, state.epoch, state.state_id
    said = SnapshotConfirmation(*whose, start.position, mine, role, now)
    if (head.state_id, head.digest) != (state.state_id, mine):
        return said, None
    return said, ConfirmSnapshot(state.epoch, state.state_id, start.position, mine, tuple(sorted((head.by, role))))

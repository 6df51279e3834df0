"""Snapshots of the state, stored by one agent and confirmed by others, each from its own fold.

The cache writer stores the state of each ``TakeSnapshot``. Coordinator and change publisher wait for its head in the
topic, and compare its digest with their own. The validator does neither, because commits wait for it. An agent that is
still busy at the next ``TakeSnapshot`` skips to that one, since the older snapshot is no longer useful. If the broker
rejects a snapshot it is skipped, with a warning. Readers then begin with an older one.

An instance that takes over continues with the newest mark without confirmation. That mark may have been folded while no
instance was active, or the previous one may have died with it. The state behind the mark is kept until then
(``ringlog.log.replicas.recent``). If the snapshot is confirmed, the previous instance may have died before it was
archived. So the cache writer extends the archive up to there.

An agent that confirms a snapshot records that in the log (``ConfirmSnapshot``), unless another agent already has. The
cache writer also extends the archive, and deletes old entries (``ringlog.agents.maintenance.truncation``). A failure to
archive, or to record it in the log, is retried with each snapshot and after 1, 2, 4, … rests, at most ``RESTS_MAX``.
Only a later snapshot replaces that work (decision 70).

``SnapshotSteps`` is the protocol. A thread performs it here, the simulator on virtual time. Other events may happen
between two steps. Within a step the broker or the archive answers, or raises a LogError.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from ringlog.agents.maintenance.truncation import LogEnds
from ringlog.kernel.commands.cluster.snapshots import is_mark, is_unconfirmed
from ringlog.kernel.commands.cluster.truncation import ConfirmSnapshot, is_known
from ringlog.kernel.encoding.encoder import digest
from ringlog.kernel.history import allowed_begin
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Command, Epoch, Micros, Value, replace
from ringlog.log.errors import LogError, LogUnavailable
from ringlog.log.folding import Start
from ringlog.log.replicas.start_point import SnapshotTopic
from ringlog.protocol.effects import Effect, FaultPoint, Newest, run_steps
from ringlog.protocol.roles import ROLES
from ringlog.runtime.logs import get_logger
from ringlog.wire.records import SnapshotConfirmation, StoredSnapshot

STORE: Final = frozenset(row.name for row in ROLES.values() if row.stores)
CONFIRM: Final = frozenset(row.name for row in ROLES.values() if row.confirms)
HEAD_WAIT_S: Final = 120.0
"""How long an agent waits for the head of a snapshot. The cache writer must encode it, and may have been away."""
RETRY_S: Final = 10.0
"""The length of a rest: the pause before a failed deletion is retried, and the unit of pauses before the archive is."""
RESTS_MAX: Final = 64
"""The most rests between two tries to archive: about ten minutes."""

log = get_logger(__name__)
MEND: Final = "fix the location of the archive"


class AwaitSnapshotWork(Effect[None], Value):
    """Wait for work. If failed work is left, wait for one rest at most."""


class PendingArchive(Value):
    """The archive must be extended to ``epoch``. ``wanted`` returns the digest of the state there.

    ``tries``: failed ones so far. ``since``: the time of the first failure. ``why``, ``hint``: of the last one.
    ``rests``: left until the next try.
    """

    epoch: Epoch
    wanted: Callable[[], str]
    tries: int = 0
    rests: int = 0
    since: Micros = 0
    why: str = ""
    hint: str = ""

    def after_failure(self, why: str, now: Micros, hint: str = "") -> PendingArchive:
        """Return the value after one more failed try.

        It keeps only the digest, because ``wanted`` may hold a whole state.
        """
        rests = min(2**self.tries, RESTS_MAX)
        return PendingArchive(
            self.epoch, partial(str, self.wanted()), self.tries + 1, rests, self.since or now, why, hint
        )

    @property
    def description(self) -> str:
        """A text about the wait and its start; empty before the first failure."""
        if not self.tries:
            return ""
        since = datetime.fromtimestamp(self.since / 1e6, UTC).isoformat(timespec="seconds")
        what = f"the archive has waited for epochs up to {self.epoch} since {since}: {self.why}"
        return f"{what}; the agent retries after {self.rests * RETRY_S:.0f} s; {self.hint or MEND}"


class AwaitHead(Effect[StoredSnapshot | None], Value):
    """Wait for the head of that epoch, unless there is a later snapshot. Outcome: the head; None if it is missing."""

    topic: SnapshotTopic
    epoch: Epoch


class SubmitOnce(Effect[None], Value):
    """Submit the command once. The driver logs a failure."""

    command: Command


def handles_snapshots(role: str) -> bool:
    """Return whether this role stores or confirms snapshots."""
    return role in STORE | CONFIRM


def allows_truncation(before: ClusterState, after: ClusterState) -> bool:
    """Return whether the entry that made ``after`` allows a later beginning of the log."""
    return allowed_begin(after) > allowed_begin(before)


class SnapshotSteps:
    """The protocol of ``role`` for snapshots.

    ``open_topic``: called at the first work. ``identity``: returns the id of the log's topic. ``new_id``: draws the
    name of a snapshot. ``ends``: archive and beginning of the log, for the role that stores. ``say``: receives each
    event (event, epoch, details). ``resume`` and ``folded`` may be called in another thread than ``run``.
    """

    def __init__(
        self,
        role: str,
        open_topic: Callable[[], SnapshotTopic],
        identity: Callable[[], str],
        now: Callable[[], Micros],
        new_id: Callable[[], str],
        ends: LogEnds | None = None,
        say: Callable[..., None] | None = None,
    ) -> None:
        self._role = role
        self._say = say or partial(_log, role)
        self._open = open_topic
        self._identity = identity
        self._now = now
        self._new_id = new_id
        self._ends = ends if role in STORE else None
        self._looks = handles_snapshots(role)
        self._lock = threading.Lock()
        self._due: Start | None = None
        self._left: Start | None = None
        self._behind: PendingArchive | None = None
        self._ordered: ClusterState | None = None

    @property
    def is_due(self) -> bool:
        """Whether there is a snapshot that this role has not started with, or one to archive without a failed try."""
        behind = self._behind
        return self._due is not None or (behind is not None and not behind.tries)

    @property
    def has_unfinished_work(self) -> bool:
        """Whether a deletion or an extension of the archive is left. It is retried after a rest."""
        return self._ordered is not None or self._behind is not None

    @property
    def waits(self) -> str:
        """The wait of the archive, with its start and how it ends; empty if there is none."""
        behind = self._behind
        return "" if behind is None else behind.description

    def resume(self, state: ClusterState, mark: Start | None) -> bool:
        """Collect the work that was left before the take-over. Return whether there is any.

        Args:
            mark: the state behind the newest mark, if it was folded here.
        """
        is_left = mark is not None and self._looks and is_unconfirmed(state, mark.state.epoch)
        is_ordered = self._ends is not None and allowed_begin(state) > 0
        self._left = mark if is_left else None
        known = None if self._ends is None else self._ends.behind(state)
        self._behind = None if known is None else PendingArchive(known.epoch, partial(str, known.digest))
        self._add(self._left, state if is_ordered else None)
        return is_left or is_ordered or self._behind is not None

    def folded(self, before: ClusterState, after: ClusterState, offset: int) -> bool:
        """Add the work that an entry requests. Return whether there is any."""
        is_taken = self._looks and is_mark(before, after)
        is_ordered = self._ends is not None and allows_truncation(before, after)
        if is_taken or is_ordered:
            self._add(Start(after, offset + 1) if is_taken else None, after if is_ordered else None)
        return is_taken or is_ordered

    def _add(self, due: Start | None, ordered: ClusterState | None) -> None:
        """Add work. Only the newest snapshot is kept, because an older one is no longer useful."""
        with self._lock:
            if due is not None and (self._due is None or due.position > self._due.position):
                self._due = due
            self._ordered = ordered or self._ordered

    async def run(self) -> None:
        """Perform the work, forever."""
        topic: SnapshotTopic | None = None
        try:
            while True:
                await AwaitSnapshotWork()
                await FaultPoint("snapshots")
                topic = await self._perform_due(topic)
        finally:
            if topic is not None:
                topic.close()

    async def _perform_due(self, topic: SnapshotTopic | None) -> SnapshotTopic | None:
        """Perform the present work. Whole states are released at its end."""
        with self._lock:
            start, ordered, self._due = self._due, self._ordered, None
        # A newer mark may have replaced the one from before the take-over.
        is_left, self._left = start is self._left, None
        try:
            topic = topic or self._open()
            if start is not None:
                if self._role in STORE:
                    await self._store(topic, start, is_left)
                else:
                    await self._confirm(topic, start)
            await self._archive()
            if ordered is not None:
                self._truncate(ordered)
        except LogError as error:
            self.give_up(error, 0 if start is None else start.state.epoch)
            if self._behind is not None and not self._behind.tries:
                self._behind = self._behind.after_failure(error.message, self._now(), error.hint)
        return topic

    def give_up(self, error: LogError, epoch: Epoch = 0) -> None:
        """Report that some work is skipped. Readers begin with an older snapshot."""
        self._say("given_up", epoch, why=error)

    def _truncate(self, ordered: ClusterState) -> None:
        """Delete the entries that an order allows to delete. After a failure the order stays."""
        assert self._ends is not None, "an order wakes only a role that knows the log's ends"
        self._ends.truncate(ordered)
        with self._lock:
            # Keep an order that was folded during the deletion.
            if self._ordered is ordered:
                self._ordered = None

    async def _store(self, topic: SnapshotTopic, start: Start, is_left: bool) -> None:
        """Store a snapshot, and plan its archive.

        ``is_left``: it was requested before the take-over, so the previous instance may have stored it.
        """
        if not is_left or not self._is_stored(topic, start):
            begin = 0 if self._ends is None else self._ends.begin()
            head = topic.store(start, self._identity(), self._role, self._now(), self._new_id(), begin)
            size = sum(part.size for part in head.parts)
            self._say("stored", head.epoch, bytes=size, chunks=len(head.chunks), digest=head.digest)
            await FaultPoint("snapshots")
        if self._ends is not None:
            earlier = self._behind or PendingArchive(0, str)
            wanted = partial(digest, start.state)
            self._behind = replace(earlier, epoch=start.state.epoch, wanted=wanted, rests=0)

    async def _archive(self) -> None:
        """Extend the archive to the newest stored or confirmed snapshot, or count one rest if it is too early."""
        behind = self._behind
        if behind is None or self._ends is None:
            return
        if behind.rests > 1:
            self._behind = replace(behind, rests=behind.rests - 1)
            return
        try:
            grown = self._ends.archive(behind.epoch, behind.wanted)
        except LogError as error:
            self._waits_on(behind, error)
            return
        if grown is not None:
            await self._submit(grown)
            if not is_known(await Newest(), grown):
                self._waits_on(behind, LogUnavailable(f"the log does not record the archive up to epoch {grown.epoch}"))
                return
        self._behind = None

    def _waits_on(self, behind: PendingArchive, why: LogError) -> None:
        self._behind = behind.after_failure(f"{why.code}: {why.message}", self._now(), why.hint)
        self._say("unarchived", behind.epoch, why=why, rests=self._behind.rests)

    def _is_stored(self, topic: SnapshotTopic, start: Start) -> bool:
        """Return whether the previous instance stored the snapshot."""
        mine = self._identity(), start.state.state_id, digest(start.state)
        return any(mine == (one.head.topic_id, one.head.state_id, one.head.digest) for one in topic.listed())

    async def _confirm(self, topic: SnapshotTopic, start: Start) -> None:
        """Compare the stored snapshot with this role's fold, publish the result, and record an agreement in the log."""
        epoch = start.state.epoch
        head = await AwaitHead(topic, epoch)
        if head is None:
            return
        said, confirms = confirmation_of(start, head, self._identity(), self._role, self._now())
        topic.confirm(said)
        if confirms is not None:
            self._say("confirmed", epoch)
            await self._submit(confirms)
        else:
            self._say("disputed", epoch, digest=said.digest, stored=head.digest)

    async def _submit(self, command: Command) -> None:
        """Submit a command unless the log contains it already."""
        await FaultPoint("snapshots")
        if not is_known(await Newest(), command):
            await SubmitOnce(command)


class SnapshotThread:
    """A thread that performs ``steps``. It starts with the first work.

    ``submit``: submits a command to the log. ``newest``: returns the newest state. ``retry_s``: the length of a rest.
    """

    def __init__(
        self,
        role: str,
        steps: SnapshotSteps,
        newest: Callable[[], ClusterState],
        submit: Callable[[Command], object],
        retry_s: float = RETRY_S,
    ) -> None:
        self._role = role
        self._steps = steps
        self._newest = newest
        self._submit = submit
        self._retry_s = retry_s
        self._is_news = False
        self._over = False
        self._wakeup = threading.Condition()
        self._thread: threading.Thread | None = None

    @property
    def waits(self) -> str:
        """See ``SnapshotSteps.waits``."""
        return self._steps.waits

    def resume(self, state: ClusterState, mark: Start | None) -> None:
        """Collect the work that was left before the take-over. ``mark``: see ``SnapshotSteps.resume``."""
        if self._steps.resume(state, mark):
            self._wake()

    def folded(self, before: ClusterState, after: ClusterState, offset: int) -> None:
        """Add the work that an entry requests. Runs in the replica's thread."""
        if self._steps.folded(before, after, offset):
            self._wake()

    def _wake(self) -> None:
        with self._wakeup:
            self._is_news = True
            self._wakeup.notify_all()
            if self._thread is None and not self._over:
                self._thread = threading.Thread(target=self._run, name=f"{self._role}-snapshots", daemon=True)
                self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Start no further work. Work in progress ends, or the process ends it."""
        with self._wakeup:
            self._over = True
            self._wakeup.notify_all()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        handlers: dict[type, Callable[[Any], Any]] = {
            FaultPoint: lambda _: None,
            Newest: lambda _: self._newest(),
            AwaitSnapshotWork: lambda _: self._await_work(),
            AwaitHead: self._await_head,
            SubmitOnce: self._submit_once,
        }
        with suppress(_Over):
            run_steps(self._steps.run(), lambda effect: handlers[type(effect)](effect))

    def _await_work(self) -> None:
        with self._wakeup:
            self._wakeup.wait_for(
                lambda: self._over or self._is_news, self._retry_s if self._steps.has_unfinished_work else None
            )
            self._is_news = False
            if self._over:
                raise _Over

    def _await_head(self, effect: AwaitHead) -> StoredSnapshot | None:
        try:
            return effect.topic.await_head(effect.epoch, lambda: not self._over and not self._steps.is_due, HEAD_WAIT_S)
        except LogError as error:
            self._steps.give_up(error, effect.epoch)
            return None

    def _submit_once(self, effect: SubmitOnce) -> None:
        try:
            self._submit(effect.command)
        except LogError as error:
            self._steps.give_up(error)


def _log(role: str, event: str, epoch: Epoch, **about: object) -> None:
    say = {"given_up": log.warning, "unarchived": log.warning, "disputed": log.error}.get(event, log.info)
    say(f"snapshot_{event}", role=role, epoch=epoch, **{name: str(value) for name, value in about.items()})


class _Over(Exception):
    """Ends the thread."""


def confirmation_of(
    start: Start, head: StoredSnapshot, topic_id: str, role: str, now: Micros
) -> tuple[SnapshotConfirmation, ConfirmSnapshot | None]:
    """Return a role's confirmation of a stored snapshot, and the command for the log; None if the digests differ.

    Args:
        start: the state of the role's own fold.
        head: the head of the stored snapshot.
    """
    state, mine = start.state, digest(start.state)
    whose = state.cluster_id, topic_id, state.epoch, state.state_id
    said = SnapshotConfirmation(*whose, start.position, mine, role, now)
    if (head.state_id, head.digest) != (state.state_id, mine):
        return said, None
    return said, ConfirmSnapshot(state.epoch, state.state_id, start.position, mine, tuple(sorted((head.by, role))))

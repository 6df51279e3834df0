"""A node's turn: take records, learn what the log has, adopt it, judge what it settles, acknowledge.

The state is learned after the records were taken, by a read barrier. So whatever the log held when they were read is
adopted before rows are kept by its placements. Records that it does not settle wait, and the node asks for a later
settled time (``ringlog.node.rows.watermark_requests``).

A restarted node reads on where its rows end (``ringlog.node.rows.store``); one without rows reads the topic from its
beginning, under the placements of today. It has *caught up* once it has passed the topic's end as it was at the start,
and knows the epoch that it acknowledged last: before that it acknowledges nothing and answers no reads. Each turn ends
with a commit of what it judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ringlog.kernel.commands.cdc.verdicts import SettleVerdicts
from ringlog.kernel.generations.acceptance import append_time_us
from ringlog.kernel.model.settings import setting
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch, Micros
from ringlog.node.errors import NodeFailed
from ringlog.node.rows.replica import HELD, RowFetch, RowReplica
from ringlog.node.rows.store import reads_from
from ringlog.node.rows.watermark_requests import WAITING_MAX, UnsettledRecords, next_settled
from ringlog.protocol.effects import CatchUp, Draw, FaultPoint, Newest, Steps, WallClock
from ringlog.protocol.submission.results import RejectedResult
from ringlog.protocol.submission.submission import request_for

BACKLOG: Micros = 200_000
"""How long a node reads nothing more while as many records wait as may."""
REFUSED: Micros = 1_000_000
"""How long after a refusal a node asks for no other settled time."""


@dataclass(frozen=True, slots=True)
class Tailed:
    """Something at ``offset`` of ``partition`` of the mutations topic, appended at ``time_ms``; ``value`` None: the
    partition ends here, for now.
    """

    partition: int
    offset: int
    value: bytes | None
    time_ms: int = 0


@dataclass(frozen=True, slots=True)
class Take:
    """Outcome: what has come of the mutations topic (Tailed), in the order of each partition. The driver waits a moment
    where nothing has, and nothing else is new; it raises if the node is to end.
    """


@dataclass(frozen=True, slots=True)
class Rest:
    """Let so much time pass."""

    time: Micros


@dataclass(frozen=True, slots=True)
class BeginStream:
    """Begin to stream what ``fetch`` names, beside these steps: ``ringlog.node.protocol.stream``."""

    fetch: RowFetch


@dataclass(frozen=True, slots=True)
class Spawn:
    """Perform ``steps`` concurrently with these. ``name``: their name in logs and metrics."""

    name: str
    steps: Steps[None]


@dataclass(frozen=True, slots=True)
class CountVerdicts:
    """How many records got each of these verdicts in this turn."""

    verdicts: Counter[str]


@dataclass(frozen=True, slots=True)
class SettlingRefused:
    """The request for a later settled time was refused, or (``answer`` None) not answered in time: writes are held."""

    answer: RejectedResult | None


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Outcome: the newest epoch that this node has acknowledged, as its disk has it."""


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """The node knows again what it knew before: it answers reads, and acknowledges."""


@dataclass(frozen=True, slots=True)
class MayAcknowledge:
    """There may be something to acknowledge: wakes ``ringlog.node.protocol.acks``."""


class Turns:
    """The turns of ``row_replica``'s node, over one life. ``begin``, ``ends``: offsets of the mutations topic at its
    start, by partition; what is read begins there, or at the position of the row replica, if that is later.
    """

    def __init__(self, row_replica: RowReplica, draw: Draw, begin: Mapping[int, int], ends: Mapping[int, int]) -> None:
        self._row_replica = row_replica
        self._draw = draw
        kept = row_replica.positions
        self._gaps = {part: offset for part, offset in begin.items() if offset > kept.get(part, 0)}
        self._begin = reads_from(begin, kept)
        self._ends = ends
        self._waiting: UnsettledRecords[Tailed] = UnsettledRecords()
        self._judged: Counter[str] = Counter()
        self._is_asking = False
        self._active_until: Micros = 0

    def run(self) -> Steps[None]:
        """One turn after the other, for ever. Raises NodeFailed if rows that the node held are lost."""
        row_replica = self._row_replica
        row_replica.positions.update(self._begin)
        while True:
            taken: Sequence[Tailed] = ()
            if len(self._waiting) < WAITING_MAX:
                taken = yield Take()
            else:
                yield Rest(BACKLOG)
            if taken:
                yield FaultPoint("judging")
            state: ClusterState = yield CatchUp() if taken else Newest()
            for fetch in row_replica.adopt(state):
                yield BeginStream(fetch)
            self._waiting.add((item.partition, item) for item in taken)
            held = self._waiting.work_off(self._apply)
            if row_replica.caught_up or not self._gaps:  # else nobody knows yet whether it may go on
                row_replica.commit()
                row_replica.compact()
            if self._judged:
                judged, self._judged = self._judged, Counter()
                yield CountVerdicts(judged)
            yield from self._settle(state, held, any(item.value is not None for item in taken))
            if row_replica.caught_up or (yield from self._catches_up()):
                yield MayAcknowledge()

    def _apply(self, partition: int, item: Tailed) -> bool:
        """Judge a record, if that can be done."""
        row_replica = self._row_replica
        if item.value is None:
            row_replica.passed(partition, item.offset)
            return True
        if row_replica.state.settled.until == 0:
            return False
        verdict = row_replica.judge(item.value, append_time_us(item.time_ms))
        if verdict == HELD:
            return False
        self._judged[verdict] += 1
        row_replica.passed(partition, item.offset + 1)
        return True

    def _catches_up(self) -> Steps[bool]:
        """True once the node holds what it held before, and knows what it knew."""
        row_replica = self._row_replica
        if any(row_replica.positions[partition] < end for partition, end in self._ends.items()):
            return False
        acknowledged: Epoch = yield Acknowledged()
        if row_replica.state.epoch < max(acknowledged, 1):
            return False
        if acknowledged and self._gaps and row_replica.serves():
            raise NodeFailed(
                f"the mutations topic begins at {self._gaps}, this node has not read so far: writes are not in it any "
                "more; replace the node by a new one"
            )
        row_replica.caught_up = True
        yield CaughtUp()
        return True

    def _settle(self, state: ClusterState, held: Sequence[Tailed], has_come: bool) -> Steps[None]:
        """Ask for a later settled time where one is needed, or soon will be."""
        now = yield WallClock()
        if has_come:
            self._active_until = now + setting(state, "verdicts_lead_us")
        needs = [
            self._row_replica.needed(one.value, append_time_us(one.time_ms)) for one in held if one.value is not None
        ]
        wanted = next_settled(state, now, max(needs, default=None), now < self._active_until, self._row_replica.node)
        if wanted is not None and not self._is_asking:
            self._is_asking = True
            yield Spawn("settle", self._ask(wanted))

    def _ask(self, wanted: SettleVerdicts) -> Steps[None]:
        """One answer is enough: who still needs a later time asks again."""
        try:
            answer = yield (yield from request_for(wanted, self._draw))
            refused = answer if isinstance(answer, RejectedResult) and answer.code != "already_settled" else None
            if answer is None or refused is not None:
                yield SettlingRefused(refused)
            if refused is not None:
                yield Rest(REFUSED)
        finally:
            self._is_asking = False

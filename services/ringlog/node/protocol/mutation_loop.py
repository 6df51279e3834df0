"""The mutation loop of a node: read records, read the log, adopt its state, validate records, acknowledge.

Each iteration reads the log with a read barrier after it has read mutations. So the node adopts everything that the
log had at that time before it keeps rows according to its placements. Records above the validation watermark wait, and
the node requests a later one (``ringlog.node.rows.watermark_requests``).

A restarted node continues at the position of its rows (``ringlog.node.rows.store``). A node without rows reads the
topic from its beginning, under the present placements. The node has *caught up* when it has passed the topic's end as
of its start and knows the epoch that it acknowledged last. Before that it acknowledges nothing and answers no reads.
Each iteration ends with a commit of the validated records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from ringlog.kernel.commands.cdc.verdicts import SettleVerdicts
from ringlog.kernel.generations.acceptance import append_time_us
from ringlog.kernel.model.settings import setting
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch, Micros, Value
from ringlog.node.rows.replica import HELD, RowFetch, RowReplica
from ringlog.node.rows.store import reads_from
from ringlog.node.rows.watermark_requests import WAITING_MAX, WaitingRecords, next_watermark_request
from ringlog.protocol.effects import CatchUp, Draw, Effect, FaultPoint, Newest, Steps, WallClock
from ringlog.protocol.nodes.errors import NodeFailed
from ringlog.protocol.submission.results import RejectedResult
from ringlog.protocol.submission.submission import request_for

BACKLOG: Micros = 200_000
"""The pause, in microseconds, between iterations while the limit of waiting records is reached."""
REFUSED: Micros = 1_000_000
"""The pause, in microseconds, after a rejected request for a later watermark."""


class TailItem(Value):
    """A record of the mutations topic, or the present end of a partition.

    Attributes:
        value: The encoded mutation, or None at the end of the partition.
        time_ms: The append time of the record.
        key: The key of the record.
    """

    partition: int
    offset: int
    value: bytes | None
    time_ms: int = 0
    key: bytes | None = None


class ReadMutations(Effect[Sequence[TailItem]], Value):
    """Read the mutations topic. Outcome: the new items (TailItem), in order within each partition.

    The driver waits a moment if there is nothing new. It raises if the node is to end.
    """


class Sleep(Effect[None], Value):
    """Wait for this time."""

    time: Micros


class BeginStream(Effect[None], Value):
    """Start to fetch the stream, concurrently with these steps: ``ringlog.node.protocol.stream``."""

    fetch: RowFetch


class Spawn(Effect[None], Value):
    """Run the steps that ``start`` returns, concurrently with these steps.

    Attributes:
        name: The name of the steps in logs and metrics.
    """

    name: str
    start: Callable[[], Steps[None]]


class CountVerdicts(Effect[None], Value):
    """Count the records of this iteration by their decision."""

    verdicts: Counter[str]


class WatermarkRequestFailed(Effect[None], Value):
    """Report that the request for a later watermark failed, so that writes have to wait.

    Attributes:
        answer: The rejection, or None without an answer in time.
    """

    answer: RejectedResult | None


class ReadAcknowledgedEpoch(Effect[Epoch], Value):
    """Outcome: the newest epoch that this node has acknowledged, according to its disk."""


class CaughtUp(Effect[None], Value):
    """Report that the node has its earlier state again. From now on it answers reads and acknowledges epochs."""


class MayAcknowledge(Effect[None], Value):
    """Wake ``ringlog.node.protocol.acks``, because there may be something to acknowledge."""


class MutationLoop:
    """The mutation loop of one node, from its start to its end.

    Args:
        begin: Begin offsets of the mutations topic by partition, at the start of the node.
        ends: End offsets by partition, at the start of the node.
    """

    def __init__(self, row_replica: RowReplica, draw: Draw, begin: Mapping[int, int], ends: Mapping[int, int]) -> None:
        self._row_replica = row_replica
        self._draw = draw
        # The topic may have deleted records that the node has not read. Whether that loses data is decided in
        # ``_check_caught_up``.
        kept = row_replica.positions
        self._gaps = {part: offset for part, offset in begin.items() if offset > kept.get(part, 0)}
        self._begin = reads_from(begin, kept)
        self._ends = ends
        self._waiting: WaitingRecords[TailItem] = WaitingRecords()
        self._verdicts: Counter[str] = Counter()
        self._is_requesting = False
        self._active_until: Micros = 0

    async def run(self) -> None:
        """Run iterations without end. Raises NodeFailed if the node's rows have become incomplete."""
        row_replica = self._row_replica
        row_replica.positions.update(self._begin)
        while True:
            taken: Sequence[TailItem] = ()
            if len(self._waiting) < WAITING_MAX:
                taken = await ReadMutations()
            else:
                await Sleep(BACKLOG)
            if taken:
                await FaultPoint("judging")
            # A read barrier is needed only if there are records to validate.
            state = await (CatchUp() if taken else Newest())
            for fetch in row_replica.adopt(state):
                await BeginStream(fetch)
            self._waiting.add((item.partition, item) for item in taken)
            held = self._waiting.process(self._apply)
            # With a gap it is not yet known whether the node may continue. A commit would hide the gap from the next
            # start.
            if row_replica.caught_up or not self._gaps:
                row_replica.commit()
                row_replica.compact()
            if self._verdicts:
                judged, self._verdicts = self._verdicts, Counter()
                await CountVerdicts(judged)
            await self._advance_watermark(state, held, any(item.value is not None for item in taken))
            if row_replica.caught_up or await self._check_caught_up():
                await MayAcknowledge()

    def _apply(self, partition: int, item: TailItem) -> bool:
        """Validate one item. Return False if it has to wait."""
        row_replica = self._row_replica
        if item.value is None:
            row_replica.advance_position(partition, item.offset)
            return True
        if row_replica.state.settled.until == 0:
            return False
        verdict = row_replica.validate_record(item.value, append_time_us(item.time_ms), item.key)
        if verdict == HELD:
            return False
        self._verdicts[verdict] += 1
        row_replica.advance_position(partition, item.offset + 1)
        return True

    async def _check_caught_up(self) -> bool:
        """Return True once the node has its earlier rows and knows its last acknowledged epoch."""
        row_replica = self._row_replica
        if any(row_replica.positions[partition] < end for partition, end in self._ends.items()):
            return False
        acknowledged = await ReadAcknowledgedEpoch()
        if row_replica.state.epoch < max(acknowledged, 1):
            return False
        # The node would serve less than it acknowledged: the writes in the gap are neither in its rows nor in the
        # topic.
        if acknowledged and self._gaps and row_replica.serves():
            raise NodeFailed(
                f"the mutations topic begins at {self._gaps}, after the position of this node: writes are lost; "
                "replace the node"
            )
        row_replica.caught_up = True
        await CaughtUp()
        return True

    async def _advance_watermark(self, state: ClusterState, held: Sequence[TailItem], has_come: bool) -> None:
        """Request a later watermark if one is needed, or will be soon."""
        now = await WallClock()
        if has_come:
            self._active_until = now + setting(state, "verdicts_lead_us")
        needs = [
            self._row_replica.watermark_needed(one.value, append_time_us(one.time_ms))
            for one in held
            if one.value is not None
        ]
        wanted = next_watermark_request(
            state, now, max(needs, default=None), now < self._active_until, self._row_replica.node
        )
        if wanted is not None and not self._is_requesting:
            self._is_requesting = True
            await Spawn("settle", partial(self._request_watermark, wanted))

    async def _request_watermark(self, wanted: SettleVerdicts) -> None:
        """Request a later watermark once. If it is still needed after the answer, the loop requests it again."""
        try:
            request = await request_for(wanted, self._draw)
            answer = await request
            refused = answer if isinstance(answer, RejectedResult) and answer.code != "already_settled" else None
            if answer is None or refused is not None:
                await WatermarkRequestFailed(refused)
            if refused is not None:
                await Sleep(REFUSED)
        finally:
            self._is_requesting = False

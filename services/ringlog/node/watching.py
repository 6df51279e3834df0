"""Looks at a running node, for ``/metrics`` and ``/health``: asks nobody, and waits for nothing that could last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from ringlog.kernel.state import ClusterState
from ringlog.kernel.values import Epoch, Micros
from ringlog.log.figures import seen_log
from ringlog.log.replica import LogReplica
from ringlog.node.data_side import CELLS, DataSide
from ringlog.node.disk_rows import ROWS
from ringlog.node.holder import Holder
from ringlog.node.identity import NodeFolder, NodeOptions
from ringlog.node.log_copy import COPY
from ringlog.node.member_copy import MemberCopy
from ringlog.node.tail import MutationsTail
from ringlog.node.watched import BrokerClock, NodeView, health_of, samples_of
from ringlog.runtime.clock import Clock
from ringlog.runtime.figures import Sample
from ringlog.runtime.health import Health, Since

FILES = {"rows": f"{ROWS}*", "registers": f"{CELLS}/*", "log_copy": f"{COPY}*"}
"""What a node has on its disk, by the names of its files in its folder."""


class NodeWatch:
    """One node's. ``copy``: the member's copy of the log, once there is one; ``failure``: why the node cannot go on;
    ``is_stopping``: it was asked to stop.
    """

    def __init__(
        self,
        options: NodeOptions,
        folder: NodeFolder,
        holder: Holder,
        data: DataSide,
        replica: LogReplica,
        tail: MutationsTail,
        verdicts: Counter[str],
        clock: Clock,
        failure: Callable[[], Exception | None],
        is_stopping: Callable[[], bool],
    ) -> None:
        self.labels: Mapping[str, str] = {"node": options.name}
        self.broker_clock = BrokerClock()
        self.copy: MemberCopy | None = None
        self._path = options.folder
        self._folder = folder
        self._holder = holder
        self._data = data
        self._replica = replica
        self._tail = tail
        self._verdicts = verdicts
        self._clock = clock
        self._failure = failure
        self._is_stopping = is_stopping
        self._since = Since(clock.now_us)

    def health(self) -> tuple[Health, Micros]:
        """See ``WatchedProcess``."""
        found = health_of(self._view())
        return found, self._since.of(found.state)

    def samples(self) -> Iterator[Sample]:
        """See ``WatchedProcess``."""
        return samples_of(self._view())

    def _view(self) -> NodeView:
        holder, failure = self._holder, self._failure()
        state, positions = holder.state, dict(holder.positions)
        return NodeView(
            holder.node,
            seen_log(self._replica),
            state,
            self._clock.now_us(),
            holder.caught_up,
            self._is_stopping(),
            "" if failure is None else str(failure),
            self._data.status() if self._data.is_served else None,
            self._folder.acknowledged,
            self._copied(state),
            len(holder.store),
            holder.streams,
            self._tail.behind(positions),
            self.broker_clock.ahead,
            self._data.tries.told(),
            dict(self._verdicts),
            {of: _size(self._path, pattern) for of, pattern in FILES.items()},
            self._data.asking.known,
        )

    def _copied(self, state: ClusterState) -> Epoch | None:
        is_member = self._holder.node in state.service
        return self.copy.acknowledgeable(state) if self.copy is not None and is_member else None


def _size(folder: Path, pattern: str) -> int:
    total = 0
    for path in folder.glob(pattern):
        with suppress(OSError):  # a file that was replaced since it was listed
            total += path.stat().st_size
    return total

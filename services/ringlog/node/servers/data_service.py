"""The register side of a node's process: disk, server, streams, and the thread that adopts epochs.

The thread runs concurrently with the node's main loop. Registers follow the log independently of rows, and the node
acknowledges an epoch that both have adopted. While epochs change nothing, the thread pauses
(``ringlog.log.replicas.poll_policy``). It resumes when an epoch changes something, or when a request names an epoch
that is not adopted yet.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from ringlog.client.data.peers import Peers, StatusPages
from ringlog.client.participant.stream_attempts import StreamAttempts
from ringlog.kernel.model.outcome import Entry, Outcome, UnreadableEntry
from ringlog.kernel.model.state import ClusterState, changes_nothing
from ringlog.kernel.values import Epoch, Micros, OperationId
from ringlog.log.errors import LogError, WaitTimedOut
from ringlog.log.replicas.identity import KnownEpoch
from ringlog.log.replicas.poll_policy import PollBudget
from ringlog.log.replicas.recent import RecentEntries
from ringlog.log.replicas.replica import LogReplica
from ringlog.node.hosts.register_host import RegisterHost
from ringlog.node.identity import NodeFolder, NodeOptions
from ringlog.node.log.entries import EntryServer, LogOnDisk
from ringlog.node.log.peer_requests import PeerRequests
from ringlog.node.protocol.stream import RowStreamProgress
from ringlog.node.registers.cells import CellMap
from ringlog.node.registers.frames import JournalDamaged
from ringlog.node.rows.replica import RowFetch, RowReplica
from ringlog.node.servers.data_server import DataServer
from ringlog.node.streams.pull import Puller
from ringlog.node.streams.row_stream import RowPull
from ringlog.protocol.nodes.errors import NodeFailed
from ringlog.runtime.clock import Clock
from ringlog.runtime.logs import get_logger
from ringlog.runtime.process import reduce_gc
from ringlog.wire.data import StatusReply

log = get_logger("ringlog.node")

CELLS = "cells"
POLL_INTERVAL_S = 0.5
ADOPT_PAUSE: Final[Micros] = 200_000
"""The pause, in microseconds, between epochs that change nothing: adopting one costs a disk sync."""
RESTORE = "restore the folder, or replace this node by a new one"


class DataService:
    """The registers of one node, and the server for registers and rows.

    Args:
        replica: The node's replica of the log.
        copy: Returns the copy of the log that serves peers, or None.
        stopping: Ends all streams when the node stops.

    Attributes:
        port: The port of the server: the previous one if it is free.
        tries: Failed attempts of streams.
        asking: Requests to peers for log entries.

    Raises:
        NodeFailed: The disk lacks data that the node has acknowledged.
    """

    def __init__(
        self,
        folder: NodeFolder,
        options: NodeOptions,
        row_replica: RowReplica,
        clock: Clock,
        replica: LogReplica,
        copy: Callable[[], LogOnDisk | None],
        stopping: threading.Event,
    ) -> None:
        self._replica = replica
        replica.recent = RecentEntries()
        self._state = ClusterState()
        self._row_replica = row_replica
        cells = self._cells = options.folder / CELLS
        try:
            self._host = RegisterHost(folder.node, cells, served=row_replica.served)
        except (JournalDamaged, OSError) as damaged:
            raise NodeFailed(f"{cells}: {damaged}: {RESTORE}") from damaged
        epoch = self._host.value.durable.epoch
        # Registers adopt an epoch on disk before the node acknowledges it, so a lower epoch means that the folder was
        # replaced.
        if epoch < folder.acknowledged:
            self._host.close()
            raise NodeFailed(f"this node acknowledged epoch {folder.acknowledged}, {cells} ends at {epoch}: {RESTORE}")
        self._stopping = threading.Event()
        self._goes_on = threading.Event()
        self._peers = Peers(StatusPages(lambda: self._state))
        self.asking = PeerRequests(folder.node, replica, self._peers, self._stopping)
        entries = EntryServer(folder.node, lambda: replica.state, lambda: replica.recent, copy)
        self._server = DataServer(
            self._host,
            row_replica,
            lambda: self._state.cluster_id,
            options.host,
            options.data_port or folder.data_port,
            entries=entries.answer,
            named=self.asking.named.report_epoch,
            urgent=self._poll_urgently,
        )
        self.port = self._server.port
        folder.store_data_port(self.port)
        self.tries = StreamAttempts()
        self._puller = Puller(self._host, self._peers, self.tries, clock, stopping)
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    def seen(self) -> tuple[KnownEpoch, ...]:
        """Return the last epoch of the registers, which the log must have."""
        epoch, state_id = self._host.adopted
        return (KnownEpoch(epoch, state_id, str(self._cells)),) if state_id else ()

    def start(self, wakeup: threading.Event) -> None:
        """Follow the log and serve requests.

        Args:
            wakeup: Set when there may be more to acknowledge.
        """
        reduce_gc()
        self._thread = threading.Thread(target=self._follow, args=(wakeup,), name="registers", daemon=True)
        self._thread.start()
        self._server.start()

    def stop(self) -> None:
        """Stop serving. Admitted writes are still written."""
        self._stopping.set()
        self._goes_on.set()
        self._server.stop()
        if self._thread is not None:
            self._thread.join()
        self._puller.stop()
        self._host.close()

    @property
    def is_served(self) -> bool:
        """True once registers are served."""
        return self._thread is not None

    def check(self) -> None:
        """Raise NodeFailed if the registers cannot continue."""
        self._host.check()
        if self._failure is not None:
            raise NodeFailed(f"registers: {type(self._failure).__name__}: {self._failure}")

    def acknowledgeable(self) -> Epoch:
        """Return the newest epoch that the registers allow the node to acknowledge."""
        return self._host.acknowledgeable()

    def received(self, operation: OperationId) -> bool:
        """Return True if the node has received all registers that the operation streams to it."""
        return self._host.received(operation)

    def status(self) -> StatusReply:
        """Return the state of the registers."""
        return self._host.status()

    @property
    def cells(self) -> CellMap:
        """The registers that the node stores."""
        return self._host.value.durable.cells

    def pull_rows(self, fetch: RowFetch) -> None:
        """Fetch a stream of rows in the calling thread, until it is complete or no longer wanted."""
        row_replica, state = self._row_replica, self._row_replica.state
        pull = RowPull(self._peers, self._host.node, state, RowStreamProgress(row_replica, fetch))
        source = state.nodes[fetch.source].name
        self._puller.run_stream(fetch, pull, lambda: row_replica.wants(fetch), lambda: row_replica.state, source)

    @contextlib.contextmanager
    def _poll_urgently(self) -> Iterator[None]:
        """A context for requests that wait for an epoch: no pauses inside it."""
        with self._replica.poll_policy.urgent():
            self._goes_on.set()
            yield

    def _folded(
        self, before: ClusterState, after: ClusterState, _item: Entry | UnreadableEntry, _outcome: Outcome, _offset: int
    ) -> None:
        if not changes_nothing(before, after):
            self._goes_on.set()

    def _follow(self, wakeup: threading.Event) -> None:
        poll_pauses = PollBudget(pause=ADOPT_PAUSE)
        subscription = self._replica.subscribe(self._folded, self._replica.halt_on_defect)
        try:
            while not self._stopping.is_set():
                # Clear before reading the state: an epoch that is folded afterwards sets it again.
                self._goes_on.clear()
                with contextlib.suppress(WaitTimedOut):
                    self._state = self._replica.wait_for(self._newer, POLL_INTERVAL_S, "a newer epoch")
                self._host.adopt(self._state)
                wakeup.set()
                self._puller.start()
                self._rest(poll_pauses)
        except (LogError, NodeFailed) as failure:
            self._failure = failure
        except Exception as failure:
            log.exception("broken", work="registers")
            self._failure = failure
        finally:
            subscription.close()

    def _rest(self, poll_pauses: PollBudget) -> None:
        """Pause after an epoch was adopted or none arrived.

        The pause ends at once if a relevant epoch has arrived since, because ``_goes_on`` is set then.
        """
        policy = self._replica.poll_policy
        pause = poll_pauses.pause_after(time.monotonic_ns() // 1_000) if policy.is_relaxed else 0
        if pause and not policy.is_urgent and not self._stopping.is_set():
            self._goes_on.wait(pause / 1e6)

    def _newer(self, state: ClusterState) -> ClusterState | None:
        return state if state.epoch > self._state.epoch else None

"""Observers read the status of nodes and cache ten times a second during a fault and record contradictions.

``checks`` compares the cache contents with the log afterwards. A decrease of a position is recorded immediately.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping

import httpx

from ringlog.cache.port import CacheUnavailable
from ringlog.cache.projection import Fields
from ringlog.cache.redis_cache import RedisCache
from ringlog.kernel.model.outcome import Entry, Outcome, UnreadableEntry
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Value
from ringlog.log.replicas.replica import LogReplica

LOOK_S = 0.1
PATIENCE_S = 1.0


class NodeStatus(Value):
    """The newest status of a node's process. ``positions``: partition to the offset of its reader."""

    pid: int
    epoch: int
    ready: bool
    rows: int
    positions: Mapping[int, int]

    def is_through(self, epoch: int, ends: Mapping[int, int]) -> bool:
        """Return True if the node has applied ``epoch`` and read each partition to its end."""
        return self.ready and self.epoch >= epoch and all(self.positions.get(p, 0) >= end for p, end in ends.items())


class CacheSeen(Value):
    """The state in the cache at one moment."""

    epoch: int
    state_id: str
    digest: str


class Observers:
    """``contradictions``: violations. ``addresses`` returns the running nodes: name to (process id, address)."""

    def __init__(
        self, replica: LogReplica, redis_url: str, cluster: str, addresses: Callable[[], Mapping[str, tuple[int, str]]]
    ) -> None:
        self._addresses = addresses
        self._cache = RedisCache(redis_url, cluster, timeout_s=PATIENCE_S)
        self._ending = threading.Event()
        self._folded = replica.state.epoch
        self._ready: dict[tuple[str, int], int] = {}
        self._highest: dict[str, int] = {}
        self._forgiven = False
        self.contradictions: list[str] = []
        self.statuses: dict[str, NodeStatus] = {}
        self._cache_lock = threading.Lock()
        self._cache_look = threading.Lock()
        self._cache_seen: set[CacheSeen] = set()
        self._cache_parts: dict[str, Fields] = {}
        self.cache_epoch = 0
        self.cache_problem = ""
        self.looks = 0
        # A client reads the certificates of the world when it is created, at a hundred times the cost of a status
        # request.
        self._http = httpx.Client(timeout=PATIENCE_S, limits=httpx.Limits(max_keepalive_connections=0))
        self._subscription = replica.subscribe(self._follow, replica.halt_on_defect)
        self._threads = [
            threading.Thread(target=self._watch, args=(look,), name=look.__name__, daemon=True)
            for look in (self._look_at_nodes, self._look_at_cache)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join(10)
        self._http.close()
        self._subscription.close()
        self._cache.close()

    def clear_cache(self, clear: Callable[[], None]) -> None:
        """Empty the cache while no observer reads, because its next content may be older once."""
        with self._cache_look:
            clear()
            self._forgiven = True

    def take_contradictions(self) -> list[str]:
        """Return the contradictions since the last call."""
        found, self.contradictions = self.contradictions, []
        return found

    def take_cache_seen(self) -> set[CacheSeen]:
        """Return all cache contents since the last call."""
        with self._cache_lock:
            seen, self._cache_seen = self._cache_seen, set()
        return seen

    def newest_cache(self) -> tuple[int, Mapping[str, Fields]]:
        """Return the epoch and the content of the last read of the cache."""
        with self._cache_lock:
            return self.cache_epoch, self._cache_parts

    # ------------------------------------------------------------------------------------------- observing

    def _watch(self, look: Callable[[], None]) -> None:
        while not self._ending.wait(LOOK_S):
            look()
            self.looks += 1

    def _follow(
        self,
        _before: ClusterState,
        after: ClusterState,
        _item: Entry | UnreadableEntry,
        _outcome: Outcome,
        _offset: int,
    ) -> None:
        if after.epoch < self._folded or after.epoch > self._folded + 1:
            self.contradictions.append(f"the client's replica went from epoch {self._folded} to {after.epoch}")
        self._folded = after.epoch

    def _look_at_nodes(self) -> None:
        for name, (pid, address) in self._addresses().items():
            with contextlib.suppress(httpx.HTTPError):
                said = self._http.get(f"http://{address}/v1/status").json()
                if self._addresses().get(name) != (pid, address):
                    continue  # a successor of the process may have sent this answer
                positions = {int(p): int(o) for p, o in said["positions"].items()}
                self._note(name, NodeStatus(pid, said["epoch"], said["ready"], said["rows"], positions))

    def _note(self, name: str, status: NodeStatus) -> None:
        last = self.statuses.get(name)
        if last is not None and last.pid == status.pid:
            if status.epoch < last.epoch:
                self.contradictions.append(f"{name} went back from epoch {last.epoch} to {status.epoch}")
            if last.ready and not status.ready:
                self.contradictions.append(f"{name} was ready and is not any more")
        highest = self._highest.get(name, 0)
        if status.ready:
            if status.epoch < highest:
                self.contradictions.append(f"{name} serves epoch {status.epoch}, it has served {highest}")
            self._highest[name] = max(highest, status.epoch)
        self.statuses[name] = status

    def _look_at_cache(self) -> None:
        with self._cache_look:
            self._see_cache()

    def _see_cache(self) -> None:
        try:
            stored = self._cache.read()
        except CacheUnavailable as error:
            self.cache_problem = str(error)
            return
        if stored is None:
            self.cache_problem = "empty"
            if self.cache_epoch and not self._forgiven:
                self.contradictions.append(f"the cache was at epoch {self.cache_epoch} and is empty, nobody cleared it")
            return
        epoch = stored.stamp.epoch
        if epoch < self.cache_epoch and not self._forgiven:
            self.contradictions.append(f"the cache went back from epoch {self.cache_epoch} to {epoch}")
        if epoch >= self.cache_epoch:
            self._forgiven = False
        with self._cache_lock:
            self._cache_seen.add(CacheSeen(epoch, stored.stamp.state_id, stored.confirmation.digest))
            self._cache_parts, self.cache_epoch, self.cache_problem = stored.parts, epoch, ""

"""The cache writer's thread: performs the effects of ``protocol.followers.cache_writer`` on the log and Redis."""

from __future__ import annotations

import time
from typing import Final

from ringlog.agents.maintenance.truncation import LogEnds
from ringlog.agents.roles.epochs import EpochsReader
from ringlog.agents.roles.role import FollowingThread
from ringlog.cache.port import CacheUnavailable, Confirmation, WriteOutcome
from ringlog.cache.projection import FullProjection, Stamp
from ringlog.cache.redis_cache import RedisCache
from ringlog.kernel.encoding.digester import Digester
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch, Micros
from ringlog.log.archive.archive import Archive
from ringlog.log.archive.locations import open_location
from ringlog.log.errors import LogUnavailable, TopicMissing, WaitTimedOut
from ringlog.log.opening import delete_entries, open_snapshots
from ringlog.log.replicas.poll_policy import PollBudget
from ringlog.protocol.effects import Barrier
from ringlog.protocol.followers.cache_writer import ROLE, AwaitNewer, NextOffset, StoredStamp, StoreView, maintain_cache
from ringlog.runtime.logs import get_logger

BEAT_S = 1.0
RETRY_S = 0.5
WRITE_PAUSE: Final[Micros] = 100_000
"""The pause between two writes in a stream of epochs, in microseconds.

Each write contains the digest of the state, and computing it walks the whole history (2 ms). Occasional epochs are
written at once (``ringlog.log.replicas.poll_policy``).
"""

log = get_logger(__name__)


class KeeperThread(FollowingThread):
    """One instance of the cache writer."""

    role = ROLE
    _written: Epoch = 0
    _answered = True

    def log_ends(self) -> LogEnds:
        """Return the archive and the beginning of the log: the role that stores states also maintains these."""
        place = self.settings.bootstrap_servers, self.settings.cluster
        archive = None if self.settings.archive is None else Archive(open_location(self.settings.archive))
        return LogEnds(
            self.log,
            lambda: open_snapshots(*place),
            lambda offset: delete_entries(*place, offset),
            archive,
            self._published,
            self.may_continue,
        )

    def _published(self) -> Epoch:
        epochs = EpochsReader(self.settings, lambda: None)
        try:
            last = epochs.at_end()
            return 0 if last is None else last.epoch
        finally:
            epochs.close()

    def work(self) -> None:
        """Keep the cache at the newest epoch, forever."""
        self._digester, self._writes = Digester(), PollBudget(pause=WRITE_PAUSE)
        self._cache = RedisCache(self.settings.redis_url, self.settings.cluster, self.settings.redis_timeout_s)
        self.driver.handlers |= {
            Barrier: self._barrier,
            NextOffset: lambda _: self.replica.position,
            StoreView: self._store,
            StoredStamp: lambda _: self._stored_stamp(),
            AwaitNewer: self._await_newer,
        }
        try:
            self.driver.run_steps(maintain_cache(self.author.protocol))
        finally:
            self._cache.close()

    def handled_epoch(self) -> Epoch:
        """Return the last epoch in the cache."""
        return self._written

    def _barrier(self, effect: Barrier) -> ClusterState:
        """Retry the read barrier until the log answers. An unavailable broker must not end this role."""
        while True:
            try:
                return self.replica.read_barrier(effect.timeout / 1e6)
            except (LogUnavailable, TopicMissing, WaitTimedOut) as error:
                log.warning("log_unavailable", why=error.message)
            self.wait_for_records(BEAT_S)

    def _store(self, effect: StoreView) -> WriteOutcome | None:
        """Perform one write, and log each change between an available and an unavailable cache once."""
        state = effect.state
        confirmation = Confirmation(self._digester.digest(state), effect.position, effect.confirmed_at)
        try:
            written = self._cache.apply(effect.write, confirmation)
        except CacheUnavailable as error:
            if self._answered:
                log.warning("cache_unavailable", why=str(error))
            self._answered = False
            return None
        if not self._answered:
            log.info("cache_answers_again", epoch=state.epoch)
        self._answered = True
        if written is WriteOutcome.APPLIED:
            if isinstance(effect.write, FullProjection) and effect.write.replaces is not None:
                log.warning("cache_replaced", epoch=state.epoch, stored=effect.write.replaces.epoch)
            self._written = state.epoch
            self.passed(effect.position)
        elif written is WriteOutcome.LATER_STORED:
            log.warning("cache_ahead", epoch=state.epoch)
        elif written is WriteOutcome.FOREIGN:
            ends = "use another Redis, or another database number in the URL, for one of the two clusters"
            self.warnings.warn("cache_of_another_cluster", cluster_id=state.cluster_id, ends=ends)
        else:
            log.info("cache_rewritten", epoch=state.epoch)
        return written

    def _stored_stamp(self) -> Stamp | None:
        try:
            found = self._cache.confirmed()
        except CacheUnavailable:
            return None
        return None if found is None else found[0]

    def _await_newer(self, effect: AwaitNewer) -> None:
        if not effect.answered:
            self.records_after_pause(RETRY_S)
        elif pause := self._writes.pause_after(time.monotonic_ns() // 1_000):
            self.records_after_pause(pause / 1e6)
        else:
            self.wait_for_records(BEAT_S)

"""The cache keeper's thread: performs the effects of ``ringlog.protocol.keeper`` on the log and Redis."""

from __future__ import annotations

import structlog

from ringlog.agents.shells.role import RoleThread
from ringlog.cache.port import CacheUnavailable, Confirmation, Written
from ringlog.cache.redis_cache import RedisCache
from ringlog.kernel.digester import Digester
from ringlog.kernel.state import ClusterState
from ringlog.kernel.values import Epoch
from ringlog.log.errors import LogUnavailable, TopicMissing, WaitTimedOut
from ringlog.protocol.effects import Barrier
from ringlog.protocol.keeper import ROLE, Position, Rest, Store, keep

BEAT_S = 1.0
RETRY_S = 0.5

log = structlog.get_logger(__name__)


class KeeperThread(RoleThread):
    """One instance of the cache keeper."""

    role = ROLE
    _written: Epoch = 0
    _answered = True

    def work(self) -> None:
        """Keep the cache at the newest epoch, for ever."""
        self._digester = Digester()
        self._cache = RedisCache(self.settings.redis_url, self.settings.cluster, self.settings.redis_timeout_s)
        self.driver.handlers |= {
            Barrier: self._barrier,
            Position: lambda _: self.replica.position,
            Store: self._store,
            Rest: self._rest,
        }
        try:
            self.driver.carry_out(keep(self.author.protocol))
        finally:
            self._cache.close()

    def handled_epoch(self) -> Epoch:
        """The last epoch that is in the cache."""
        return self._written

    def _barrier(self, effect: Barrier) -> ClusterState:
        """Asks until it is answered."""
        while True:
            try:
                return self.replica.read_barrier(effect.patience / 1e6)
            except (LogUnavailable, TopicMissing, WaitTimedOut) as error:
                log.warning("log_unavailable", why=error.message)
            self._acknowledge_after(BEAT_S)

    def _store(self, effect: Store) -> Written | None:
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
        if written is Written.APPLIED:
            self._written = state.epoch
        elif written is Written.LATER_STORED:
            log.warning("cache_ahead", epoch=state.epoch)
        else:
            log.info("cache_rewritten", epoch=state.epoch)
        return written

    def _rest(self, effect: Rest) -> None:
        if effect.answered:
            self._acknowledge_after(BEAT_S)
            return
        for offset, _ in self.rest(RETRY_S)[-1:]:
            self.acknowledge(offset)

    def _acknowledge_after(self, wait_s: float) -> None:
        for offset, _ in self.news(wait_s)[-1:]:
            self.acknowledge(offset)

"""The cache keeper at work: behind a read barrier, write what changed; once a second at least, confirm that nothing
did.

A cache that does not answer stops only this agent: it waits and tries again. A cache that lost its content (FLUSHALL, a
restart) gets all of it at the next beat.
"""

from __future__ import annotations

import structlog

from ringlog.agents.keeper_core import ROLE, Keeper, learn, next_write
from ringlog.agents.shells.role import RoleThread
from ringlog.cache.port import CacheUnavailable, Confirmation, Written
from ringlog.cache.redis_cache import RedisCache
from ringlog.kernel.digester import Digester
from ringlog.kernel.values import Epoch
from ringlog.log.errors import LogUnavailable, TopicMissing, WaitTimedOut

BEAT_S = 1.0
RETRY_S = 0.5

log = structlog.get_logger(__name__)


class KeeperThread(RoleThread):
    """One instance of the cache keeper."""

    role = ROLE
    _written: Epoch = 0

    def work(self) -> None:
        """Keep the cache at the newest epoch, for ever."""
        self._digester = Digester()
        cache = RedisCache(self.settings.redis_url, self.settings.cluster, self.settings.redis_timeout_s)
        keeper, available = Keeper(), True
        self.accepting()
        try:
            while True:
                try:
                    keeper = self._write(cache, keeper)
                    if not available:
                        log.info("cache_answers_again", epoch=self._written)
                    available = True
                except CacheUnavailable as error:
                    if available:
                        log.warning("cache_unavailable", why=str(error))
                    keeper, available = Keeper(), False
                except (LogUnavailable, TopicMissing, WaitTimedOut) as error:
                    log.warning("log_unavailable", why=error.message)
                wait = BEAT_S if available else RETRY_S
                for offset, _ in (self.news(wait) if available else self.rest(wait))[-1:]:
                    self.acknowledge(offset)
        finally:
            cache.close()

    def handled_epoch(self) -> Epoch:
        """The last epoch that is in the cache."""
        return self._written

    def _write(self, cache: RedisCache, keeper: Keeper) -> Keeper:
        confirmed_at = self.clock.now_us()
        self.replica.read_barrier()
        # In this order: the state contains everything before the position.
        position, state = self.replica.position, self.replica.state
        confirmation = Confirmation(self._digester.digest(state), position, confirmed_at)
        written = cache.apply(next_write(keeper, state), confirmation)
        if written is Written.BASE_MISSING:
            log.info("cache_rewritten", epoch=state.epoch)
            written = cache.apply(next_write(Keeper(), state), confirmation)
        if written is Written.LATER_STORED:
            log.warning("cache_ahead", epoch=state.epoch)
        else:
            self._written = state.epoch
        return learn(state, written)

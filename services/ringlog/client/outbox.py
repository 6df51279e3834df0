"""Batching of requests to the validator: a set of rules without threads that decides when waiting requests are sent.

Each record of the requests topic, and each batch of entries that results from it, costs broker, validator and client
about as much as ten requests. So requests share a record if that does not delay a caller:

- Requests are sent at once if the number of waiting requests is at least the number *under way* (sent, without an
  answer). So a single request never waits, and neither does a second one. Under load, requests form two groups that
  alternate. The validator decides one group while the client reads the answers of the other and creates the next
  requests.

- ``GROUP`` waiting requests are always sent. A caller that submits hundreds of requests has the first ones decided
  while it still creates the last ones. While such a caller is active, smaller groups wait. After its last request all
  waiting requests are sent. They would otherwise wait for the answers to almost all others.

- Requests that have waited for ``HOLD`` are sent at the next check of the listener. This covers an absent validator and
  lost requests. The listener checks ten times a second. It checks less often only while a read barrier waits up to 5 s
  for the broker to report the end of the log.

Not thread-safe; the owner holds a lock.
"""

from __future__ import annotations

from ringlog.kernel.values import Micros
from ringlog.protocol.submission.submission import Send

GROUP = 64
HOLD: Micros = 100_000


class Outbox:
    """Waiting requests in order, without duplicates, and the ids of requests under way."""

    def __init__(self) -> None:
        self._waiting: dict[str, Send] = {}
        self._under_way: set[str] = set()
        self._since: Micros = 0
        self._more_follow = 0
        self._is_whole = False

    def put(self, send: Send, now: Micros) -> None:
        """Add a request, or replace it if it is sent again."""
        if not self._waiting:
            self._since, self._is_whole = now, False
        self._waiting[send.request.key.request_id] = send

    def ended(self, request_id: str) -> None:
        """Remove a request that was answered or given up."""
        self._under_way.discard(request_id)
        self._waiting.pop(request_id, None)

    def more_follow(self) -> None:
        """Announce a caller that is about to add several requests."""
        self._more_follow += 1

    def no_more(self) -> None:
        """End one announcement of ``more_follow``. If no other is active, all waiting requests are ready."""
        self._more_follow -= 1
        self._is_whole = not self._more_follow

    def is_ready(self) -> bool:
        """Return whether the waiting requests may be sent now."""
        if not self._waiting:
            return False
        enough = GROUP if self._more_follow else min(len(self._under_way), GROUP)
        return self._is_whole or len(self._waiting) >= enough

    def is_overdue(self, now: Micros) -> bool:
        """Return whether the oldest waiting request has waited for ``HOLD``."""
        return bool(self._waiting) and now >= self._since + HOLD

    def take(self) -> list[Send]:
        """Remove and return all waiting requests in order; they are now under way."""
        waiting, self._waiting, self._is_whole = list(self._waiting.values()), {}, False
        self._under_way.update(send.request.key.request_id for send in waiting)
        return waiting

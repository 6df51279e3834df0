"""What a client has to send to the validator, and when it goes out: a value's worth of rule, without threads.

Each record of the requests topic, and each batch of entries that it leads to, costs broker, validator and client about
as much as ten requests in it. So requests travel together, as far as nobody waits for that:

- A request goes out at once if at least as many wait as are *under way* (sent, and without an answer). A lone request
  never waits, nor does a second one. Many of them fall into two groups that take turns: while one is decided, the
  answers of the other are read and what follows on them is made.
- ``GROUP`` are enough whatever is under way: who submits hundreds at once has the first ones decided while the last
  ones are still made. Nothing less goes out before that where it is known that more follow at once; and when the last
  one of them is there, the rest goes out: it would wait for answers to nearly all others.
- What has waited for ``HOLD`` goes out when the listener looks next, in any case: the validator may be away, and what
  is under way lost. It looks ten times a second, but for the patience of a read barrier (5 s) while the broker does not
  say where the log ends.

Not safe from threads: its owner has a lock.
"""

from __future__ import annotations

from ringlog.kernel.values import Micros
from ringlog.protocol.submission.submission import Send

GROUP = 64
HOLD: Micros = 100_000


class Outbox:
    """Requests that wait, in order, each once; and the ids of those under way."""

    def __init__(self) -> None:
        self._waiting: dict[str, Send] = {}
        self._under_way: set[str] = set()
        self._since: Micros = 0
        self._more_follow = 0
        self._is_whole = False

    def put(self, send: Send, now: Micros) -> None:
        """A request is to be sent, perhaps again."""
        if not self._waiting:
            self._since, self._is_whole = now, False
        self._waiting[send.question.asked.request_id] = send

    def ended(self, request_id: str) -> None:
        """The request has its answer, or nobody waits for one any more."""
        self._under_way.discard(request_id)
        self._waiting.pop(request_id, None)

    def more_follow(self) -> None:
        """Somebody begins to make several requests."""
        self._more_follow += 1

    def no_more(self) -> None:
        """Those of one who made several are all here: what waits goes out, unless another one goes on."""
        self._more_follow -= 1
        self._is_whole = not self._more_follow

    def is_ready(self) -> bool:
        """May what waits go out now?"""
        if not self._waiting:
            return False
        enough = GROUP if self._more_follow else min(len(self._under_way), GROUP)
        return self._is_whole or len(self._waiting) >= enough

    def is_overdue(self, now: Micros) -> bool:
        """Has something waited for long enough, whatever is under way?"""
        return bool(self._waiting) and now >= self._since + HOLD

    def take(self) -> list[Send]:
        """All that waits, in order; it is under way from now on."""
        waiting, self._waiting, self._is_whole = list(self._waiting.values()), {}, False
        self._under_way.update(send.question.asked.request_id for send in waiting)
        return waiting

"""The memory and the effects of the validator, for ``ringlog.protocol.validator.core``."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from immutables import Map

from ringlog.kernel.fold import fold
from ringlog.kernel.model.outcome import Folded
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch, Value, field
from ringlog.protocol.effects import Effect
from ringlog.protocol.submission.results import EntryChain
from ringlog.wire.entries import EncodedEntry
from ringlog.wire.records import CommandRequest, Result

ROLE = "validator"
BATCH_ENTRIES_MAX = 500
BATCH_BYTES_MAX = 1_000_000
PART_ENTRIES = 64
"""Entries that are sent before more are decided. Each further part doubles the batch."""
ENTRY_BYTES_MAX = 2_000_000
DETAIL_CHARS_MAX = 900
"""The most characters of a published detail. A rejection may quote its command, which may be long."""

PRUNE_EVERY_EPOCHS = 1_000
"""Answers are pruned when the start of the history has advanced this far, because a pruning walks all of them."""
ANSWERS_MAX = 50_000
"""The most remembered rejections: about 25 MB, and 8 MB of the results topic, which the next instance reads first."""

FORGOTTEN = "answer_forgotten"
FLOOR_MARK = "00000000-0000-0000-0000-000000000000"
"""The request id of the mark that answers are forgotten. Its code is ``FORGOTTEN``, its ``since_epoch`` the floor."""


class WaitingRequest(Value):
    """A request without an answer. ``offset``: of its record in the requests topic. ``digest``: of its command."""

    offset: int
    request: CommandRequest
    digest: str


class PendingAnswer(Value):
    """An answer that may be sent when the first ``after`` entries of the batch are applied."""

    item: WaitingRequest
    result: Result
    after: int


class Batch(Value):
    """A batch in progress: its chained entries, and all of its answers.

    ``state``: the state after its entries. ``is_fresh``: see ``begin_batch``. ``forgets``: its last entry raises the
    floor. ``refuses``: it has an answer other than *applied*. ``before``: the number of entries that were sent before
    the waiting requests arrived.
    """

    chain: EntryChain
    answers: tuple[PendingAnswer, ...]
    state: ClusterState
    is_fresh: bool
    forgets: bool = False
    refuses: bool = False
    before: int = 0


class DecideAfterBarrier(Value):
    """Decide again on a state from a read barrier that begins now. Nothing was decided yet."""


class SendEntries(Value):
    """Send these entries, the newest of the batch, once. Then ``extend_batch`` it, because more requests wait."""

    entries: tuple[EncodedEntry, ...]


class CommitChain(Value):
    """Send the chain until the outcome of each entry is final. Then ``settle_batch``.

    ``already_sent``: the number of its first entries that were sent already. ``accepts_more``: requests that arrive
    meanwhile may join it (``join_batch``).
    """

    chain: EntryChain
    already_sent: int = 0
    accepts_more: bool = False


class Publish(Effect[None], Value):
    """Write these results in one transaction, under the role's transactional id."""

    results: tuple[Result, ...]


class NoteApplied(Effect[None], Value):
    """Note that these requests are applied. Nothing is written: their clients learn it from the log.

    A request with ``answer_applied`` is in ``Publish`` instead.
    """

    results: tuple[Result, ...]


class Ack(Effect[None], Value):
    """Acknowledge all requests up to this offset, inclusive."""

    offset: int


class StopInstance(Effect[NoReturn], Value):
    """End this instance: another one has taken over."""

    detail: str


ValidatorEffect = DecideAfterBarrier | SendEntries | CommitChain | Publish | NoteApplied | Ack | StopInstance


class Validator(Value):
    """The memory of an instance.

    ``answers``: rejections by request id. ``arrived``: the greatest offset seen. ``acked``: the greatest acknowledged
    offset. ``pruned``: the start of the history at the last pruning. ``floor``: rejections of requests from before this
    epoch are forgotten.
    """

    instance: str
    term: int
    answers: Map[str, Result] = field(default_factory=Map)
    waiting: tuple[WaitingRequest, ...] = ()
    batch: Batch | None = None
    arrived: int = -1
    acked: int = -1
    pruned: int = 0
    floor: Epoch = 0
    answers_max: int = ANSWERS_MAX


class NextStep(Value):
    """The next memory, and the effects to perform in this order."""

    validator: Validator
    effects: tuple[ValidatorEffect, ...] = ()


Arrived = tuple[int, tuple[CommandRequest, ...]]
"""A record of the requests topic: its offset and its requests. An unreadable record has no requests."""


def folded(state: ClusterState, encoded: EncodedEntry) -> Folded:
    """Return the outcome of an entry on a state."""
    return fold(state, encoded.entry)


Folding = Callable[[ClusterState, EncodedEntry], Folded]

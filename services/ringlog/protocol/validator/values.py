"""What the validator remembers, and what it wants done: values, for ``ringlog.protocol.validator.core``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from immutables import Map

from ringlog.kernel.fold import fold
from ringlog.kernel.model.outcome import Folded
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Epoch
from ringlog.protocol.submission.results import EntryChain
from ringlog.wire.entries import EncodedEntry
from ringlog.wire.records import CommandRequest, Result

ROLE = "validator"
BATCH_ENTRIES_MAX = 500
BATCH_BYTES_MAX = 1_000_000
PART_ENTRIES = 64
"""Entries that are handed over before more are decided; the next part has as many as all before it."""
ENTRY_BYTES_MAX = 2_000_000
DETAIL_CHARS_MAX = 900
"""A rejection may quote what it refuses, at any length: what is published of it always fits into a record."""

PRUNE_EVERY_EPOCHS = 1_000
ANSWERS_MAX = 50_000
"""Rejections that are remembered: some 25 MB, and 8 MB of the results topic, which the next instance reads first."""

FORGOTTEN = "answer_forgotten"
FLOOR_MARK = "00000000-0000-0000-0000-000000000000"
"""The request id of a result that answers nobody: code ``answer_forgotten``, ``since_epoch`` is the floor."""


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A request that came in at ``offset`` of the requests topic; ``digest`` of the command it asks for."""

    offset: int
    request: CommandRequest
    digest: str


@dataclass(frozen=True, slots=True)
class PendingAnswer:
    """An answer that may go out when the first ``after`` entries of the batch are applied."""

    item: WaitingRequest
    result: Result
    after: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Chained entries under way, and every answer of the batch; ``forgets``: its last entry raises the floor.

    ``state``: what the entries make of the state that the batch was begun on; ``is_fresh``: see ``begin``;
    ``refuses``: one of the answers is not *applied*. ``before``: how many entries were sent before the requests
    that wait came in.
    """

    chain: EntryChain
    answers: tuple[PendingAnswer, ...]
    state: ClusterState
    is_fresh: bool
    forgets: bool = False
    refuses: bool = False
    before: int = 0


@dataclass(frozen=True, slots=True)
class Freshen:
    """Decide again on a state from a read barrier that begins now: nothing was decided yet."""


@dataclass(frozen=True, slots=True)
class HandOver:
    """Send these entries, the newest of the batch, once; then ``extend`` it, since more requests wait."""

    entries: tuple[EncodedEntry, ...]


@dataclass(frozen=True, slots=True)
class CommitChain:
    """Send the chain until the fate of each of its entries is final; then ``settle``.

    ``handed``: that many of its first entries were sent already. ``is_open``: what comes in meanwhile may be decided
    on it at once (``take_in``).
    """

    chain: EntryChain
    handed: int = 0
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class Publish:
    """Write these results in one transaction, under the role's transactional id."""

    results: tuple[Result, ...]


@dataclass(frozen=True, slots=True)
class Shown:
    """These requests are applied. Nothing is to be written: the log shows it to their clients."""

    results: tuple[Result, ...]


@dataclass(frozen=True, slots=True)
class Ack:
    """Acknowledge every request up to and including this offset."""

    offset: int


@dataclass(frozen=True, slots=True)
class StopInstance:
    """This instance has been taken over and does nothing any more."""

    detail: str


Effect = Freshen | HandOver | CommitChain | Publish | Shown | Ack | StopInstance


@dataclass(frozen=True, slots=True)
class Validator:
    """All that an instance remembers. ``arrived``: greatest offset seen; ``answers``: rejections by request id.

    ``floor``: of requests made before this epoch no rejection is remembered.
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


@dataclass(frozen=True, slots=True)
class NextStep:
    """The next memory and what to do, in this order."""

    validator: Validator
    effects: tuple[Effect, ...] = ()


Arrived = tuple[int, tuple[CommandRequest, ...]]
"""A record of the requests topic: its offset and the requests in it, in order; none if its bytes are no request."""


def folded(state: ClusterState, encoded: EncodedEntry) -> Folded:
    """What an entry makes of a state."""
    return fold(state, encoded.entry)


Folding = Callable[[ClusterState, EncodedEntry], Folded]

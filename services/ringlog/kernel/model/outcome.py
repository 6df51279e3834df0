"""Results of decisions and of the fold: values, never exceptions."""

from __future__ import annotations

from enum import Enum

from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Command, Epoch, Micros, Value


class EntryContext(Value):
    """The entry's data for a decision: the epoch and the state id that it would make, and the state time then.

    ``submitter``: the author of the entry. ``part``: the number of the command in the plan that the entry applies.
    """

    epoch: Epoch
    state_id: str
    time: Micros
    submitter: str = ""
    part: int = 0


class Accepted(Value):
    """The command applies.

    ``state`` does not have the entry's epoch, state id, time and history yet. The fold adds them.
    """

    state: ClusterState


class Rejected(Value):
    """The command does not apply.

    ``code``: a stable code of ``ringlog.kernel.registry``. ``detail``: a sentence that names field and rule.
    """

    code: str
    detail: str


Decision = Accepted | Rejected


class Undecodable(Value):
    """The payload of a known (kind, version) could not be read."""

    detail: str


class UnknownCommand(Value):
    """A kind or version that this release does not know."""

    kind: str
    version: int


class Entry(Value):
    """One envelope of the log. ``digest``: hex SHA-256 of kind, version and payload (see ``ringlog.wire``).

    ``data``: the bytes of its record, which the chain of the log covers.
    """

    cluster_id: str
    state_id: str
    prev_state_id: str | None
    request_id: str
    since_epoch: Epoch
    submitter: str
    at: Micros
    kind: str
    version: int
    digest: str
    command: Command | Undecodable | UnknownCommand
    data: bytes = b""


class UnreadableEntry(Value):
    """Bytes in the log that are not an envelope."""

    detail: str


class OutcomeKind(Enum):
    """The outcome of one record of the log; exactly one of these."""

    __hash__ = object.__hash__  # records are counted by kind: Enum's own hash would dominate that cost

    UNREADABLE = "unreadable"
    FOREIGN = "foreign"
    DUPLICATE = "duplicate"
    EXPIRED = "expired"
    STALE = "stale"
    HALT = "halt"
    REFUSED = "refused"
    APPLIED = "applied"


class Outcome(Value):
    """The verdict on one record.

    ``epoch``: the state's epoch afterwards. ``code`` and ``detail``: why the record was not applied.
    """

    kind: OutcomeKind
    epoch: Epoch
    code: str = ""
    detail: str = ""


class Folded(Value):
    """State and verdict after one record."""

    state: ClusterState
    outcome: Outcome

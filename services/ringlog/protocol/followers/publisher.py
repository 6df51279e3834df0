"""The publisher at work: each epoch's difference goes out in one transaction over all change topics, with those that
were folded meanwhile.

A transaction costs the broker more than a commit does. A publisher that is behind catches up by whole epochs, up to
``TOGETHER`` records: a reader of committed records sees each of them as if it had come alone, and never a part of one.

After its take-over it initialises the role's transactional id, reads from ``epochs`` how far the topics go, and follows
the log up to there without writing. If the log does not contain what was published it ends: nothing it could write
would mend that. What the change topics lack of that epoch's state is written before anything new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ringlog.kernel.changes import EPOCHS, PUBLICATIONS, ChangeRecord, EpochChange, diff
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState
from ringlog.kernel.values import Epoch
from ringlog.protocol.effects import Barrier, FaultPoint, Steps
from ringlog.protocol.role import Accept, CheckSuperseded, take_id
from ringlog.protocol.submission.direct import Direct
from ringlog.wire.changes import content_of, encode_change

ROLE = "publisher"
TOGETHER = 1_000
"""Change records in one transaction, if they are of several epochs."""
COMPARED_MAX = 200_000
"""Values whose content is compared at a take-over: a few seconds."""


@dataclass(frozen=True, slots=True)
class LastPublished:
    """Outcome: the newest committed record of ``epochs``, None if there is none."""


@dataclass(frozen=True, slots=True)
class Diverge:
    """End for good: what was published cannot come from this log. The driver raises."""

    why: str


@dataclass(frozen=True, slots=True)
class Follow:
    """Begin to follow the log, at the latest from the state that was published ``last``; outcome: the state before."""

    last: EpochChange | None


@dataclass(frozen=True, slots=True)
class NextStates:
    """Outcome: (state before, state after) of each record since the last time; waits a while for one. None may come."""


@dataclass(frozen=True, slots=True)
class Restore:
    """Make the change topics those of ``state``, which was published last (``restoring``)."""

    state: ClusterState


@dataclass(frozen=True, slots=True)
class Announce:
    """Write the differences of one or more epochs, the last of which is ``epoch``, in one transaction under the role's
    id. ``changes``: as ``difference`` gave them.
    """

    changes: Sequence[Any]
    epoch: Epoch


Difference = Callable[[ClusterState, ClusterState], Sequence[Any]]


def publish(direct: Direct, difference: Difference = diff) -> Steps[None]:
    """Serve one term of the publisher; ends by what the driver raises. ``difference``: ``diff``, or the
    same in the form in which the driver writes it.
    """
    yield from take_id()
    last: EpochChange | None = yield LastPublished()
    why = ahead(last, (yield Barrier(direct.timeout)))
    if why is not None:
        yield Diverge(why)
    yield CheckSuperseded()
    start: ClusterState = yield Follow(last)
    is_resumed = last is None
    if last is None:
        yield Accept()
    else:
        is_resumed = yield from _resume(last, start)
    while True:
        states: Iterable[tuple[ClusterState, ClusterState]] = yield NextStates()
        waiting: list[Any] = []
        for before, after in states:
            yield CheckSuperseded()
            if not is_resumed:
                is_resumed = yield from _resume(last, after)
            elif after is not before:
                changes = difference(before, after)
                if waiting and len(waiting) + len(changes) > TOGETHER:
                    yield from _announce(waiting, before.epoch)
                    waiting = []
                waiting += changes
                newest = after.epoch
        if waiting:
            yield from _announce(waiting, newest)


def _announce(changes: Sequence[Any], epoch: Epoch) -> Steps[None]:
    yield FaultPoint("announcing")
    yield Announce(changes, epoch)


def _resume(last: EpochChange | None, state: ClusterState) -> Steps[bool]:
    """True if ``state`` is the one that was published last: from there on everything goes out."""
    try:
        if not starts_from(last, state):
            return False
    except ValueError as error:
        yield Diverge(str(error))
    yield Restore(state)
    yield Accept()
    return True


@dataclass(frozen=True, slots=True)
class Restoration:
    """``records`` make the change topics those of a state. ``other``: how many of them are written since what was there
    said something else; ``unseen``: how many values, beyond ``COMPARED_MAX``, were compared by their form alone.
    """

    records: tuple[ChangeRecord, ...]
    other: int
    unseen: int


def restoring(
    state: ClusterState, held: Callable[[str], Mapping[str, bytes]], compared_max: int = COMPARED_MAX
) -> Restoration:
    """What the change topics need to be those of ``state``. ``held``: key to the content of its value
    (``wire.changes.content_of``), of a topic by its suffix.

    Records are written for keys that a topic lacks, and for keys with another value. Another process may have written
    that value, the topic may be an older copy, or the value lacks a field of the present schema. Keys that the state
    lacks get a tombstone. Keys that this release does not publish stay, and so does ``epochs``, which says which state
    it is.
    """
    wanted = {(record.topic, record.key): record for record in diff(EMPTY_STATE, state) if record.topic != EPOCHS}
    prefixes: dict[str, list[str]] = {}
    for publication in PUBLICATIONS:
        prefixes.setdefault(publication.topic, []).append(publication.part.prefix)
    found = {topic: held(topic) for topic in prefixes}
    gone = [
        ChangeRecord(topic, key, None)
        for topic, keys in found.items()
        for key in sorted(keys)
        if (topic, key) not in wanted and key.startswith(tuple(prefixes[topic]))
    ]
    written, other, seen, unseen = [], 0, 0, 0
    for (topic, key), record in wanted.items():
        there = found[topic].get(key)
        if there and seen == compared_max:
            unseen += 1
            continue
        if there:
            seen += 1
            assert record.value is not None, "nothing is gone from an empty state"
            if there == content_of(encode_change(record.value)):
                continue
            other += 1
        written.append(record)
    return Restoration((*gone, *written), other, unseen)


def ahead(published: EpochChange | None, state: ClusterState) -> str | None:
    """Why ``published`` cannot come from the log whose newest state is ``state``; None if nothing speaks against it."""
    if published is None:
        return None
    if published.cluster_id != state.cluster_id:
        return f"the change topics are of cluster {published.cluster_id}, the log is of {state.cluster_id}"
    if published.epoch > state.epoch:
        return f"the change topics are at epoch {published.epoch}, the log ends at {state.epoch}"
    return None


def starts_from(published: EpochChange | None, state: ClusterState) -> bool:
    """True if the next difference is taken from ``state``.

    Raises ValueError if ``state`` has the epoch that was published last, and is another state.
    """
    if published is None:
        return state.epoch == 0
    if state.epoch != published.epoch:
        return False
    if state.state_id != published.state_id:
        raise ValueError(
            f"epoch {state.epoch} was published as state {published.state_id}, the log has {state.state_id}"
        )
    return True

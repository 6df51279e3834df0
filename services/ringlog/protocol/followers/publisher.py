"""The change publisher's protocol: write the difference of each epoch to the change topics, in whole epochs.

A transaction costs the broker more than a commit of the log. So a publisher that is behind combines epochs, up to
``TOGETHER`` records. Read-committed consumers see each epoch as a whole, as if it had been published alone.

After its take-over an instance does this, in order:

1. It initialises the role's transactional id, which fences the previous holder.
2. It reads the last published epoch from ``epochs``.
3. It follows the log up to there without writing. If the log does not contain the published state, the instance ends,
   because no write could repair that.
4. It restores the records of that state that the change topics lack.
5. It publishes newer epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from ringlog.kernel.changes import PUBLICATIONS, ChangeRecord, EpochChange, diff
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState
from ringlog.kernel.sections import EPOCHS
from ringlog.kernel.values import Epoch, Value
from ringlog.protocol.effects import Barrier, Effect, FaultPoint
from ringlog.protocol.role import CheckSuperseded, StartServing, take_id
from ringlog.protocol.submission.direct import Direct
from ringlog.wire.changes import content_digest, encode_change

ROLE = "publisher"
TOGETHER = 1_000
"""The most change records in one transaction of several epochs."""
COMPARED_MAX = 200_000
"""The most values whose content is compared at a take-over, which takes a few seconds."""


class LastPublished(Effect[EpochChange | None], Value):
    """Outcome: the newest committed record of ``epochs``, or None."""


class HaltDiverged(Effect[NoReturn], Value):
    """End permanently: the published changes cannot come from this log. The driver raises."""

    why: str


class StartFollowing(Effect[ClusterState], Value):
    """Start to follow the log, from the state that was published ``last`` or earlier. Outcome: that start state."""

    last: EpochChange | None


class NextStates(Effect[Iterable[tuple[ClusterState, ClusterState]]], Value):
    """Outcome: (state before, state after) of each record since the last call, possibly none. Waits a while for one."""


class Restore(Effect[None], Value):
    """Repair the change topics so that they match ``state``, which was published last (``restoration_of``)."""

    state: ClusterState


class Announce(Effect[None], Value):
    """Write the differences of one or more epochs in one transaction, under the role's transactional id.

    ``changes``: results of ``difference``. ``epoch``: the last of the epochs.
    """

    changes: Sequence[Any]
    epoch: Epoch


Difference = Callable[[ClusterState, ClusterState], Sequence[Any]]


async def publish(direct: Direct, difference: Difference = diff) -> None:
    """Serve one term of the change publisher. Only an exception of the driver ends it.

    Args:
        difference: ``diff``, or the same in the form that the driver writes.
    """
    await take_id()
    last = await LastPublished()
    why = divergence(last, await Barrier(direct.timeout))
    if why is not None:
        await HaltDiverged(why)
    await CheckSuperseded()
    start = await StartFollowing(last)
    is_resumed = last is None
    if last is None:
        await StartServing()
    else:
        is_resumed = await _resume(last, start)
    while True:
        states = await NextStates()
        waiting: list[Any] = []
        for before, after in states:
            await CheckSuperseded()
            if not is_resumed:
                is_resumed = await _resume(last, after)
            elif after is not before:
                changes = difference(before, after)
                if waiting and len(waiting) + len(changes) > TOGETHER:
                    await _announce(waiting, before.epoch)
                    waiting = []
                waiting += changes
                newest = after.epoch
        if waiting:
            await _announce(waiting, newest)


async def _announce(changes: Sequence[Any], epoch: Epoch) -> None:
    await FaultPoint("announcing")
    await Announce(changes, epoch)


async def _resume(last: EpochChange | None, state: ClusterState) -> bool:
    """Restore the topics and return True if ``state`` was published last. Newer epochs are then published."""
    try:
        if not starts_from(last, state):
            return False
    except ValueError as error:
        await HaltDiverged(str(error))
    await Restore(state)
    await StartServing()
    return True


class Restoration(Value):
    """The writes that make the change topics match a state.

    ``other``: how many of them replace a different value. ``unseen``: the number of values beyond ``COMPARED_MAX``,
    which were not compared.
    """

    records: tuple[ChangeRecord, ...]
    other: int
    unseen: int


def restoration_of(
    state: ClusterState, held: Callable[[str], Mapping[str, bytes]], compared_max: int = COMPARED_MAX
) -> Restoration:
    """Return the writes that make the change topics match ``state``.

    A record is written for each key that a topic lacks, and for each key with another value. Another process may have
    written that value, the topic may be an older copy, or the value may lack a field of the present schema. Keys that
    the state lacks get a tombstone. Keys that this release does not publish stay. So does ``epochs``, which names the
    state.

    Args:
        held: returns a topic's keys with the contents of their values (``wire.changes.content_digest``), by topic
        suffix. compared_max: the most values whose content is compared.
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
            assert record.value is not None, "the first difference removes no records"
            if there == content_digest(encode_change(record.value)):
                continue
            other += 1
        written.append(record)
    return Restoration((*gone, *written), other, unseen)


def divergence(published: EpochChange | None, state: ClusterState) -> str | None:
    """Return why ``published`` cannot come from the log that ends at ``state``; None if nothing shows that."""
    if published is None:
        return None
    if published.cluster_id != state.cluster_id:
        return f"the change topics are of cluster {published.cluster_id}, the log is of {state.cluster_id}"
    if published.epoch > state.epoch:
        return f"the change topics are at epoch {published.epoch}, the log ends at {state.epoch}"
    return None


def starts_from(published: EpochChange | None, state: ClusterState) -> bool:
    """Return whether the next difference starts from ``state``.

    Raises ValueError if ``state`` is another state of the epoch that was published last, or has other entries.
    """
    if published is None:
        return state.epoch == 0
    if state.epoch != published.epoch:
        return False
    if state.state_id != published.state_id:
        raise ValueError(
            f"epoch {state.epoch} was published as state {published.state_id}, the log has {state.state_id}"
        )
    if published.chain not in ("", chain := state.chain.hex()):
        raise ValueError(f"epoch {state.epoch} was published with chain {published.chain}, the log has {chain}")
    return True

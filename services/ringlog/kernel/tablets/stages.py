"""The kinds of transitions and their stages, **each a row**: readers, writers, work and the group to ask.

``prev`` are the settled replicas, ``next`` the future ones. The *leaving* replica is in prev only, the *pending* one in
next only. There is at most one of each, except in a salvage.

::

    stage                                  reads  writes  work              asks  on failure, reverts to
    allow_write_both_read_old              prev   prev                            revert_migration
    write_both_read_old                    prev   both                      prev  cleanup_target
    rebuild_repair                         prev   both    repair: sources         cleanup_target
    streaming                              prev   both    stream: pending         cleanup_target
    write_both_read_new                    next   both                      prev  write_both_read_old_fallback_cleanup
    use_new                                next   next                      next
    cleanup                                next   next    clean: leaving
    end_migration                          next   next                            (settles as next)
    write_both_read_old_fallback_cleanup   prev   both                      next  (continues to cleanup_target)
    cleanup_target                         prev   prev    clean: pending          (continues to revert_migration)
    revert_migration                       prev   prev                            (settles as prev)
    repair                                 prev   prev    repair: readers         end_repair
    end_repair                             prev   prev                            (settles as prev)
    salvage                                prev   both    stream: next
    salvaged                               next   both
    end_salvage                            next   next                            (settles as next)

``asks``: enough of this group must have acknowledged the stage before it ends (``tablets.gates``). It is the group that
served requests in the stage before, and later stages do not rely on it. Before the leaving replica deletes its rows it
is the new group. Other stages change nothing that an older request contradicts, and wait for no group.

A **salvage** follows the loss of a majority, with the reset of a zone's partition (``zones.salvage``). Next is one
survivor, which merges the rows of the other living replicas before it is read. No stage writes only prev. A source
sends its cut once it has adopted ``salvage`` and has no older request in progress, so the cut includes all its writes
of older epochs. Kind ``salvage`` waits for a majority of prev. Kind ``lossy_salvage`` waits only for the living,
because the loss was admitted.

Two stages with the same groups follow each other if a side effect ends between them: a late effect is refused by its
stage.

**Sessions.** A stage with work opens a session, which ends with the stage. The session id names the table, the tablet
and the stage's first epoch. A report of another session changes nothing, and a node drops the rows of such a session.

**Dead nodes** (declared down, or left). Cleaning does not wait for a dead leaving or pending node. A pending node that
is dead before ``use_new`` is a reason to revert. From ``use_new`` a transition only goes forward, and the tablet is
rebuilt afterwards. Within one node no transition reverts from ``write_both_read_new``.

Source: ScyllaDB, ``docs/dev/topology-over-raft.md``, "Tablet migration".
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from itertools import pairwise
from typing import Final

from ringlog.kernel.model.tablet_map import Tablet, TabletReplica, Transition
from ringlog.kernel.values import NodeId, Value


class Giver(Enum):
    """The replicas that have the rows of a transition."""

    LEAVING = "leaving"
    """The replica that the pending one succeeds."""
    OTHERS = "others"
    """The replicas that are there before and after."""
    SURVIVORS = "survivors"


class Side(Enum):
    """The replicas that serve requests."""

    PREV = "prev"
    BOTH = "both"
    NEXT = "next"


class StageWork(Enum):
    """The work that nodes do in a stage and report."""

    NONE = ""
    STREAM = "stream"
    REPAIR = "repair"
    CLEAN_LEAVING = "clean leaving"
    CLEAN_PENDING = "clean pending"


class Stage(Value):
    """One stage of a transition.

    ``back``: the stage after a failure; empty: forward only. ``asks``: the group that must know the stage before it
    ends; None: no group. ``settles``: the side that the tablet keeps when the transition ends here.
    """

    name: str
    reads: Side
    writes: Side
    work: StageWork = StageWork.NONE
    back: str = ""
    asks: Side | None = None
    settles: Side | None = None


ALLOW: Final = "allow_write_both_read_old"
WRITE_BOTH_READ_OLD: Final = "write_both_read_old"
REBUILD_REPAIR: Final = "rebuild_repair"
STREAMING: Final = "streaming"
WRITE_BOTH_READ_NEW: Final = "write_both_read_new"
USE_NEW: Final = "use_new"
CLEANUP: Final = "cleanup"
END_MIGRATION: Final = "end_migration"
FALLBACK: Final = "write_both_read_old_fallback_cleanup"
CLEANUP_TARGET: Final = "cleanup_target"
REVERT: Final = "revert_migration"
REPAIRING: Final = "repair"
END_REPAIR: Final = "end_repair"
SALVAGING: Final = "salvage"
SALVAGED: Final = "salvaged"
END_SALVAGE: Final = "end_salvage"

_PREV, _BOTH, _NEXT = Side.PREV, Side.BOTH, Side.NEXT

STAGES: Final[dict[str, Stage]] = {
    stage.name: stage
    for stage in (
        Stage(ALLOW, _PREV, _PREV, back=REVERT),
        Stage(WRITE_BOTH_READ_OLD, _PREV, _BOTH, back=CLEANUP_TARGET, asks=_PREV),
        Stage(REBUILD_REPAIR, _PREV, _BOTH, StageWork.REPAIR, CLEANUP_TARGET),
        Stage(STREAMING, _PREV, _BOTH, StageWork.STREAM, CLEANUP_TARGET),
        Stage(WRITE_BOTH_READ_NEW, _NEXT, _BOTH, back=FALLBACK, asks=_PREV),
        Stage(USE_NEW, _NEXT, _NEXT, asks=_NEXT),
        Stage(CLEANUP, _NEXT, _NEXT, StageWork.CLEAN_LEAVING),
        Stage(END_MIGRATION, _NEXT, _NEXT, settles=_NEXT),
        Stage(FALLBACK, _PREV, _BOTH, asks=_NEXT),
        Stage(CLEANUP_TARGET, _PREV, _PREV, StageWork.CLEAN_PENDING),
        Stage(REVERT, _PREV, _PREV, settles=_PREV),
        Stage(REPAIRING, _PREV, _PREV, StageWork.REPAIR, END_REPAIR),
        Stage(END_REPAIR, _PREV, _PREV, settles=_PREV),
        Stage(SALVAGING, _PREV, _BOTH, StageWork.STREAM),
        Stage(SALVAGED, _NEXT, _BOTH),
        Stage(END_SALVAGE, _NEXT, _NEXT, settles=_NEXT),
    )
}

TURNED_BACK: Final = (FALLBACK, CLEANUP_TARGET, REVERT)
"""The stages of a revert, for all kinds."""

SETTLED: Final = "settled"
"""The result of the last stage: the tablet has no transition."""


class TransitionKind(Value):
    """A kind of transition: its stages, the source of its rows, and its weight in the limits on streaming.

    ``within_node``: only the shard changes. ``admits_loss``: it continues with the living replicas, however few.
    """

    name: str
    stages: tuple[str, ...]
    giver: Giver
    weight: int = 1
    within_node: bool = False
    admits_loss: bool = False

    @property
    def exchanges(self) -> bool:
        """True if its tablet has other replicas afterwards."""
        return STAGES[self.stages[-1]].settles is Side.NEXT


_MOVE: Final = (ALLOW, WRITE_BOTH_READ_OLD, STREAMING, WRITE_BOTH_READ_NEW, USE_NEW, CLEANUP, END_MIGRATION)

MIGRATION: Final = TransitionKind("migration", _MOVE, Giver.LEAVING)
INTRANODE: Final = TransitionKind("intranode_migration", _MOVE, Giver.LEAVING, within_node=True)
REBUILD: Final = TransitionKind("rebuild", _MOVE, Giver.OTHERS)
REBUILD_V2: Final = TransitionKind("rebuild_v2", (*_MOVE[:2], REBUILD_REPAIR, *_MOVE[2:]), Giver.OTHERS, 2)
REPAIR: Final = TransitionKind("repair", (REPAIRING, END_REPAIR), Giver.OTHERS, 2)
SALVAGE: Final = TransitionKind("salvage", (SALVAGING, SALVAGED, END_SALVAGE), Giver.SURVIVORS)
LOSSY_SALVAGE: Final = TransitionKind("lossy_salvage", SALVAGE.stages, Giver.SURVIVORS, admits_loss=True)
"""Both salvages belong to a reset and cannot be requested for one tablet."""

KINDS: Final[dict[str, TransitionKind]] = {
    kind.name: kind for kind in (MIGRATION, INTRANODE, REBUILD, REBUILD_V2, REPAIR, SALVAGE, LOSSY_SALVAGE)
}

ASKED: Final = tuple(name for name, kind in KINDS.items() if kind.giver is not Giver.SURVIVORS)
"""The kinds that a request may name."""

STREAMING_STAGES: Final = (ALLOW, WRITE_BOTH_READ_OLD, REBUILD_REPAIR, STREAMING, REPAIRING)
"""Stages of transitions that count in the limits on streaming."""


def kind_of(transition: Transition) -> TransitionKind:
    """Return the row of a transition's kind."""
    return KINDS[transition.kind]


def next_stage(transition: Transition) -> str:
    """Return the next stage, or ``SETTLED``."""
    stages = TURNED_BACK if transition.stage in TURNED_BACK else kind_of(transition).stages
    place = stages.index(transition.stage) + 1
    return stages[place] if place < len(stages) else SETTLED


def is_salvage(transition: Transition | None) -> bool:
    """Return True for the two kinds of a reset."""
    return transition is not None and transition.stage in SALVAGE.stages


def leaving(tablet: Tablet) -> TabletReplica | None:
    """Return the replica that is in prev only; within a node its old shard."""
    return _only(tablet.replicas, tablet.transition.next) if tablet.transition is not None else None


def pending(tablet: Tablet) -> TabletReplica | None:
    """Return the replica that is in next only; within a node its new shard."""
    return _only(tablet.transition.next, tablet.replicas) if tablet.transition is not None else None


def members(tablet: Tablet, side: Side) -> tuple[TabletReplica, ...]:
    """Return the replicas of a side, each node once: prev in its order, then the pending ones."""
    if tablet.transition is None or side is Side.PREV:
        return tablet.replicas
    if side is Side.NEXT:
        return tablet.transition.next
    there = {replica.node for replica in tablet.replicas}
    return (*tablet.replicas, *(replica for replica in tablet.transition.next if replica.node not in there))


def readers(tablet: Tablet) -> tuple[TabletReplica, ...]:
    """Return the replicas that serve reads now."""
    return members(tablet, Side.PREV if tablet.transition is None else STAGES[tablet.transition.stage].reads)


def writers(tablet: Tablet) -> tuple[TabletReplica, ...]:
    """Return the replicas that take writes now, each node once."""
    return members(tablet, Side.PREV if tablet.transition is None else STAGES[tablet.transition.stage].writes)


def session(table: str, index: int, transition: Transition) -> str:
    """Return the id of the open session of the present stage; empty if it has none."""
    if STAGES[transition.stage].work is StageWork.NONE:
        return ""
    return f"{table}/{index}@{transition.stage_epoch}"


def ends_as(transition: Transition, settled: tuple[TabletReplica, ...]) -> tuple[TabletReplica, ...]:
    """Return the replicas that a tablet has after its transition: ``settled`` if it is being reverted.

    Planners count transitions as finished, so that successive plans together reach their goal.
    """
    return settled if transition.stage in TURNED_BACK else transition.next


def nodes_of(replicas: tuple[TabletReplica, ...]) -> tuple[NodeId, ...]:
    """Return the nodes of replicas, in their order."""
    return tuple([replica.node for replica in replicas])


def _only(these: tuple[TabletReplica, ...], those: tuple[TabletReplica, ...]) -> TabletReplica | None:
    places = [(replica.node, replica.shard) for replica in those]
    return next((replica for replica in these if (replica.node, replica.shard) not in places), None)


def _steps() -> Iterator[tuple[Stage, Stage]]:
    """Yield each stage with each stage that may follow it, except for salvages."""
    for names in (TURNED_BACK, *(kind.stages for kind in KINDS.values() if kind.giver is not Giver.SURVIVORS)):
        yield from pairwise(STAGES[name] for name in names)
    yield from ((row, STAGES[row.back]) for row in STAGES.values() if row.back)


def _check() -> None:
    """Assert the invariants of the rows that other code relies on."""
    for kind in KINDS.values():
        assert not kind.within_node or kind.giver is Giver.LEAVING, "a move within a node has one source"
        assert not kind.admits_loss or kind.giver is Giver.SURVIVORS, (
            "only a rebuild from survivors continues without rows"
        )
        assert kind.weight >= 1, "each transition has a weight"
        assert len(set(kind.stages)) == len(kind.stages), "stages of a kind are unique"
        assert set(kind.stages).isdisjoint(TURNED_BACK), "the stage alone says that a transition is being reverted"
        is_salvaging = kind.giver is Giver.SURVIVORS
        assert is_salvaging == (not set(kind.stages).isdisjoint(SALVAGE.stages)), (
            "the stage alone says that it is a salvage"
        )
        rows = [STAGES[name] for name in kind.stages]
        assert all((row.settles is not None) == (row is rows[-1]) for row in rows), "only the last stage settles"
        sides, works = [row.reads for row in rows], [row.work for row in rows]
        assert _NEXT not in sides or StageWork.STREAM in works[: sides.index(_NEXT)], (
            "rows are streamed before they are read"
        )
        streamed = max(place for place, work in enumerate(works) if work in (StageWork.STREAM, StageWork.REPAIR)) + 1
        counted = tuple(name for name in kind.stages if name in STREAMING_STAGES)
        assert counted == (() if is_salvaging else kind.stages[:streamed]), "a transition counts until it has streamed"
        for row in rows:
            assert not row.back or STAGES[row.back].reads is _PREV, "a reverting transition reads the old replicas"
    for row in STAGES.values():
        assert row.reads is not _BOTH, "a read uses one group"
        assert row.writes in (_BOTH, row.reads), "readers are writers"
        assert row.settles in (None, row.reads), "a settling group is the read group"
        assert row.asks is not _BOTH, "a gate uses one group"
        assert row.work is not StageWork.STREAM or row.writes is _BOTH, "new writes reach both groups while rows stream"
        assert row.work is not StageWork.CLEAN_LEAVING or row.writes is _NEXT, (
            "a replica that deletes its rows receives no writes"
        )
        assert row.work is not StageWork.CLEAN_PENDING or row.writes is _PREV, (
            "a replica that deletes its rows receives no writes"
        )
        assert not row.back or row.back in TURNED_BACK or STAGES[row.back].settles, "a revert ends"
    for before, after in _steps():
        if after.reads is not before.reads or (after.writes is _BOTH and before.writes is not _BOTH):
            assert after.asks is before.reads, "the gate asks the readers of the previous stage"
    for one, other in ((WRITE_BOTH_READ_OLD, STREAMING), (USE_NEW, CLEANUP), (CLEANUP, END_MIGRATION)):
        assert (STAGES[one].reads, STAGES[one].writes) == (STAGES[other].reads, STAGES[other].writes)
    assert STAGES[TURNED_BACK[-1]].settles is _PREV, "a reverted tablet keeps its replicas"


_check()

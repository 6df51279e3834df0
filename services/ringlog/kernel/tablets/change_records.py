"""What the change topic ``tablets`` tells: of each table one record, and one of each of its tablets.

See ``kernel.changes``; fields of the map that are not published are named in ``kernel.sections``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ringlog.kernel.model.state import Replica
from ringlog.kernel.model.tablet_map import CHUNK, Resize, Tablet, TabletMap, TabletReplica
from ringlog.kernel.operations.moving import RangeChange
from ringlog.kernel.tablets.groups import group_of, moving_of
from ringlog.kernel.tablets.stages import session
from ringlog.kernel.values import Epoch, Token


@dataclass(frozen=True, slots=True)
class TabletsChange:
    """``table`` (``keyspace.table``) has ``count`` tablets, made with the epoch ``made``.

    ``resize``: the decision that is being carried out; ``sequence``: the number of the last one.
    """

    epoch: Epoch
    table: str
    count: int
    made: Epoch
    resize: Resize | None
    sequence: int


@dataclass(frozen=True, slots=True)
class TabletChange:
    """A tablet: the tokens ``(start, end]`` of ``table``, its settled ``replicas``, and who serves it now.

    ``read``, ``write``, ``changed``, ``moving``: as in PlacementChange. In a transition: its ``kind``, its ``stage``
    since ``stage_epoch``, the replicas that are ``next``, the ``session`` that is open, and why it turned back.
    """

    epoch: Epoch
    table: str
    tablet: int
    start: Token
    end: Token
    replicas: tuple[TabletReplica, ...]
    read: tuple[Replica, ...]
    write: tuple[Replica, ...]
    changed: Epoch
    moving: tuple[RangeChange, ...] = ()
    kind: str = ""
    stage: str = ""
    stage_epoch: Epoch = 0
    next: tuple[TabletReplica, ...] = ()
    session: str = ""
    reason: str = ""


def changed_tablets(before: TabletMap | None, after: TabletMap) -> set[int]:
    """The numbers of the tablets that are new or others; chunks that both maps share are not looked at."""
    if before is None or before.ends != after.ends:
        return set(range(after.count))
    old, new = before.transitions, after.transitions
    found = {index for index, transition in new.items() if old.get(index) is not transition}
    found.update(index for index in old if index not in new)
    for number, (one, other) in enumerate(zip(before.chunks, after.chunks, strict=True)):
        if one is not other:
            rows = enumerate(zip(one.rows, other.rows, strict=True), number * CHUNK)
            found.update(index for index, (row, same) in rows if row is not same and row != same)
    return found


def tablet_change(table: str, tablet: Tablet, epoch: Epoch) -> TabletChange:
    """The record of a tablet in a state of ``epoch``."""
    group, transition = group_of(tablet), tablet.transition
    settled = TabletChange(
        epoch=epoch,
        table=table,
        tablet=tablet.index,
        start=tablet.start,
        end=tablet.end,
        replicas=tablet.replicas,
        read=group.read,
        write=group.write,
        changed=group.changed,
        moving=moving_of(table, tablet),
    )
    if transition is None:
        return settled
    return replace(
        settled,
        kind=transition.kind,
        stage=transition.stage,
        stage_epoch=transition.stage_epoch,
        next=transition.next,
        session=session(table, tablet.index, transition),
        reason=transition.reason,
    )

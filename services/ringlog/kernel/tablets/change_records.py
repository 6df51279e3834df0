"""Records of the change topic ``tablets``: one for each table, and one for each of its tablets.

See ``kernel.changes``. ``kernel.sections`` names the fields of the map that are not published.
"""

from __future__ import annotations

from ringlog.kernel.model.state import Replica
from ringlog.kernel.model.tablet_map import CHUNK, Resize, Tablet, TabletMap, TabletReplica
from ringlog.kernel.operations.moving import RangeChange
from ringlog.kernel.tablets.groups import group_of, moving_of
from ringlog.kernel.tablets.stages import session
from ringlog.kernel.values import Epoch, Token, Value, replace


class TabletsChange(Value):
    """A table in tablets: ``table`` (``keyspace.table``) has ``count`` tablets, made with the epoch ``made``.

    ``resize``: the decision in progress; ``sequence``: the number of the last decision.
    """

    epoch: Epoch
    table: str
    count: int
    made: Epoch
    resize: Resize | None
    sequence: int


class TabletChange(Value):
    """A tablet: the tokens ``(start, end]`` of ``table``, its settled ``replicas``, and the groups that serve it now.

    ``read``, ``write``, ``changed``, ``moving``: as in PlacementChange. In a transition: its ``kind``, its ``stage``
    since ``stage_epoch``, the future replicas ``next``, the open ``session``, and the ``reason`` why it was reverted.
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
    """Return the numbers of the tablets that are new or changed. Chunks that both maps share are skipped."""
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
    """Return the record of a tablet in a state of ``epoch``."""
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

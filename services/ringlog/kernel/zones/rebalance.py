"""Transitions of one partition of a zone: pure functions from a partition to its next value.

**trigger** (a change asks for another target; ``cause`` is its epoch). The first row that holds applies:

=================================================================  =============================  ====================
condition                                                          written                        status
=================================================================  =============================  ====================
change is not older than the cause                                 nothing                        outdated
nothing pending, and stable (or else ``read``) differs             pending = steps, change        pending_updated
pending leads elsewhere, or is being cancelled                     planned = target, change       planned_updated
pending leads to the target                                        planned removed, change        planned_removed
nothing pending: stable is the target                              planned removed, change        planned_removed
=================================================================  =============================  ====================

**switch** (the group has applied the next step). If the queue has more steps, the first is removed, and the others are
computed again from the configuration reached; stable stays. After the last step, the first row that holds applies:

=========  ===============================  ==========================================================================
append     nodes must be put back           pending = with them
reduce     nodes must be taken out          pending = without them
planned    a target is planned              pending = the steps to it
idle       otherwise                        pending removed
=========  ===============================  ==========================================================================

**cancel** records the step to undo. **finish_cancel** records the group's answer. The group returned to the old
configuration, or still had it, or had already applied the new one, which then counts as applied. A switch during an
open cancel means the third answer. The later steps of a cancelled queue are dropped.

**restart** makes replicas again: their nodes are taken out (reduce), then put back (append). A cancel or a reset ends
it.

**reset** follows the loss of a majority. One survivor becomes the group (forced), then the group grows to ``then``
(from a reset).

Each function writes a whole partition with one entry, so conditions on several keys need no guard other than revisions.
A planned target exists only while steps are pending: otherwise no switch would ever lead to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ringlog.kernel.model.zones import ZoneCancel, ZoneLink, ZonePartition, ZoneRevisions, ZoneStep
from ringlog.kernel.values import Epoch, replace
from ringlog.kernel.zones.queue import is_same, step_of, steps_between

PENDING_UPDATED: Final = "pending_updated"
PLANNED_UPDATED: Final = "planned_updated"
PLANNED_REMOVED: Final = "planned_removed"
STEP: Final = "step"
APPEND: Final = "append"
REDUCE: Final = "reduce"
PLANNED: Final = "planned"
IDLE: Final = "idle"
CANCELLING: Final = "cancelling"
RESET: Final = "reset"
RESTART: Final = "restart"

ROLLED_BACK: Final = "rolled_back"
ALREADY_OLD: Final = "already_old"
ALREADY_NEW: Final = "already_new"
RESULTS: Final = (ROLLED_BACK, ALREADY_OLD, ALREADY_NEW)
"""The answers of a group to a cancel."""

CHAIN_MAX: Final = 16
"""The most links of a chain; the oldest are removed first."""

KEYS: Final = ("stable", "pending", "planned", "reduce", "append")
_GIVEN_UP: Final[Mapping[str, Any]] = {"cancel": None, "reduce": (), "append": ()}
"""The fields that an answered cancel, and a reset, clear."""

assert set(KEYS) == {*ZoneRevisions.__struct_fields__}, "each key has a revision"


def written(before: ZonePartition, epoch: Epoch, **keys: Any) -> ZonePartition:
    """Return the partition with these fields. A key that differs gets revision ``epoch``; stable does whenever it is
    given.
    """
    differs = {name for name in KEYS if name in keys and keys[name] != getattr(before, name)}
    revisions = dict.fromkeys(differs | ({"stable"} & keys.keys()), epoch)
    return replace(before, **keys, revisions=replace(before.revisions, **revisions))


# ------------------------------------------------------------------------------------------------------- trigger


def triggered(
    before: ZonePartition, target: ZoneStep, cause: Epoch, epoch: Epoch, read: ZoneStep | None = None
) -> ZonePartition | None:
    """Return the partition with ``target`` pending or planned. None: the trigger is outdated.

    ``read``: the configuration that replaces a missing stable.
    """
    if before.change >= cause:
        return None
    have = before.stable if before.stable is not None else read
    if not before.pending and not is_same(have, target):
        queue = steps_between(have, target)
        return written(before, epoch, pending=queue, change=cause, status=PENDING_UPDATED, reason="")
    leads_there = not before.pending or is_same(before.pending[-1], target)
    if before.pending and (before.cancel is not None or not leads_there):
        return written(before, epoch, planned=target, change=cause, status=PLANNED_UPDATED)
    return written(before, epoch, planned=None, change=cause, status=PLANNED_REMOVED, reason="")


# -------------------------------------------------------------------------------------------------------- switch


def switched(before: ZonePartition, calculated: ZoneStep | None, epoch: Epoch) -> ZonePartition:
    """Return the partition after its group has applied the first pending step.

    ``calculated``: the partition's target now. It is used only if nodes are taken out or put back.
    """
    assert before.pending, "the partition has a pending step"
    applied = before.pending[0]
    plain = replace(applied, forced=False, from_reset=False)
    if before.cancel is not None:
        before = replace(before, pending=(applied,), cancel=None)
    before = replace(before, reason="")
    if len(before.pending) > 1:
        queue = steps_between(plain, before.pending[-1])
        return written(before, epoch, pending=queue, reached=plain, status=STEP)
    stable: dict[str, Any] = {
        "stable": plain,
        "reached": plain,
        "cancel": None,
        "chain": _chained(before, applied, epoch),
    }
    nodes, were = set(plain.nodes), set(before.stable.nodes) if before.stable is not None else set()
    wanted = set(calculated.nodes) if calculated is not None else set()
    off = set(before.reduce) - nodes
    out = set(before.reduce) - off
    back = ((set(before.append) | off) - (nodes - were)) & wanted
    if before.reduce or before.append:
        stable |= {"reduce": tuple(sorted(out)), "append": tuple(sorted(back))}
    if back and calculated is not None:
        queue = steps_between(plain, _within(calculated, nodes | back))
        return written(before, epoch, **stable, pending=queue, status=APPEND)
    if out and (less := _within(plain, nodes - out)).peers:
        return written(before, epoch, **stable, pending=(less,), status=REDUCE)
    return written(before, epoch, **stable, **_next(before, plain))


def _next(before: ZonePartition, have: ZoneStep) -> dict[str, Any]:
    """Return the fields after a group has settled on ``have``: the steps to the planned target, or nothing pending."""
    if before.planned is None:
        return {"pending": (), "status": IDLE}
    if is_same(have, before.planned):
        return {"pending": (), "planned": None, "status": IDLE}
    return {"pending": steps_between(have, before.planned), "planned": None, "status": PLANNED}


def _within(step: ZoneStep, nodes: set[str]) -> ZoneStep:
    return step_of(nodes & set(step.peers), nodes & set(step.learners))


def _chained(before: ZonePartition, applied: ZoneStep, epoch: Epoch) -> tuple[ZoneLink, ...]:
    """Return the chain after a step. A forced step adds a link, the second phase of a reset replaces the last link, and
    any other step starts a new chain.

    Only partitions of a highly available zone have a chain. ``with_chain`` starts it.
    """
    if not before.chain:
        return ()
    link = ZoneLink(applied.nodes, epoch)
    if applied.forced:
        return (*before.chain, link)[-CHAIN_MAX:]
    return (*before.chain[:-1], link) if applied.from_reset else (link,)


def outdated_keys(before: ZonePartition, seen: ZoneRevisions) -> tuple[str, ...]:
    """Return the keys that a switch depends on and that changed since they were ``seen``. A step before the last
    depends on pending only.
    """
    one_of_many = len(before.pending) > 1 and before.cancel is None
    keys = ("pending",) if one_of_many else KEYS
    return tuple(name for name in keys if getattr(before.revisions, name) != getattr(seen, name))


# -------------------------------------------------------------------------------------------------------- cancel


def cancelled(before: ZonePartition, reason: str = "") -> ZonePartition:
    """Return the partition with the intent to undo its pending step."""
    assert before.pending, "the partition has a pending step"
    assert before.reached is not None, "the partition has a configuration to return to"
    intent = ZoneCancel(before.reached, before.pending[0], before.revisions.pending)
    return replace(before, cancel=intent, status=CANCELLING, reason=reason)


def cancel_finished(before: ZonePartition, result: str, calculated: ZoneStep | None, epoch: Epoch) -> ZonePartition:
    """Return the partition after the group has answered its cancel.

    The next pending steps get a new revision, even if they equal the cancelled ones, so that messages about those do
    not apply to them.
    """
    assert before.cancel is not None, "a cancel is open"
    assert result in RESULTS, result
    if result == ALREADY_NEW:
        return switched(before, calculated, epoch)
    old = before.cancel.old
    after = written(before, epoch, stable=old, reached=old, **_GIVEN_UP, **_next(before, old))
    return replace(after, revisions=replace(after.revisions, pending=epoch))


# ------------------------------------------------------------------------------------------------------- restart


def restarted(
    before: ZonePartition, nodes: frozenset[str], target: ZoneStep | None, cause: Epoch, epoch: Epoch
) -> ZonePartition | None:
    """Return the partition with steps to a group without ``nodes``, which are put back afterwards. None: no voter would
    be left.

    ``target``: the target of the partition. If its configuration is the target, each change up to ``cause`` counts as
    acted on.
    """
    assert not before.pending, "the partition has no pending step"
    assert before.stable is not None, "the partition has a stable configuration"
    assert nodes <= {*before.stable.nodes}, "only present replicas are rebuilt"
    less = _within(before.stable, set(before.stable.nodes) - nodes)
    if not less.peers:
        return None
    keys = {"pending": steps_between(before.stable, less), "reduce": tuple(sorted(nodes))}
    change = max(before.change, cause) if is_same(before.stable, target) else before.change
    return written(before, epoch, **keys, change=change, reset_cause=cause, status=RESTART, reason="")


# --------------------------------------------------------------------------------------------------------- reset


def reset_to(
    before: ZonePartition,
    survivor: str,
    then: ZoneStep,
    queue: tuple[ZoneStep, ...],
    planned: ZoneStep | None,
    cause: Epoch,
    epoch: Epoch,
) -> ZonePartition:
    """Return the partition with ``survivor`` as its whole group, followed by ``queue``, then ``planned``. Without these
    two, ``then`` follows.

    The reset overwrites pending steps and an open cancel, because they wait for the lost majority. ``change`` stays, so
    a change without a trigger so far follows after the reset.
    """
    alone = ZoneStep((survivor,), (), forced=True)
    if planned is None and not queue:
        planned = replace(then, from_reset=True)
    if is_same((alone, *queue)[-1], planned):
        planned = None
    keys = {"pending": (alone, *queue), "planned": planned, "reset_cause": cause, "status": RESET, "reason": ""}
    return written(before, epoch, **keys, **_GIVEN_UP)

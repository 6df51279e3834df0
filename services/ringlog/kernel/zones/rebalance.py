"""What a decision does to one partition: six pure functions from a partition to the next one.

**trigger** (something asks for another target; ``cause``: the epoch of it). Strictly from the top:

=================================================================  =============================  ====================
condition                                                          written                        status
=================================================================  =============================  ====================
change is not older than the cause                                 nothing                        outdated
nothing pending, and stable (none: what the caller read) differs   pending = steps, change        pending_updated
pending leads elsewhere, or is being cancelled                     planned = target, change       planned_updated
pending leads there                                                planned removed, change        planned_removed
nothing pending: stable is the target                              planned removed, change        planned_removed
=================================================================  =============================  ====================

**switch** (the group has applied the next step). Of a queue with more steps the first is taken off, and the rest is
made anew from what was reached; stable stays. After the last step, the first that holds:

=========  ===============================  ==========================================================================
append     nodes are to be put back         pending = with them
reduce     nodes are to be taken out        pending = without them
planned    something is planned             pending = the steps to it
idle       otherwise                        pending removed
=========  ===============================  ==========================================================================

**cancel** notes what is to be undone; **finish_cancel** has the group's answer: it has returned to the old
configuration, it had it, or it had applied the new one already, which then counts as done. A switch that comes while a
cancel is open says the latter. Of a queue that is cancelled the steps behind the present one go.

**restart**: replicas are made anew. Their nodes are taken out (reduce), then put back (append).
A cancel, or a reset, ends it.

**reset**: the majority is lost; one survivor becomes the group (forced), then it grows to ``then`` (from a reset).

Each of these writes a partition as a whole with one entry, so the conditions on several keys need no guard but
revisions. A planned target exists only beside something pending: else nothing would ever lead to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from ringlog.kernel.model.zones import ZoneCancel, ZoneLink, ZonePartition, ZoneRevisions, ZoneStep
from ringlog.kernel.values import Epoch
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
"""What a group answers to a cancel."""

CHAIN_MAX: Final = 16
"""Links that are remembered; the oldest go first."""

KEYS: Final = ("stable", "pending", "planned", "reduce", "append")
_GIVEN_UP: Final[Mapping[str, Any]] = {"cancel": None, "reduce": (), "append": ()}
"""What a cancel that is answered, and a reset, end."""


def written(before: ZonePartition, epoch: Epoch, **keys: Any) -> ZonePartition:
    """The partition with these fields. A key that differs has revision ``epoch``; so has stable if it is given."""
    differs = {name for name in KEYS if name in keys and keys[name] != getattr(before, name)}
    revisions = dict.fromkeys(differs | ({"stable"} & keys.keys()), epoch)
    return replace(before, **keys, revisions=replace(before.revisions, **revisions))


# ------------------------------------------------------------------------------------------------------- trigger


def triggered(
    before: ZonePartition, target: ZoneStep, cause: Epoch, epoch: Epoch, read: ZoneStep | None = None
) -> ZonePartition | None:
    """The partition on its way to ``target``; None: outdated. ``read``: what a caller takes a missing stable for."""
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
    """The partition after its group has applied the first pending step.

    ``calculated``: where it belongs by now; asked for only where nodes are taken out or put back.
    """
    assert before.pending, "something is pending"
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
    """What follows when a group is settled on ``have``: what is planned, or nothing."""
    if before.planned is None:
        return {"pending": (), "status": IDLE}
    if is_same(have, before.planned):
        return {"pending": (), "planned": None, "status": IDLE}
    return {"pending": steps_between(have, before.planned), "planned": None, "status": PLANNED}


def _within(step: ZoneStep, nodes: set[str]) -> ZoneStep:
    return step_of(nodes & set(step.peers), nodes & set(step.learners))


def _chained(before: ZonePartition, applied: ZoneStep, epoch: Epoch) -> tuple[ZoneLink, ...]:
    """A forced change adds a link, the second phase of a reset replaces the last one, any other begins anew.

    Only a zone that is highly available has a chain: it begins when a partition gets one.
    """
    if not before.chain:
        return ()
    link = ZoneLink(applied.nodes, epoch)
    if applied.forced:
        return (*before.chain, link)[-CHAIN_MAX:]
    return (*before.chain[:-1], link) if applied.from_reset else (link,)


def outdated_keys(before: ZonePartition, seen: ZoneRevisions) -> tuple[str, ...]:
    """The keys that a switch depends on and that are not as they were ``seen``: of a step on the way only pending."""
    one_of_many = len(before.pending) > 1 and before.cancel is None
    keys = ("pending",) if one_of_many else KEYS
    return tuple(name for name in keys if getattr(before.revisions, name) != getattr(seen, name))


# -------------------------------------------------------------------------------------------------------- cancel


def cancelled(before: ZonePartition, reason: str = "") -> ZonePartition:
    """The partition with the intent to undo the step that is pending."""
    assert before.pending, "something is pending"
    assert before.reached is not None, "there is a way back"
    intent = ZoneCancel(before.reached, before.pending[0], before.revisions.pending)
    return replace(before, cancel=intent, status=CANCELLING, reason=reason)


def cancel_finished(before: ZonePartition, result: str, calculated: ZoneStep | None, epoch: Epoch) -> ZonePartition:
    """The partition after the group has answered its cancel. What follows is a step of its own, with a revision of its
    own, even if it is the one that was cancelled: no word on that one is about this one.
    """
    assert before.cancel is not None, "a cancel is open"
    if result == ALREADY_NEW:
        return switched(before, calculated, epoch)
    old = before.cancel.old
    after = written(before, epoch, stable=old, reached=old, **_GIVEN_UP, **_next(before, old))
    return replace(after, revisions=replace(after.revisions, pending=epoch))


# ------------------------------------------------------------------------------------------------------- restart


def restarted(
    before: ZonePartition, nodes: frozenset[str], target: ZoneStep | None, cause: Epoch, epoch: Epoch
) -> ZonePartition | None:
    """The partition on its way to a group without these nodes, which are put back behind it; None: no voter would be
    left. ``target``: where the partition belongs. If it is there, it has acted on each change up to ``cause``.
    """
    assert not before.pending, "it is at rest"
    assert before.stable is not None, "somebody has it"
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
    """The partition whose group is ``survivor`` alone, then goes through ``queue``, then to ``planned``. Without these
    two it goes to ``then``.

    What was pending or being cancelled is overwritten: it waits for a majority that is lost. ``change`` is what it
    was: a change on which no trigger has acted yet follows after the reset.
    """
    alone = ZoneStep((survivor,), (), forced=True)
    if planned is None and not queue:
        planned = replace(then, from_reset=True)
    if is_same((alone, *queue)[-1], planned):
        planned = None
    keys = {"pending": (alone, *queue), "planned": planned, "reset_cause": cause, "status": RESET, "reason": ""}
    return written(before, epoch, **keys, **_GIVEN_UP)

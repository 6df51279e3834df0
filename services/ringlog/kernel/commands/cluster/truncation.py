"""Truncation: removal of the log's oldest entries once no reader needs them to know the state.

An agent stores a snapshot and others compare it with their own folds, outside the log (``ringlog.log.snapshots``). The
results are entries of the log, so that the fold can decide on them:

- ``ConfirmSnapshot``: Two roles have the state of a mark by their own folds, with this position and digest.
- ``RecordArchive``: The archive holds every entry up to there, and was read back (``ringlog.log.archive.archive``).
- ``TruncateLog``: The log may begin with the entry of the newest confirmed snapshot that is not above ``below_epoch``.
  A confirmed snapshot covers the entries below it; if there is an archive, it holds the removed entries.

So the state names the first offset to keep: records below it may be deleted. A reader can then distinguish an ordered
truncation from a log that was cut without an order, or above it. The entry that made a snapshot's state stays, since
readers compare the two.

The positions are claims of those who read the log: a fold knows no offsets. Before it deletes, the cache
writer compares them again with the present snapshots and archive (``ringlog.agents.maintenance.truncation``).

Source: DESIGN, snapshots; CEP-21, log compaction.
"""

from __future__ import annotations

import re
from typing import Annotated, Final

from ringlog.kernel.commands.rules import NAME_RULE, broken_field
from ringlog.kernel.history import ARCHIVED, STORED_MAX, TRUNCATED, allowed_begin, confirmed_snapshots, contradicts
from ringlog.kernel.model.modes import SETTING_CHANGES, UNPAUSED, LogBound
from ringlog.kernel.model.outcome import Accepted, Decision, EntryContext, Rejected
from ringlog.kernel.model.principals import ADMIN, AGENT
from ringlog.kernel.model.state import ClusterState, advance
from ringlog.kernel.values import Command, Epoch, is_name, replace

CODES: Final = {
    "archive_behind": "The archive does not contain the entries that would be deleted yet.",
    "archive_shrank": "The log has recorded an archive that contains more entries.",
    "nothing_to_truncate": "The log starts at this epoch or later.",
    "snapshot_contradicted": "The log, or another witness, has another digest for this epoch.",
    "snapshot_unknown": "No snapshot was requested at this epoch, or its record is pruned.",
    "truncation_uncovered": "No confirmed snapshot is at or below this epoch.",
}

WITNESSES_MIN: Final = 2
WITNESSES_MAX: Final = 8
OFFSET_MAX: Final = 2**63 - 1
_DIGEST: Final = re.compile("[0-9a-f]{64}")
DIGEST_RULE: Final = "must be 64 lower-case hex digits"


class ConfirmSnapshot(Command):
    """Confirm a stored snapshot: a second reader has the same state by its own fold."""

    PAUSED_BY = UNPAUSED
    NEEDS = (AGENT,)

    epoch: Annotated[Epoch, "Epoch of the snapshot."]
    state_id: Annotated[str, "Id of the state at that epoch."]
    position: Annotated[int, "Log offset after the entry that made the epoch."]
    digest: Annotated[str, "Digest of the state, 64 hex digits."]
    witnesses: Annotated[tuple[str, ...], "Roles that computed the same state with their own folds. At least two."]


def decide_confirm_snapshot(state: ClusterState, command: ConfirmSnapshot, context: EntryContext) -> Decision:
    """Record the witnesses of a known mark, unless the log or other witnesses contradict them. Witnesses accumulate."""
    roles = sorted(set(command.witnesses))
    broken = broken_field(
        (0 < command.position <= OFFSET_MAX, "position", "must be the offset after an entry"),
        (_DIGEST.fullmatch(command.digest) is not None, "digest", DIGEST_RULE),
        (WITNESSES_MIN <= len(roles) <= WITNESSES_MAX, "witnesses", f"must be {WITNESSES_MIN} to {WITNESSES_MAX}"),
        (all(map(is_name, roles)), "witnesses", NAME_RULE),
    )
    if broken is not None:
        return broken
    mark = state.snapshots.get(str(command.epoch))
    if mark is None:
        return Rejected("snapshot_unknown", f"epoch: {command.epoch} is not one of the last requested snapshots")
    if contradicts(state, command.epoch, command.state_id):
        return Rejected("snapshot_contradicted", f"state_id: epoch {command.epoch} has another state id")
    said = command.position, command.digest
    if mark.witnesses and (mark.position, mark.digest) != said:
        known = f"{', '.join(mark.witnesses)} have position {mark.position} and digest {mark.digest}"
        return Rejected("snapshot_contradicted", f"epoch {command.epoch}: {known}")
    others = [one for one in confirmed_snapshots(state) if one.epoch != mark.epoch]
    below = [one.position < command.position for one in others if one.epoch < mark.epoch]
    above = [command.position < one.position for one in others if one.epoch > mark.epoch]
    if not all(below + above):
        return Rejected("snapshot_contradicted", "position: positions of snapshots ascend with their epochs")
    witnesses = tuple(sorted({*mark.witnesses, *roles}))[:WITNESSES_MAX]
    assert len(witnesses) >= WITNESSES_MIN, "two roles confirm a snapshot"
    mark = replace(mark, position=command.position, digest=command.digest, witnesses=witnesses)
    return Accepted(advance(state, context.epoch, snapshots=state.snapshots.set(str(mark.epoch), mark)))


class RecordArchive(Command):
    """Record that the archive contains the log from its first entry to an epoch. The author has read it back."""

    PAUSED_BY = UNPAUSED
    NEEDS = (ADMIN,)
    DANGEROUS = True

    epoch: Annotated[Epoch, "Last epoch in the archive. 0: the archive no longer exists."]
    position: Annotated[int, "Log offset after the entry that made the epoch. 0 without an archive."]
    digest: Annotated[str, "Digest of the archive's last segment, 64 hex digits. Empty without an archive."]


def decide_record_archive(state: ClusterState, command: RecordArchive, context: EntryContext) -> Decision:
    """Record the growth of the archive, or its removal."""
    if command.epoch == 0:
        if (
            broken := broken_field((not command.position and not command.digest, "epoch", "0: no archive"))
        ) is not None:
            return broken
        without = state.log_bounds.delete(ARCHIVED) if ARCHIVED in state.log_bounds else state.log_bounds
        return Accepted(advance(state, context.epoch, log_bounds=without))
    broken = broken_field(
        (0 < command.epoch < context.epoch, "epoch", f"must be 0 to {state.epoch}"),
        (0 < command.position <= OFFSET_MAX, "position", "must be the offset after an entry"),
        (_DIGEST.fullmatch(command.digest) is not None, "digest", DIGEST_RULE),
    )
    if broken is not None:
        return broken
    bound = LogBound(command.epoch, command.position, command.digest)
    known = state.log_bounds.get(ARCHIVED)
    if known is not None and (bound.epoch < known.epoch or bound.position < known.position):
        return Rejected("archive_shrank", f"epoch: the log has recorded an archive up to epoch {known.epoch}")
    return Accepted(advance(state, context.epoch, log_bounds=state.log_bounds.set(ARCHIVED, bound)))


class TruncateLog(Command):
    """Permit the deletion of entries below an epoch. The log then begins with the entry of a confirmed snapshot."""

    PAUSED_BY = SETTING_CHANGES
    NEEDS = (ADMIN,)
    DANGEROUS = True

    below_epoch: Annotated[Epoch, "Upper bound of the new begin: the newest confirmed snapshot at or below this epoch."]


def decide_truncate_log(state: ClusterState, command: TruncateLog, context: EntryContext) -> Decision:
    """Order a truncation if a confirmed snapshot covers the removed entries and any archive holds them."""
    wanted = command.below_epoch
    if (broken := broken_field((0 < wanted < context.epoch, "below_epoch", f"must be 1 to {state.epoch}"))) is not None:
        return broken
    confirmed = confirmed_snapshots(state)[-STORED_MAX:]  # older ones may no longer be stored
    first = next((one for one in reversed(confirmed) if one.epoch <= wanted), None)
    if first is None:
        there = f"the oldest usable one is of epoch {confirmed[0].epoch}" if confirmed else "take one first"
        return Rejected("truncation_uncovered", f"below_epoch: no confirmed snapshot at or below {wanted}: {there}")
    bound = LogBound(first.epoch, first.position - 1)
    if bound.position <= allowed_begin(state):
        return Rejected("nothing_to_truncate", f"below_epoch: the log may begin at offset {allowed_begin(state)}")
    archived = state.log_bounds.get(ARCHIVED)
    if archived is not None and archived.position < bound.position:
        held = f"the archive holds epochs up to {archived.epoch}"
        return Rejected("archive_behind", f"below_epoch: {held}, and entries up to {first.epoch - 1} would be deleted")
    return Accepted(advance(state, context.epoch, log_bounds=state.log_bounds.set(TRUNCATED, bound)))


def is_known(state: ClusterState, command: Command) -> bool:
    """Return whether the log already has the content of this command."""
    if isinstance(command, ConfirmSnapshot):
        mark = state.snapshots.get(str(command.epoch))
        return mark is not None and len(mark.witnesses) >= WITNESSES_MIN
    known = state.log_bounds.get(ARCHIVED)
    return isinstance(command, RecordArchive) and known is not None and known.epoch >= command.epoch > 0

"""Errors of the log: what happened, and what the operator can do next.

    LogError
    ├── LogUnavailable        the broker gave no answer, or a bad one: an append's fate is then unknown
    ├── RecordTooLarge        a topic refuses a record for its size, and would refuse it for ever
    ├── LogDamaged            this is not the log that was read before; a replica halts on each of these
    │   ├── LogTruncated      it is shorter than what was read, or begins later
    │   ├── LogPassed         it begins later than this reader, and there is a snapshot: starting again helps
    │   ├── LogForked         it was cut and has grown again: another history
    │   ├── LogGap            entries are missing in its middle
    │   └── LogReplaced       another topic took its name
    ├── StateDisputed         two others have another state of an epoch: this process has folded wrongly
    ├── SnapshotRefused       nobody may begin with this snapshot: an older one, or the log's beginning, serves
    │   ├── SnapshotIncomplete, SnapshotForged, SnapshotUnknown, SnapshotOfAnotherLog, SnapshotUnconfirmed,
    │   │   SnapshotDisputed
    ├── ArchiveRefused        the archive is not what the log wrote there: nothing is read from it
    │   ├── ArchiveGap, ArchiveForged, ArchiveCut, ArchiveOfAnotherLog, ArchivePlaceUnknown
    ├── ArchiveUnavailable    the archive's place does not answer, or takes nothing
    ├── CopyRefused           nobody may recover from this copy of the log as it is
    │   ├── CopyDamaged, CopyMissing, CopyInUse
    ├── LogNotEmpty           a log with records is where one is to be rebuilt
    ├── TopicMissing          the topic does not exist
    ├── TopicMisconfigured    the topic's settings would lose or reorder entries
    ├── ReplicaHalted         the replica stopped for good and says why
    ├── ReplicaStopped        it was asked to stop
    ├── BadRule               a rule that would delay entries means nothing
    ├── UnknownRule           there is no such rule
    └── WaitTimedOut          what was waited for did not come in time

Every error has a stable ``code``, a message that names the thing, and a ``hint``: the next thing to do.
"""

from __future__ import annotations

KEY_SHOWN_MAX = 200


class LogError(Exception):
    """Base of all errors of the log. ``code`` is stable; ``hint`` says what to do next."""

    code = "log_error"

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message} ({hint})" if hint else message)
        self.message = message
        self.hint = hint


class LogUnavailable(LogError):
    """No answer from the broker, or a failure.

    Records that were being appended may be in the log, or may still arrive.
    """

    code = "log_unavailable"


class RecordTooLarge(LogError):
    """A record is larger than its topic, or the client, takes: it was not written, and no repetition helps.

    ``size``: bytes of key and value.
    """

    code = "record_too_large"

    def __init__(self, topic: str, key: bytes | None, size: int, hint: str) -> None:
        named = "without a key" if key is None else repr(key[:KEY_SHOWN_MAX].decode("utf-8", "backslashreplace"))
        super().__init__(f"topic {topic} refuses the record {named} of {size:,} bytes for its size", hint)
        self.topic = topic
        self.key = key
        self.size = size


class LogDamaged(LogError):
    """This is not the log that was read before."""

    code = "log_damaged"


class LogTruncated(LogDamaged):
    """The log ends before, or begins after, what this reader has read."""

    code = "log_truncated"

    def __init__(self, message: str, hint: str = "the log lost records: restore it before starting anything") -> None:
        super().__init__(message, hint)


class LogPassed(LogDamaged):
    """Entries went that this reader has not read; one that starts anew begins with a snapshot behind them."""

    code = "log_passed"

    def __init__(self, name: str, position: int) -> None:
        super().__init__(
            f"{name} begins behind offset {position}", "start the process again: it begins with a snapshot"
        )


class LogForked(LogDamaged):
    """The log lost entries that were read, and others took their place: its epochs are other states."""

    code = "log_forked"


class LogGap(LogDamaged):
    """Entries follow on epochs that the log does not have: some are missing, or their bytes changed."""

    code = "log_gap"


class LogReplaced(LogDamaged):
    """The topic was deleted and made again: its id is another one."""

    code = "log_replaced"


class StateDisputed(LogError):
    """Two others have another state of an epoch than this process, which folds no more."""

    code = "state_disputed"


class SnapshotRefused(LogError):
    """Nobody may begin with this snapshot."""

    code = "snapshot_refused"


class SnapshotIncomplete(SnapshotRefused):
    """A chunk of the snapshot is missing."""

    code = "snapshot_incomplete"


class SnapshotForged(SnapshotRefused):
    """The bytes of the snapshot are not those that its digests are of, or no state of this release."""

    code = "snapshot_forged"


class SnapshotUnknown(SnapshotRefused):
    """A part of the snapshot is stored in a way that only a later release knows."""

    code = "snapshot_unknown"


class SnapshotOfAnotherLog(SnapshotRefused):
    """The log has another topic id, or another entry where the snapshot was taken."""

    code = "snapshot_of_another_log"


class SnapshotUnconfirmed(SnapshotRefused):
    """No second reader has said that its fold gives the same digest."""

    code = "snapshot_unconfirmed"


class SnapshotDisputed(SnapshotRefused):
    """Another reader's fold of that epoch has another digest: one of the two is wrong."""

    code = "snapshot_disputed"


class ArchiveRefused(LogError):
    """Nothing of this archive may be believed as it is."""

    code = "archive_refused"

    def __init__(self, message: str, hint: str = "put back the segments of a copy, or begin another archive") -> None:
        super().__init__(message, hint)


class ArchiveEmpty(ArchiveRefused):
    """Where the archive is to be there is no segment of any log, or no folder."""

    code = "archive_empty"


class ArchiveGap(ArchiveRefused):
    """Segments are missing between two that are there, or before the first, or between the last one and the log."""

    code = "archive_gap"


class ArchiveTooLate(ArchiveRefused):
    """A new archive cannot begin: the log lacks its first entry, after a truncation or a recovery."""

    code = "archive_too_late"

    def __init__(self, name: str, begin: int) -> None:
        super().__init__(
            f"{name} begins at offset {begin}, and an archive begins with the first entry of a log",
            "start the keeper without RINGLOG_ARCHIVE, or with the place of an archive that goes up to there. "
            "Snapshots and copies of members cover the log",
        )


class ArchiveForged(ArchiveRefused):
    """A segment is not the one that was written: digests, names and contents do not fit one another."""

    code = "archive_forged"


class ArchiveCut(ArchiveRefused):
    """A segment lacks its end."""

    code = "archive_cut"


class ArchiveOfAnotherLog(ArchiveRefused):
    """The archive, or a part of it, is of another cluster or topic, or of epochs that this log does not have."""

    code = "archive_of_another_log"


class ArchivePlaceUnknown(ArchiveRefused):
    """What names the archive's place names no folder, and no store that is known here."""

    code = "archive_place_unknown"


class ArchiveUnavailable(LogError):
    """The archive's place could not be read or written."""

    code = "archive_unavailable"


class CopyRefused(LogError):
    """Nobody may recover from this copy of the log as it is."""

    code = "copy_refused"


class CopyDamaged(CopyRefused):
    """A member's copy of the log is not what was synced there."""

    code = "copy_damaged"


class CopyMissing(CopyRefused):
    """The folder holds neither a member's copy of the log nor an archive, or the copy no cluster."""

    code = "copy_missing"


class CopyInUse(CopyRefused):
    """A node runs from the folder."""

    code = "copy_in_use"


class LogNotEmpty(LogError):
    """A log with records is where one is to be rebuilt. ``cluster_id``: whose it seems to be; empty: who knows."""

    code = "log_not_empty"

    def __init__(self, name: str, records: int, cluster_id: str) -> None:
        whose = f" of cluster {cluster_id}" if cluster_id else ""
        super().__init__(f"{name} has {records} records{whose}", "keep a dump of them, then recover with --replace")
        self.cluster_id = cluster_id


LOG_MISSING = "look at the name of the cluster and at the broker; rebuild a lost log with ringlog recover"
OTHER_MISSING = "look at the name of the cluster; make a lost topic again with ringlog cluster repair-topics"


class TopicMissing(LogError):
    """The topic does not exist (or not yet)."""

    code = "topic_missing"

    def __init__(self, topic: str, hint: str = "") -> None:
        is_log = topic.endswith(".metadata")
        super().__init__(f"topic {topic} does not exist", hint or (LOG_MISSING if is_log else OTHER_MISSING))
        self.topic = topic


class TopicMisconfigured(LogError):
    """A topic has a setting under which entries could be lost, reordered or refused."""

    code = "topic_misconfigured"

    def __init__(self, topic: str, setting: str, found: str, wanted: str, mend: str) -> None:
        super().__init__(f"topic {topic}: {setting} is {found}, wanted {wanted}", f"mend it with: {mend}")
        self.topic = topic
        self.setting = setting
        self.found = found
        self.wanted = wanted
        self.mend = mend


class CopiesUndecided(LogError):
    """Fewer brokers are up than there may be, or two: nobody but the operator knows how many copies are meant."""

    code = "copies_undecided"

    def __init__(self, message: str) -> None:
        super().__init__(message, "start all brokers, or say it: ringlog cluster found … --replication N")


class ReplicaHalted(LogError):
    """The replica stopped before ``offset`` and folds no more. ``code`` is that of the reason."""

    def __init__(self, code: str, detail: str, offset: int, hint: str = "") -> None:
        super().__init__(f"the replica halted before offset {offset}: {code}: {detail}", hint)
        self.code = code
        self.detail = detail
        self.offset = offset


class ReplicaStopped(LogError):
    """The replica was stopped, or never started, while somebody waited for it."""

    code = "replica_stopped"


class BadRule(LogError):
    """A rule on held entries that means nothing, or that no log could obey.

    The message names the field and what is wrong with it.
    """

    code = "bad_rule"


class UnknownRule(LogError):
    """No rule on held entries has that name."""

    code = "unknown_rule"


class WaitTimedOut(LogError):
    """A wait ended at its deadline. ``what`` was waited for, ``waited_s`` seconds long."""

    code = "wait_timed_out"

    def __init__(self, what: str, waited_s: float, hint: str = "") -> None:
        super().__init__(f"waited {waited_s:.1f} s for {what}", hint)
        self.what = what
        self.waited_s = waited_s

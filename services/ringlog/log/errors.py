"""Errors of the log.

    LogError
    ├── LogUnavailable        the broker did not answer, or reported a failure: the outcome of an append is unknown
    ├── LoginRefused          the broker refuses the login: waiting does not help
    ├── RecordTooLarge        a topic rejects a record because of its size, and would reject every retry
    ├── LogDamaged            this is not the log that was read before; a replica halts on each of these
    │   ├── LogTruncated      it is shorter than the part that was read, or begins later
    │   ├── LogPassed         it begins after this reader's position, and a snapshot exists: a restart helps
    │   ├── LogForked         it was cut and has grown again: another history
    │   ├── LogGap            entries are missing in the middle
    │   └── LogReplaced       another topic has its name
    ├── StateDisputed         two other processes have another state of an epoch: this process folded incorrectly
    ├── SnapshotRefused       no reader may begin with this snapshot; an older one or the log's beginning may serve
    │   ├── SnapshotIncomplete, SnapshotForged, SnapshotUnknown, SnapshotOfAnotherLog, SnapshotUnconfirmed,
    │   │   SnapshotDisputed
    ├── ArchiveRefused        the archive does not contain the bytes that were written: nothing is read from it
    │   ├── ArchiveEmpty, ArchiveGap, ArchiveTooLate, ArchiveForged, ArchiveCut, ArchiveOfAnotherLog,
    │   │   ArchivePlaceUnknown
    ├── ArchiveUnavailable    the archive's location does not answer, or does not accept writes
    ├── CopyRefused           a recovery cannot use this copy of the log
    │   ├── CopyDamaged, CopyMissing, CopyInUse
    ├── LogNotEmpty           the target topic of a recovery has records
    ├── TopicMissing          the topic does not exist
    ├── TopicMisconfigured    a setting of the topic could lose, reorder or reject entries
    ├── CopiesUndecided       the number of copies of each record is not clear from the brokers that are up
    ├── ReplicaHalted         the replica stopped permanently; the error contains the reason
    ├── ReplicaStopped        the replica was stopped, or not started
    ├── BadRule               a delay rule is not valid
    ├── UnknownRule           no delay rule has that name
    └── WaitTimedOut          a wait reached its deadline

Every error has a stable ``code``, a message that names the failed object, and a ``hint``: the next thing to do.
"""

from __future__ import annotations

from ringlog.errors import RinglogError

KEY_SHOWN_MAX = 200


class LogError(RinglogError):
    """Base class of all errors of the log.

    ``code`` is stable. ``hint`` names the next step for the operator.
    """

    code = "log_error"

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message} ({hint})" if hint else message)
        self.message = message
        self.hint = hint


class LogUnavailable(LogError):
    """The broker did not answer, or reported a failure.

    Records of an unfinished append may be in the log, or may still arrive.
    """

    code = "log_unavailable"
    retriable = True


class TopicDenied(LogUnavailable):
    """The login of this process has no permission for a topic. A retry helps only after the ACLs have changed."""

    code = "topic_denied"
    retriable = False


class LoginRefused(LogError):
    """The broker refuses the login of this process. Waiting does not help."""

    code = "login_refused"


class RecordTooLarge(LogError):
    """A record exceeds the size limit of its topic or of the client.

    The record was not written, and a retry does not help. ``size`` counts the bytes of key and value.
    """

    code = "record_too_large"

    def __init__(self, topic: str, key: bytes | None, size: int, hint: str) -> None:
        named = "without a key" if key is None else repr(key[:KEY_SHOWN_MAX].decode("utf-8", "backslashreplace"))
        super().__init__(f"topic {topic} rejects the record {named}: {size:,} bytes exceed its limit", hint)
        self.topic = topic
        self.key = key
        self.size = size


class LogDamaged(LogError):
    """The log is not the one that this process read before."""

    code = "log_damaged"


class LogTruncated(LogDamaged):
    """The log ends before the part that this reader has read, or begins after it."""

    code = "log_truncated"

    def __init__(
        self, message: str, hint: str = "the log lost records: restore it before you start any process"
    ) -> None:
        super().__init__(message, hint)


class LogPassed(LogDamaged):
    """Entries were deleted before this reader read them. Restart the reader: it starts from a later snapshot."""

    code = "log_passed"

    def __init__(self, name: str, position: int) -> None:
        super().__init__(f"{name} starts after offset {position}", "restart the process: it starts from a snapshot")


class LogForked(LogDamaged):
    """The log lost entries that were read, and other entries replaced them: its epochs have other states."""

    code = "log_forked"


class LogGap(LogDamaged):
    """Entries refer to epochs that the log does not contain: entries are missing, or their bytes changed."""

    code = "log_gap"


class LogReplaced(LogDamaged):
    """The topic was deleted and created again: its id is different."""

    code = "log_replaced"


class StateDisputed(LogError):
    """Two other processes have another state of an epoch. This process stops replaying the log."""

    code = "state_disputed"


class SnapshotRefused(LogError):
    """Readers cannot start from this snapshot."""

    code = "snapshot_refused"


class SnapshotIncomplete(SnapshotRefused):
    """A chunk of the snapshot is missing."""

    code = "snapshot_incomplete"


class SnapshotForged(SnapshotRefused):
    """The snapshot's bytes do not match its digests, or do not encode a state of this release."""

    code = "snapshot_forged"


class SnapshotUnknown(SnapshotRefused):
    """A section of the snapshot has a storage format that only a later release supports."""

    code = "snapshot_unknown"


class SnapshotOfAnotherLog(SnapshotRefused):
    """The log has another topic id, or another entry at the snapshot's position."""

    code = "snapshot_of_another_log"


class SnapshotUnconfirmed(SnapshotRefused):
    """No second reader has confirmed the digest by its own replay."""

    code = "snapshot_unconfirmed"


class SnapshotDisputed(SnapshotRefused):
    """Another reader computed another digest for the same epoch. One of the two is incorrect."""

    code = "snapshot_disputed"


class ArchiveRefused(LogError):
    """The archive cannot be used."""

    code = "archive_refused"

    def __init__(self, message: str, hint: str = "restore the segments from a copy, or start another archive") -> None:
        super().__init__(message, hint)


class ArchiveEmpty(ArchiveRefused):
    """The archive's location contains no segment, or does not exist."""

    code = "archive_empty"


class ArchiveGap(ArchiveRefused):
    """Segments are missing: before the first, between two segments, or between the last one and the log."""

    code = "archive_gap"


class ArchiveTooLate(ArchiveRefused):
    """A new archive cannot start: the log lacks its first entry, because of a truncation or a recovery."""

    code = "archive_too_late"

    def __init__(self, name: str, begin: int) -> None:
        super().__init__(
            f"{name} begins at offset {begin}, but an archive must begin with the first entry of the log",
            "start the cache writer without RINGLOG_ARCHIVE, or with an archive that ends there or later. "
            "Snapshots and the copies of log replicas cover the log",
        )


class ArchiveForged(ArchiveRefused):
    """A segment was changed: its digest, name and content do not match."""

    code = "archive_forged"


class ArchiveCut(ArchiveRefused):
    """The end of a segment is missing."""

    code = "archive_cut"


class ArchiveOfAnotherLog(ArchiveRefused):
    """The archive, or a segment, belongs to another cluster, topic or history than this log."""

    code = "archive_of_another_log"


class ArchivePlaceUnknown(ArchiveRefused):
    """The archive's location is neither a folder nor a supported store."""

    code = "archive_place_unknown"


class ArchiveUnavailable(LogError):
    """The archive's location could not be read or written."""

    code = "archive_unavailable"
    retriable = True


class CopyRefused(LogError):
    """A recovery cannot use this copy of the log."""

    code = "copy_refused"


class CopyDamaged(CopyRefused):
    """The copy of a log replica lacks bytes that the replica had synced."""

    code = "copy_damaged"


class CopyMissing(CopyRefused):
    """The folder contains no copy of the log and no archive, or the copy contains no cluster."""

    code = "copy_missing"


class CopyInUse(CopyRefused):
    """A running node uses the folder."""

    code = "copy_in_use"


class LogNotEmpty(LogError):
    """The target topic of a recovery has records.

    ``cluster_id`` is the cluster that they seem to belong to; empty: unknown.
    """

    code = "log_not_empty"

    def __init__(self, name: str, records: int, cluster_id: str) -> None:
        whose = f" of cluster {cluster_id}" if cluster_id else ""
        super().__init__(
            f"{name} has {records} records{whose}", "save a dump of the records, then recover with --replace"
        )
        self.cluster_id = cluster_id


LOG_MISSING = "check the names of cluster and broker; rebuild a lost log with: ringlog recover"
OTHER_MISSING = "check the name of the cluster; create a lost topic again with: ringlog cluster repair-topics"


class TopicMissing(LogError):
    """The topic does not exist, or does not exist yet."""

    code = "topic_missing"

    def __init__(self, topic: str, hint: str = "") -> None:
        is_log = topic.endswith(".metadata")
        super().__init__(f"topic {topic} does not exist", hint or (LOG_MISSING if is_log else OTHER_MISSING))
        self.topic = topic


class TopicMisconfigured(LogError):
    """A topic has a setting that could lose, reorder or reject entries. The message names the correcting command."""

    code = "topic_misconfigured"

    def __init__(self, topic: str, setting: str, found: str, wanted: str, mend: str) -> None:
        super().__init__(f"topic {topic}: {setting} is {found}, required: {wanted}", f"fix it with: {mend}")
        self.topic = topic
        self.setting = setting
        self.found = found
        self.wanted = wanted
        self.mend = mend


class CopiesUndecided(LogError):
    """The number of copies cannot be derived, because too few brokers are up. The operator must pass it."""

    code = "copies_undecided"

    def __init__(self, message: str) -> None:
        super().__init__(
            message,
            ("start all brokers, or pass the number of copies: ringlog cluster create NAME --kafka-replication N"),
        )


class ReplicaHalted(LogError):
    """The replica stopped permanently before ``offset``. ``code`` is the code of the reason."""

    def __init__(self, code: str, detail: str, offset: int, hint: str = "") -> None:
        super().__init__(f"the replica halted before offset {offset}: {code}: {detail}", hint)
        self.code = code
        self.detail = detail
        self.offset = offset


class ReplicaStopped(LogError):
    """The replica was stopped, or never started, while a caller waited for it."""

    code = "replica_stopped"


class BadRule(LogError):
    """A delay rule is not valid, or no log could obey it.

    The message names the field and the violated condition.
    """

    code = "bad_rule"


class UnknownRule(LogError):
    """No delay rule has that name."""

    code = "unknown_rule"


class WaitTimedOut(LogError, TimeoutError):
    """A wait reached its deadline. ``what`` names the awaited event, ``waited_s`` the duration in seconds."""

    code = "wait_timed_out"
    retriable = True

    def __init__(self, what: str, waited_s: float, hint: str = "") -> None:
        super().__init__(f"waited {waited_s:.1f} s for {what}", hint)
        self.what = what
        self.waited_s = waited_s

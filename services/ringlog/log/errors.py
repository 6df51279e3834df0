"""Errors of the log: what happened, and what the operator can do next.

    LogError
    ├── LogUnavailable        the broker gave no answer, or a bad one: an append's fate is then unknown
    ├── RecordTooLarge        a topic refuses a record for its size, and would refuse it for ever
    ├── LogDamaged            this is not the log that was read before; a replica halts on each of these
    │   ├── LogTruncated      it is shorter than what was read, or begins later
    │   ├── LogForked         it was cut and has grown again: another history
    │   └── LogReplaced       another topic took its name
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


class LogForked(LogDamaged):
    """The log lost entries that were read, and others took their place: its epochs are other states."""

    code = "log_forked"


class LogReplaced(LogDamaged):
    """The topic was deleted and made again: its id is another one."""

    code = "log_replaced"


class TopicMissing(LogError):
    """The topic does not exist (or not yet)."""

    code = "topic_missing"

    def __init__(self, topic: str, hint: str = "found the cluster first, or look at the name of the cluster") -> None:
        super().__init__(f"topic {topic} does not exist", hint)
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

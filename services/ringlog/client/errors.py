"""Errors of the client. Each message names the awaited party, the time waited and the next step.

ClientError
├── SubmissionTimedOut   the outcome of a request is unknown
├── InvalidSubmission    the request cannot be sent with these arguments
├── ClientBroken         a thread of the client failed; outcomes of pending requests are unknown
├── NotFounded           the log has no initial entry
├── DiscoveryImpossible  a process cannot be reached, or its stored view belongs to another process
├── LeftoversFound       a cluster of that name lost its log
├── SchemasIncompatible  a schema of this release conflicts with a registered one
├── TakeOverRefused      the take-over breaks a rule
├── WriteUnanswered      the broker did not acknowledge a row's write
├── RequestTimedOut      a read, or a write of a register, got too few answers in time
├── RequestImpossible    no plan can meet the consistency level
└── TooLarge             a key or value exceeds the limit of the replicas
"""

from __future__ import annotations

from ringlog.kernel.values import Epoch
from ringlog.log.errors import LogError


class ClientError(LogError):
    """Base of the client's errors."""

    code = "client_error"


class SubmissionTimedOut(ClientError):
    """No answer in time; the request may be applied later, or never.

    To go on waiting, submit the same command again with this request id and ``since_epoch``. To end it, ``withdraw``
    them.
    """

    code = "submission_timed_out"

    def __init__(self, request_id: str, since_epoch: Epoch, waited_s: float, waited_for: str) -> None:
        super().__init__(
            f"request {request_id} of epoch {since_epoch}: fate open, {waited_s:.1f} s waited for {waited_for}",
            f"submit it again with the same id, or withdraw it: withdraw({request_id!r}, {since_epoch})",
        )
        self.request_id = request_id
        self.since_epoch = since_epoch
        self.waited_s = waited_s


class InvalidSubmission(ClientError):
    """The request cannot be sent as asked for."""

    code = "invalid_submission"


class ClientBroken(ClientError):
    """A thread of the client has failed: a defect. The fates of requests that were under way are open."""

    code = "client_broken"

    def __init__(self, why: str) -> None:
        super().__init__(f"the client has failed: {why}", "report it; submit again with the same id, or withdraw")


class DiscoveryImpossible(ClientError):
    """A process that looks for its cluster cannot be asked, or what it keeps of that is damaged or another one's."""

    code = "discovery_impossible"


class ClusterNotCreated(ClientError):
    """The metadata log is there, but no cluster was founded on it."""

    code = "not_founded"

    def __init__(self, name: str) -> None:
        super().__init__(f"no cluster was founded on {name}", "found it first")


class LeftoversFound(ClientError):
    """Another cluster of that name has left topics with records, or is known here, and its log is lost."""

    code = "remains_of_another_cluster"

    def __init__(self, cluster: str, topics: tuple[str, ...], stored_id: str) -> None:
        shown = ", ".join(topics[:4]) + (f" and {len(topics) - 4} more" if len(topics) > 4 else "")
        subject = [f"these topics of it hold records: {shown}"] if topics else []
        subject += [f"this machine knows it by the id {stored_id}"] if stored_id else []
        super().__init__(
            f"a cluster {cluster} was here, and its log is missing or empty: {'; '.join(subject)}",
            "rebuild its log from a copy: ringlog recover. For a new cluster take another name, or pass --anew",
        )


class SchemasIncompatible(ClientError):
    """A schema of this release does not fit one that the cluster has; readers of the other could not read it.

    ``problems``: what speaks against it, with record and field.
    """

    code = "schemas_incompatible"

    def __init__(self, topic: str, problems: tuple[str, ...]) -> None:
        shown = "; ".join(problems[:5]) + (f"; and {len(problems) - 5} more" if len(problems) > 5 else "")
        super().__init__(f"{topic}: {self.code}: {shown}", "run a release whose schemas are compatible")
        self.problems = problems


class TakeOverRefused(ClientError):
    """The take-over breaks a rule other than that of the term."""

    code = "take_over_refused"


class WriteUnanswered(ClientError):
    """The broker did not acknowledge the write of a row. The same mutation may be sent again: copies are one write."""

    code = "write_unanswered"

    def __init__(self, table: str, why: str) -> None:
        super().__init__(f"a write to {table}: {why}", "send the same mutation again: copies of it are one write")


class RequestTimedOut(ClientError):
    """Too few answers in time. A read may be asked again; of a write nobody knows whether it will be seen.

    ``refused``: who refused the last time, and with which code.
    """

    code = "request_timed_out"

    def __init__(
        self, subject: str, waited_s: float, waited_for: tuple[str, ...], epoch: Epoch, refused: tuple[str, ...] = ()
    ) -> None:
        nodes = ", ".join(waited_for) or "a plan that can succeed"
        refusals = f"; refused: {', '.join(refused)}" if refused else ""
        super().__init__(
            f"{subject}: {waited_s:.1f} s waited for {nodes} at epoch {epoch}{refusals}",
            "ask again; a write with the same timestamp and value has the same effect once or twice",
        )
        self.waited_for = waited_for
        self.epoch = epoch
        self.refused = refused


class RequestImpossible(ClientError):
    """The placement has no replicas that could meet the consistency level; nothing was asked of anybody.

    ``reason``: unknown_keyspace, unknown_table, no_tablets, no_replicas, no_local_replicas or too_few_replicas.
    """

    code = "request_impossible"

    def __init__(self, subject: str, reason: str, detail: str) -> None:
        super().__init__(f"{subject}: {reason}: {detail}", "choose another level, or create what is missing")
        self.reason = reason


class TooLarge(ClientError):
    """Key or value is larger than a replica takes."""

    code = "too_large"

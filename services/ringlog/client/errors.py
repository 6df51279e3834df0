"""Errors of the client. Each message names the awaited party, the time waited and the next step.

ClientError
├── SubmissionTimedOut   the outcome of a request is unknown
├── InvalidSubmission    the request cannot be sent with these arguments
├── NoClusterGiven       neither arguments nor variables name a cluster, and none is in use
├── ClientClosed         the client is closed: nothing was sent
├── ClientBroken         a thread of the client failed; outcomes of pending requests are unknown
├── ClusterNotCreated    the log has no initial entry
├── DiscoveryImpossible  a process cannot be reached, or its stored view belongs to another process
├── LeftoversFound       a cluster of that name lost its log
├── SchemasIncompatible  a schema of this release conflicts with a registered one
├── TakeOverRefused      the take-over breaks a rule
├── WriteUnanswered      the broker did not acknowledge a row's write
├── RequestTimedOut      a read, or a write of a register, got too few answers in time
├── RequestImpossible    no plan can meet the consistency level
├── NotAuthorized        the principal may not read and write the keyspace
└── TooLarge             a key or value exceeds the limit of the replicas
"""

from __future__ import annotations

from ringlog.kernel.values import Command, Epoch
from ringlog.log.errors import LogError


class ClientError(LogError):
    """Base of the client's errors."""

    code = "client_error"


class SubmissionTimedOut(ClientError, TimeoutError):
    """No answer arrived in time. The request may be applied later, or never.

    To continue to wait, submit the same command again with this request id and ``since_epoch``. To end the request,
    call ``withdraw`` with both. ``command``: the submitted one, if the client knows it.
    """

    code = "submission_timed_out"
    retriable = True

    def __init__(self, request_id: str, since_epoch: Epoch, waited_s: float, waited_for: str) -> None:
        super().__init__(
            f"request {request_id} of epoch {since_epoch}: outcome unknown, {waited_s:.1f} s waited for {waited_for}",
            f"submit it again with the same id, or withdraw it: withdraw({request_id!r}, {since_epoch})",
        )
        self.request_id = request_id
        self.since_epoch = since_epoch
        self.waited_s = waited_s
        self.command: Command | None = None


class InvalidSubmission(ClientError):
    """The request cannot be sent with these arguments."""

    code = "invalid_submission"


class NoClusterGiven(ClientError):
    """Neither the arguments nor the environment name brokers and cluster, and no cluster is in use."""

    code = "no_cluster_given"

    def __init__(self) -> None:
        super().__init__(
            "no brokers or no cluster", "pass bootstrap_servers and cluster, or choose one: ringlog cluster use NAME"
        )


class ClientClosed(ClientError):
    """The client is closed, or was never started. Nothing was sent."""

    code = "client_closed"

    def __init__(self) -> None:
        super().__init__("the client is closed: nothing was sent", "create another client")


class ClientBroken(ClientError):
    """A thread of the client failed because of a defect. The outcomes of pending requests are unknown."""

    code = "client_broken"

    def __init__(self, why: str) -> None:
        super().__init__(
            f"the client has failed: {why}", "report the defect; submit again with the same id, or withdraw the request"
        )


class DiscoveryImpossible(ClientError):
    """A process in discovery cannot be reached, or its stored view is damaged or belongs to another process."""

    code = "discovery_impossible"


class ClusterNotCreated(ClientError):
    """The metadata log exists, but it contains no cluster."""

    code = "not_founded"

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} contains no cluster", "create it: ringlog cluster create NAME")


class LeftoversFound(ClientError):
    """A cluster with this name left topics with records, or this machine knows it, and its log is lost."""

    code = "remains_of_another_cluster"

    def __init__(self, cluster: str, topics: tuple[str, ...], stored_id: str) -> None:
        shown = ", ".join(topics[:4]) + (f" and {len(topics) - 4} more" if len(topics) > 4 else "")
        subject = [f"these topics contain its records: {shown}"] if topics else []
        subject += [f"this machine knows it by the id {stored_id}"] if stored_id else []
        super().__init__(
            f"the log of an earlier cluster {cluster} is missing or empty: {'; '.join(subject)}",
            "rebuild its log from a copy: ringlog recover. For a new cluster, choose another name or --replace-lost",
        )


class SchemasIncompatible(ClientError):
    """A schema of this release is not compatible with one that the cluster uses.

    ``problems``: the incompatible records and fields.
    """

    code = "schemas_incompatible"

    def __init__(self, topic: str, problems: tuple[str, ...]) -> None:
        shown = "; ".join(problems[:5]) + (f"; and {len(problems) - 5} more" if len(problems) > 5 else "")
        super().__init__(f"{topic}: {self.code}: {shown}", "run a release whose schemas are compatible")
        self.problems = problems


class TakeOverRefused(ClientError):
    """The take-over breaks a rule other than the rule for terms."""

    code = "take_over_refused"


class WriteUnanswered(ClientError):
    """The broker did not acknowledge the write of a row. Send the same mutation again: copies count as one write."""

    code = "write_unanswered"
    retriable = True

    def __init__(self, table: str, why: str) -> None:
        super().__init__(f"a write to {table}: {why}", "send the same mutation again: its copies count as one write")


class RequestTimedOut(ClientError, TimeoutError):
    """Too few replicas answered in time. Repeat a read. The outcome of a write is unknown.

    ``refused``: the replicas that rejected the last attempt, with their codes.
    """

    code = "request_timed_out"
    retriable = True

    def __init__(
        self, subject: str, waited_s: float, waited_for: tuple[str, ...], epoch: Epoch, refused: tuple[str, ...] = ()
    ) -> None:
        nodes = ", ".join(waited_for) or "a plan that can succeed"
        refusals = f"; rejected by: {', '.join(refused)}" if refused else ""
        super().__init__(
            f"{subject}: no answer from {nodes} at epoch {epoch} after {waited_s:.1f} s{refusals}",
            "repeat the request; a write with the same timestamp and value has the same effect once or twice",
        )
        self.waited_for = waited_for
        self.epoch = epoch
        self.refused = refused


class RequestImpossible(ClientError):
    """The placement has too few replicas for the consistency level. No request was sent.

    ``reason``: unknown_keyspace, unknown_table, no_tablets, no_replicas, no_local_replicas or too_few_replicas.
    """

    code = "request_impossible"

    def __init__(self, subject: str, reason: str, detail: str) -> None:
        super().__init__(
            f"{subject}: {reason}: {detail}", "choose another level, or create the missing keyspace, table or replicas"
        )
        self.reason = reason


class NotAuthorized(ClientError):
    """The principal of the certificate may not read and write the rows of the keyspace.

    ``epoch``: the state that lacks the right. Replicas that were behind may have applied a write.
    """

    code = "not_authorized"

    def __init__(self, subject: str, detail: str, epoch: Epoch) -> None:
        way = "grant the role (ringlog principal grant NAME --role application), or use another certificate"
        super().__init__(f"{subject}: {detail} (epoch {epoch})", way)
        self.epoch = epoch


class TooLarge(ClientError):
    """Key or value exceeds the limit of the replicas."""

    code = "too_large"

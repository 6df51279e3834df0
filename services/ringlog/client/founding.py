"""Founding: the first entry of a log gives the cluster its id, its name and its settings.

Any number of processes may try at once. The cluster is that of the first valid founding entry; the others read who it
was. Making the topics can be repeated until it succeeds: nothing counts before that entry is folded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from confluent_kafka.admin import AdminClient

from ringlog.client.direct import TIMEOUT_S, DirectAuthor
from ringlog.client.errors import ClientError, NotFounded
from ringlog.client.results import AppliedResult, RejectedResult
from ringlog.client.schemas import publish_schemas
from ringlog.kernel.commands.cluster import InitializeCluster
from ringlog.kernel.values import Micros
from ringlog.log.beginning import Beginning
from ringlog.log.folding import BEGINNING, follow
from ringlog.log.identity import check_begin
from ringlog.log.opening import beginning_of, open_metadata
from ringlog.log.port import MetadataLog
from ringlog.log.reading import read_to_end
from ringlog.log.replay import Tell, catch_up, say
from ringlog.log.replica import LogReplica
from ringlog.log.topics import (
    admin_client,
    copies_of,
    create_topics,
    profile_of,
    verify_topics,
)
from ringlog.protocol.draw import Draw
from ringlog.runtime.clock import Clock


@dataclass(frozen=True, slots=True)
class Founding:
    """The cluster of a log.

    ``here``: this call founded it. ``submitter`` and ``at``: who did, and when by its clock; empty and 0 where that
    entry was not read. ``copies``: of each entry; 0: not looked up.
    """

    cluster_id: str
    name: str
    submitter: str
    at: Micros
    here: bool
    copies: int = 0


class FoundingRefused(ClientError):
    """The founding command breaks a rule. ``code`` and ``detail`` are those of the rule."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"the cluster cannot be founded: {code}: {detail}", "correct the name or the settings")
        self.code = code
        self.detail = detail


def found(
    metadata: MetadataLog,
    replica: LogReplica,
    name: str,
    settings: Mapping[str, int] | None = None,
    *,
    submitter: str = "founder",
    timeout_s: float = TIMEOUT_S,
    clock: Clock | None = None,
    draw: Draw | None = None,
    tell: Tell = say,
) -> Founding:
    """Found the cluster on a log that ``replica`` folds, or learn who did; read back in both cases.

    Raises FoundingRefused, SubmissionTimedOut (call it again), LogError.
    """
    here = False
    if catch_up(replica, silence_s=timeout_s, tell=tell).epoch == 0:
        author = DirectAuthor(metadata, replica, submitter, clock, draw)
        command = InitializeCluster(name, tuple(sorted((settings or {}).items())))
        answer = author.submit(command, timeout_s=timeout_s, since_epoch=0)
        if isinstance(answer, RejectedResult) and answer.code != "already_founded":
            raise FoundingRefused(answer.code, answer.detail)
        here = isinstance(answer, AppliedResult)
    founder, state = replica.founder, replica.state
    if founder is None:  # the replica began with a snapshot
        return Founding(state.cluster_id, state.name, "", 0, here)
    return Founding(founder.cluster_id, state.name, founder.submitter, founder.at, here)


def founded_as(
    metadata: MetadataLog, look: Callable[[], None] = lambda: None, beginning: Beginning | None = None
) -> str:
    """The id of the log's cluster, which is that of its first valid founding entry; nothing after it is read.

    ``look``: called before each wait; may raise. ``beginning``: finds a snapshot that says it where the founding entry
    was let go. Raises NotFounded, LogTruncated, LogUnavailable, TopicMissing.
    """
    begin = metadata.begin_offset()
    if begin > 0:
        start = BEGINNING if beginning is None else beginning.start(metadata, metadata.identity(), lambda _: ())
        check_begin(metadata.name, begin, start.position)
        return start.state.cluster_id
    tail = metadata.tail(begin)
    try:
        for made in follow(read_to_end(metadata, tail, look=look)):
            if made.founder is not None:
                return made.founder.cluster_id
    finally:
        tail.close()
    raise NotFounded(metadata.name)


def found_cluster(
    bootstrap_servers: str,
    cluster: str,
    settings: Mapping[str, int] | None = None,
    *,
    submitter: str = "founder",
    timeout_s: float = TIMEOUT_S,
    replication: int | None = None,
    tell: Tell = say,
) -> Founding:
    """Make the cluster's topics where they are missing, check their settings, publish the schemas, and found it.

    ``replication``: copies of each record; None: three on three brokers, one on a single one. Raises CopiesUndecided
    where it is neither, TopicMisconfigured, SchemasIncompatible, LogUnavailable, and what ``found`` raises. Calling it
    again goes on where it stopped.
    """
    admin = make_topics(bootstrap_servers, cluster, replication)
    metadata = open_metadata(bootstrap_servers, cluster, submitter)
    try:
        with LogReplica(metadata, beginning=beginning_of(bootstrap_servers, cluster)) as replica:
            founding = found(metadata, replica, cluster, settings, submitter=submitter, timeout_s=timeout_s, tell=tell)
            return replace(founding, copies=copies_of(admin, cluster))
    finally:
        metadata.close()


def make_topics(bootstrap_servers: str, cluster: str, replication: int | None) -> AdminClient:
    """Make what is missing, check all, publish the schemas. Arguments and errors are those of ``found_cluster``."""
    admin = admin_client(bootstrap_servers)
    named = len({one.strip() for one in bootstrap_servers.split(",") if one.strip()})
    create_topics(admin, cluster, profile_of(admin, cluster, replication, named))
    verify_topics(admin, cluster, bootstrap_servers, tend=True)
    publish_schemas(bootstrap_servers, cluster)
    return admin

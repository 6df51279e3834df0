"""Founding: the first entry of a log gives the cluster its id, its name and its settings.

Any number of processes may try at once. The cluster is that of the first valid founding entry; the others read who it
was. Making the topics can be repeated until it succeeds: nothing counts before that entry is folded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from confluent_kafka.admin import AdminClient

from ringlog.client.creation.schemas import publish_schemas
from ringlog.client.direct import TIMEOUT_S, DirectAuthor
from ringlog.client.errors import ClientError, LeftoversFound, NotFounded
from ringlog.kernel.commands.cluster.cluster import InitializeCluster
from ringlog.kernel.model.settings import SETTINGS, setting
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Micros
from ringlog.log.errors import TopicMissing
from ringlog.log.folding import BEGINNING, follow
from ringlog.log.kafka.topic_state import has_log, remains, repair_topics
from ringlog.log.kafka.topics import (
    METADATA,
    TopicProfile,
    admin_client,
    copies_of,
    create_topics,
    profile_of,
    topic_name,
    verify_topics,
)
from ringlog.log.opening import beginning_of, open_metadata
from ringlog.log.port import MetadataLog
from ringlog.log.reading import read_to_end
from ringlog.log.replicas.identity import check_begin
from ringlog.log.replicas.replay import Tell, catch_up, say
from ringlog.log.replicas.replica import LogReplica
from ringlog.log.replicas.start_point import Beginning
from ringlog.protocol.effects import Draw
from ringlog.protocol.submission.results import AppliedResult, RejectedResult
from ringlog.runtime.clock import Clock


@dataclass(frozen=True, slots=True)
class Founding:
    """The cluster of a log.

    ``here``: this call founded it. ``submitter`` and ``at``: who did, and when by its clock; empty and 0 where that
    entry was not read. ``copies``: of each entry; 0: not looked up. ``ignored``: settings that were given and that the
    cluster does not have, since it was there already.
    """

    cluster_id: str
    name: str
    submitter: str
    at: Micros
    here: bool
    copies: int = 0
    ignored: tuple[str, ...] = ()


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
    ignored = () if here else tuple(sorted(key for key, value in (settings or {}).items() if _has(state, key) != value))
    if founder is None:  # the replica began with a snapshot
        return Founding(state.cluster_id, state.name, "", 0, here, ignored=ignored)
    return Founding(founder.cluster_id, state.name, founder.submitter, founder.at, here, ignored=ignored)


def _has(state: ClusterState, name: str) -> int | None:
    return setting(state, name) if name in SETTINGS else None


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
    stored_id: str = "",
    anew: bool = False,
    tell: Tell = say,
) -> Founding:
    """Make the cluster's topics where they are missing, check their settings, publish the schemas, and found it.

    ``replication``: copies of each record; None: three on three brokers, one on a single one. Raises CopiesUndecided
    where it is neither, TopicMisconfigured, SchemasIncompatible, LogUnavailable, and what ``found`` raises. Calling it
    again goes on where it stopped.

    ``stored_id``: of a cluster that was known at this place. Raises RemainsFound if the log has no record, and the
    cluster is known or other topics of that name have records; unless ``anew``.
    """
    if not anew:
        reject_leftovers(bootstrap_servers, cluster, stored_id)
    admin = create_cluster_topics(bootstrap_servers, cluster, replication)
    metadata = open_metadata(bootstrap_servers, cluster, submitter)
    try:
        with LogReplica(metadata, beginning=beginning_of(bootstrap_servers, cluster)) as replica:
            founding = found(metadata, replica, cluster, settings, submitter=submitter, timeout_s=timeout_s, tell=tell)
            return replace(founding, copies=copies_of(admin, cluster))
    finally:
        metadata.close()


def reject_leftovers(bootstrap_servers: str, cluster: str, stored_id: str = "") -> None:
    """Raise RemainsFound if a cluster of that name lost its log; LogUnavailable."""
    admin = admin_client(bootstrap_servers)
    left = remains(admin, cluster)
    if left or (stored_id and not has_log(admin, cluster)):
        raise LeftoversFound(cluster, left, stored_id)


def create_cluster_topics(bootstrap_servers: str, cluster: str, replication: int | None) -> AdminClient:
    """Make what is missing, check all, publish the schemas. Arguments and errors are those of ``found_cluster``."""
    admin = admin_client(bootstrap_servers)
    create_topics(admin, cluster, plan_replication(admin, bootstrap_servers, cluster, replication))
    verify_topics(admin, cluster, bootstrap_servers, tend=True)
    publish_schemas(bootstrap_servers, cluster)
    return admin


def plan_replication(admin: AdminClient, bootstrap_servers: str, cluster: str, replication: int | None) -> TopicProfile:
    """How many copies the topics that are missing would get. Raises CopiesUndecided, LogUnavailable."""
    named = len({one.strip() for one in bootstrap_servers.split(",") if one.strip()})
    return profile_of(admin, cluster, replication, named)


def repaired(bootstrap_servers: str, cluster: str, replication: int | None = None) -> dict[str, str]:
    """Repair the topics of a cluster and publish the schemas; return each topic that was changed, and how.

    Raises TopicMissing if its log is lost, CopiesUndecided, TopicMisconfigured, SchemasIncompatible, LogUnavailable.
    """
    admin = admin_client(bootstrap_servers)
    if not has_log(admin, cluster):
        raise TopicMissing(topic_name(cluster, METADATA.suffix))
    profile = plan_replication(admin, bootstrap_servers, cluster, replication)
    changed = repair_topics(admin, cluster, bootstrap_servers, profile)
    publish_schemas(bootstrap_servers, cluster)
    return changed

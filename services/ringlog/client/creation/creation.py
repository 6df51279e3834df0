"""Creation of a cluster: the initial entry of a log gives the cluster its id, name and settings.

Invariant: a log has one cluster, that of its first valid initial entry. Any number of processes may try to create it at
the same time; all of them read the same result from the log. The creation of topics can be repeated until it succeeds,
because nothing takes effect before the initial entry is applied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from confluent_kafka.admin import AdminClient

from ringlog.client.creation.schemas import publish_schemas
from ringlog.client.direct import TIMEOUT_S, DirectAuthor
from ringlog.client.errors import ClientError, ClusterNotCreated, LeftoversFound
from ringlog.kernel.commands.cluster.cluster import InitializeCluster
from ringlog.kernel.model.settings import SETTINGS, setting
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Micros, Value, replace
from ringlog.log.author import this_sender
from ringlog.log.errors import TopicMissing
from ringlog.log.folding import BEGINNING, follow
from ringlog.log.kafka.topic_state import has_log, leftover_topics, repair_topics
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
from ringlog.log.opening import open_metadata, start_point_finder
from ringlog.log.port import MetadataLog
from ringlog.log.reading import read_to_end
from ringlog.log.replicas.identity import check_begin
from ringlog.log.replicas.replay import ProgressCallback, catch_up, log_progress
from ringlog.log.replicas.replica import LogReplica
from ringlog.log.replicas.start_point import StartPointFinder
from ringlog.protocol.effects import Draw
from ringlog.protocol.submission.results import AppliedResult, RejectedResult
from ringlog.runtime.clock import Clock


class ClusterCreation(Value):
    """The cluster of a log.

    ``here``: whether this call created it. ``submitter``, ``at``: author and timestamp of the initial entry; empty and
    0 if that entry was not read. ``copies``: replication of the topics, 0 if unknown. ``ignored``: given settings that
    an existing cluster does not have.
    """

    cluster_id: str
    name: str
    submitter: str
    at: Micros
    here: bool
    copies: int = 0
    ignored: tuple[str, ...] = ()


class CreationRefused(ClientError):
    """The initial command breaks a rule. ``code`` and ``detail`` are those of the rule."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"cannot create the cluster: {code}: {detail}", "correct the name or the settings")
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
    on_progress: ProgressCallback = log_progress,
) -> ClusterCreation:
    """Create the cluster on the log that ``replica`` follows, or return the existing one. Both are read back from the
    log.

    Raises CreationRefused, SubmissionTimedOut (call it again), LogError.
    """
    here = False
    if catch_up(replica, silence_s=timeout_s, on_progress=on_progress).epoch == 0:
        author = DirectAuthor(metadata, replica, this_sender(submitter), clock, draw)
        command = InitializeCluster(name, tuple(sorted((settings or {}).items())))
        answer = author.submit(command, timeout_s=timeout_s, since_epoch=0)
        # ``already_founded``: another process won the race. Its cluster is the result.
        if isinstance(answer, RejectedResult) and answer.code != "already_founded":
            raise CreationRefused(answer.code, answer.detail)
        here = isinstance(answer, AppliedResult)
    origin, state = replica.origin, replica.state
    ignored = () if here else tuple(sorted(key for key, value in (settings or {}).items() if _has(state, key) != value))
    # A replica that starts from a snapshot has not read the initial entry.
    if origin is None:
        return ClusterCreation(state.cluster_id, state.name, "", 0, here, ignored=ignored)
    return ClusterCreation(origin.cluster_id, state.name, origin.submitter, origin.at, here, ignored=ignored)


def _has(state: ClusterState, name: str) -> int | None:
    return setting(state, name) if name in SETTINGS else None


def cluster_id_of_log(
    metadata: MetadataLog, check: Callable[[], None] = lambda: None, start_finder: StartPointFinder | None = None
) -> str:
    """Return the cluster id of the first valid initial entry. Later entries are not read.

    ``check``: called before each wait; may raise. ``start_finder``: source of a snapshot that contains the id if the
    initial entry was truncated. Raises ClusterNotCreated, LogTruncated, LogUnavailable, TopicMissing.
    """
    begin = metadata.begin_offset()
    # The initial entry was truncated. Only a snapshot still contains the id.
    if begin > 0:
        start = BEGINNING if start_finder is None else start_finder.start(metadata, metadata.identity(), lambda _: ())
        check_begin(metadata.name, begin, start.position)
        return start.state.cluster_id
    tail = metadata.tail(begin)
    try:
        for made in follow(read_to_end(metadata, tail, check=check)):
            if made.origin is not None:
                return made.origin.cluster_id
    finally:
        tail.close()
    raise ClusterNotCreated(metadata.name)


def create_cluster(
    bootstrap_servers: str,
    cluster: str,
    settings: Mapping[str, int] | None = None,
    *,
    submitter: str = "founder",
    timeout_s: float = TIMEOUT_S,
    replication: int | None = None,
    stored_id: str = "",
    ignore_remains: bool = False,
    on_progress: ProgressCallback = log_progress,
) -> ClusterCreation:
    """Create missing topics, check topic settings, publish the schemas and create the cluster.

    Call it again to continue after an error.

    Args:
        replication: Copies of each record. Default: three on three brokers, one on a single broker.
        stored_id: Id of a cluster of this name, as stored on this machine.
        ignore_remains: Skip the check for the remains of an earlier cluster.

    Raises CopiesUndecided if the default does not apply, TopicMisconfigured, SchemasIncompatible, LogUnavailable, the
    errors of ``found``. Raises LeftoversFound if the log has no records, but ``stored_id`` is given or other topics of
    the cluster have records.
    """
    if not ignore_remains:
        reject_leftovers(bootstrap_servers, cluster, stored_id)
    admin = create_cluster_topics(bootstrap_servers, cluster, replication)
    metadata = open_metadata(bootstrap_servers, cluster, submitter)
    try:
        with LogReplica(metadata, start_finder=start_point_finder(bootstrap_servers, cluster)) as replica:
            creation = found(
                metadata, replica, cluster, settings, submitter=submitter, timeout_s=timeout_s, on_progress=on_progress
            )
            return replace(creation, copies=copies_of(admin, cluster))
    finally:
        metadata.close()


def reject_leftovers(bootstrap_servers: str, cluster: str, stored_id: str = "") -> None:
    """Check that no cluster of that name lost its log. Raises LeftoversFound, LogUnavailable."""
    admin = admin_client(bootstrap_servers)
    left = leftover_topics(admin, cluster)
    if left or (stored_id and not has_log(admin, cluster)):
        raise LeftoversFound(cluster, left, stored_id)


def create_cluster_topics(bootstrap_servers: str, cluster: str, replication: int | None) -> AdminClient:
    """Create missing topics, check all topics, publish the schemas. Arguments and errors as in ``create_cluster``."""
    admin = admin_client(bootstrap_servers)
    create_topics(admin, cluster, plan_replication(admin, bootstrap_servers, cluster, replication))
    verify_topics(admin, cluster, bootstrap_servers, tend=True)
    publish_schemas(bootstrap_servers, cluster)
    return admin


def plan_replication(admin: AdminClient, bootstrap_servers: str, cluster: str, replication: int | None) -> TopicProfile:
    """Return the profile that missing topics would get. Raises CopiesUndecided, LogUnavailable."""
    named = len({one.strip() for one in bootstrap_servers.split(",") if one.strip()})
    return profile_of(admin, cluster, replication, named)


def repaired(bootstrap_servers: str, cluster: str, replication: int | None = None) -> dict[str, str]:
    """Repair the topics of a cluster and publish the schemas. Return each changed topic with a description of the
    change.

    Raises TopicMissing if the log is lost, CopiesUndecided, TopicMisconfigured, SchemasIncompatible, LogUnavailable.
    """
    admin = admin_client(bootstrap_servers)
    if not has_log(admin, cluster):
        raise TopicMissing(topic_name(cluster, METADATA.suffix))
    profile = plan_replication(admin, bootstrap_servers, cluster, replication)
    changed = repair_topics(admin, cluster, bootstrap_servers, profile)
    publish_schemas(bootstrap_servers, cluster)
    return changed

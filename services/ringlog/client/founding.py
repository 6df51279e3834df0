"""Founding: the first entry of a log gives the cluster its id, its name and its settings.

Any number of processes may try at once. The cluster is that of the first valid founding entry; the others read who it
was. Making the topics can be repeated until it succeeds: nothing counts before that entry is folded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ringlog.client.direct import TIMEOUT_S, DirectAuthor
from ringlog.client.errors import ClientError, NotFounded
from ringlog.client.results import AppliedResult, RejectedResult
from ringlog.kernel.commands.cluster import InitializeCluster
from ringlog.kernel.values import Micros
from ringlog.log.errors import LogTruncated
from ringlog.log.folding import follow
from ringlog.log.opening import open_metadata
from ringlog.log.port import MetadataLog
from ringlog.log.producer import AckedProducer
from ringlog.log.reading import read_to_end
from ringlog.log.replay import Tell, catch_up, say
from ringlog.log.replica import Replica
from ringlog.log.topics import (
    SCHEMAS,
    admin_client,
    copies_of,
    create_topics,
    profile_of,
    topic_name,
    verify_topics,
)
from ringlog.protocol.draw import Draw
from ringlog.runtime.clock import Clock
from ringlog_schemas import published


@dataclass(frozen=True, slots=True)
class Founding:
    """The cluster of a log.

    ``here``: this call founded it. ``submitter`` and ``at``: who did, and when by its clock. ``copies``: of each entry;
    0: not looked up.
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
    replica: Replica,
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
    founder = replica.founder
    assert founder is not None, "an epoch above 0 has a founding entry"
    return Founding(founder.cluster_id, replica.state.name, founder.submitter, founder.at, here)


def founded_as(metadata: MetadataLog, look: Callable[[], None] = lambda: None) -> str:
    """The id of the log's cluster, which is that of its first valid founding entry; nothing after it is read.

    ``look``: called before each wait; may raise. Raises NotFounded, LogTruncated, LogUnavailable, TopicMissing.
    """
    begin = metadata.begin_offset()
    if begin > 0:
        raise LogTruncated(f"{metadata.name} begins at offset {begin}", "entries were deleted: restore the topic")
    tail = metadata.tail(begin)
    try:
        for made in follow(read_to_end(metadata, tail, look=look)):
            if made.founder is not None:
                return made.founder.cluster_id
    finally:
        tail.close()
    raise NotFounded(metadata.name)


def publish_schemas(bootstrap_servers: str, cluster: str) -> int:
    """Write every schema to the compacted topic ``schemas``, so that any consumer can read the other topics.

    Key: the fingerprint in hex; value: the schema's JSON. The same again changes nothing: a release that brings new
    ones publishes them with this. Returns how many there are. Raises LogUnavailable.
    """
    schemas = published()
    producer = AckedProducer(bootstrap_servers, "ringlog-schemas")
    try:
        topic = topic_name(cluster, SCHEMAS.suffix)
        sent = [producer.send(topic, text.encode(), key=key.encode(), partition=0) for key, text in schemas]
        for future in sent:
            future.result(TIMEOUT_S)
    finally:
        producer.close()
    return len(schemas)


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
    where it is neither, TopicMisconfigured, LogUnavailable, and what ``found`` raises. Calling it again goes on where
    it stopped.
    """
    admin = admin_client(bootstrap_servers)
    named = len({one.strip() for one in bootstrap_servers.split(",") if one.strip()})
    profile = profile_of(admin, cluster, replication, named)
    create_topics(admin, cluster, profile)
    verify_topics(admin, cluster, bootstrap_servers, tend=True)
    publish_schemas(bootstrap_servers, cluster)
    metadata = open_metadata(bootstrap_servers, cluster, submitter)
    try:
        with Replica(metadata) as replica:
            founding = found(metadata, replica, cluster, settings, submitter=submitter, timeout_s=timeout_s, tell=tell)
            return replace(founding, copies=copies_of(admin, cluster))
    finally:
        metadata.close()

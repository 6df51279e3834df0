"""Deleting a cluster at the broker: its topics by their exact names, the metadata log last.

While the log exists, it contains the cluster's id. So an interrupted deletion can be repeated, and a new cluster of the
same name is not deleted by mistake.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation

from ringlog.client.creation.creation import cluster_id_of_log
from ringlog.client.errors import ClusterNotCreated
from ringlog.kernel.values import Value
from ringlog.log.errors import LogDamaged, LogUnavailable, TopicMissing
from ringlog.log.kafka.topics import (
    CDC_EXPORTS,
    METADATA,
    REQUEST_TIMEOUT_S,
    TOPICS,
    admin_client,
    delete_topic,
    existing_topics,
    topic_name,
)
from ringlog.log.opening import open_metadata, start_point_finder

GONE_S = 5.0
"""Brokers may still show a topic for so long after the controller has deleted it."""
LOOK_S = 0.2
OWNED = (CDC_EXPORTS, *TOPICS)


class ClusterAtBroker(Value):
    """The cluster of a name at a broker.

    ``cluster_id``: empty if no log says it; ``topics``: its existing topics, the log last; ``denied``: those of them
    that this login may not delete.
    """

    cluster_id: str
    topics: tuple[str, ...]
    denied: tuple[str, ...]


def cluster_at(bootstrap_servers: str, cluster: str) -> ClusterAtBroker:
    """Return the id and the topics of the cluster at these brokers. Raises LogUnavailable."""
    admin = admin_client(bootstrap_servers)
    found = [topic_name(cluster, spec.suffix) for spec in existing_topics(admin, cluster, OWNED)]
    log = topic_name(cluster, METADATA.suffix)
    topics = (*(name for name in found if name != log), *(name for name in found if name == log))
    if not topics:
        return ClusterAtBroker("", (), ())
    asked = admin.describe_topics(
        TopicCollection(list(topics)), include_authorized_operations=True, request_timeout=REQUEST_TIMEOUT_S
    )
    try:
        rights = {name: asked[name].result(REQUEST_TIMEOUT_S + 5).authorized_operations for name in topics}
    except (KafkaException, TimeoutError) as error:
        raise LogUnavailable(f"cannot read the ACLs of the topics of {cluster}: {error}", "try again") from error
    denied = tuple(name for name, operations in rights.items() if AclOperation.DELETE not in (operations or ()))
    try:
        with closing(open_metadata(bootstrap_servers, cluster, "deletion")) as metadata:
            cluster_id = cluster_id_of_log(
                metadata, start_finder=start_point_finder(bootstrap_servers, cluster, warns=False)
            )
    except (LogDamaged, ClusterNotCreated, TopicMissing):
        cluster_id = ""
    return ClusterAtBroker(cluster_id, topics, denied)


def delete_topics(
    bootstrap_servers: str, cluster: str, topics: tuple[str, ...], report: Callable[[str], None]
) -> tuple[str, ...]:
    """Delete the topics in this order; ``report`` gets each. Return topics of the cluster that exist afterwards.

    Processes that still run may create a topic again. Raises LogUnavailable at the first topic that stays.
    """
    admin = admin_client(bootstrap_servers)
    for name in topics:
        try:
            delete_topic(admin, name)
        except LogUnavailable as error:
            text = f"topic {name} was not deleted, nor were the topics after it: {error.message}"
            raise LogUnavailable(text, "repeat the command") from error
        report(name)
    deadline = time.monotonic() + GONE_S
    while (left := existing_topics(admin, cluster, OWNED)) and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    return tuple(topic_name(cluster, spec.suffix) for spec in left)

"""The one place where a process opens the metadata log (delayable if ``RINGLOG_DELAYS`` names a folder of rules) and
its snapshots.
"""

from __future__ import annotations

from ringlog.files import delays_folder
from ringlog.log.delays.control import FolderDelays
from ringlog.log.delays.delayable import DelayableLog
from ringlog.log.kafka.adapter import KafkaLog
from ringlog.log.kafka.topics import METADATA, SNAPSHOTS, admin_client, delete_before, topic_name
from ringlog.log.port import MetadataLog
from ringlog.log.replicas.start_point import Beginning, SnapshotTopic


def open_metadata(bootstrap_servers: str, cluster: str, participant: str, *, is_at_ease: bool = False) -> MetadataLog:
    """The cluster's metadata log, for a participant of that name (see ``ringlog.log.delays.rules``); the caller closes
    it.

    ``is_at_ease``: see ``KafkaLog``.
    """
    log = KafkaLog(bootstrap_servers, cluster, is_at_ease=is_at_ease)
    folder = delays_folder()
    return log if folder is None else DelayableLog(log, FolderDelays(folder, warn=True), participant)


def open_snapshots(bootstrap_servers: str, cluster: str) -> SnapshotTopic:
    """The cluster's snapshots; the caller closes them."""
    return SnapshotTopic(KafkaLog(bootstrap_servers, cluster, SNAPSHOTS))


def beginning_of(bootstrap_servers: str, cluster: str, *, warns: bool = True, oldest: bool = False) -> Beginning:
    """Where a replica of the cluster begins; see ``ringlog.log.replicas.start_point``."""
    return Beginning(lambda: open_snapshots(bootstrap_servers, cluster), warns=warns, oldest=oldest)


def delete_entries(bootstrap_servers: str, cluster: str, offset: int) -> None:
    """Have the broker delete the metadata log's entries before an offset; see
    ``ringlog.agents.maintenance.truncation``.

    What is deleted already stays so. Raises LogUnavailable.
    """
    delete_before(admin_client(bootstrap_servers), topic_name(cluster, METADATA.suffix), offset)

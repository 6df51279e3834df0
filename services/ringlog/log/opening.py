"""Functions that open the metadata log and the snapshots of a cluster.

Every process opens the metadata log here. If ``RINGLOG_DELAYS`` names a folder of rules, the log obeys these rules.
"""

from __future__ import annotations

from ringlog.files import delays_folder
from ringlog.log.delays.control import FolderDelays
from ringlog.log.delays.delayable import DelayableLog
from ringlog.log.kafka.adapter import KafkaLog
from ringlog.log.kafka.topics import METADATA, SNAPSHOTS, admin_client, delete_before, topic_name
from ringlog.log.port import MetadataLog
from ringlog.log.replicas.start_point import SnapshotTopic, StartPointFinder


def open_metadata(bootstrap_servers: str, cluster: str, participant: str, *, is_relaxed: bool = False) -> MetadataLog:
    """Open the cluster's metadata log. The caller closes it.

    Args:
        participant: Name that delay rules use for this process (see ``ringlog.log.delays.rules``).
        is_relaxed: See ``KafkaLog``.
    """
    log = KafkaLog(bootstrap_servers, cluster, is_relaxed=is_relaxed)
    folder = delays_folder()
    return log if folder is None else DelayableLog(log, FolderDelays(folder, warn=True), participant)


def open_snapshots(bootstrap_servers: str, cluster: str) -> SnapshotTopic:
    """Open the cluster's snapshot topic. The caller closes it."""
    return SnapshotTopic(KafkaLog(bootstrap_servers, cluster, SNAPSHOTS))


def start_point_finder(
    bootstrap_servers: str, cluster: str, *, warns: bool = True, oldest: bool = False
) -> StartPointFinder:
    """Return the start-point finder for a replica of the cluster; see ``ringlog.log.replicas.start_point``."""
    return StartPointFinder(lambda: open_snapshots(bootstrap_servers, cluster), warns=warns, oldest=oldest)


def delete_entries(bootstrap_servers: str, cluster: str, offset: int) -> None:
    """Delete the entries of the metadata log before an offset, at the broker.

    The agent that truncates the log calls this (``ringlog.agents.maintenance.truncation``). Repeating a deletion has no
    effect. Raises LogUnavailable.
    """
    delete_before(admin_client(bootstrap_servers), topic_name(cluster, METADATA.suffix), offset)

"""The one place where a process opens the metadata log: delayable if ``RINGLOG_DELAYS`` names a folder of rules."""

from __future__ import annotations

from ringlog.log.delayable import DelayableLog
from ringlog.log.delays_control import FolderDelays
from ringlog.log.kafka import KafkaLog
from ringlog.log.port import MetadataLog
from ringlog.runtime.folders import delays_folder


def open_metadata(bootstrap_servers: str, cluster: str, participant: str) -> MetadataLog:
    """The cluster's metadata log, for a participant of that name (see ``ringlog.log.delays``); the caller closes it."""
    log = KafkaLog(bootstrap_servers, cluster)
    folder = delays_folder()
    return log if folder is None else DelayableLog(log, FolderDelays(folder, warn=True), participant)

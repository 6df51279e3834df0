"""Exactly-once appends for tests that count records and offsets: entries are sent again only if the log has not shown
them for half a second.

Clients retry earlier, which duplicates records on a paused machine.
"""

from __future__ import annotations

from collections.abc import Mapping

from ringlog.kernel.commands.cluster.cluster import InitializeCluster, Noop
from ringlog.kernel.fold import fold
from ringlog.kernel.model.state import EMPTY_STATE
from ringlog.log.author import Author
from ringlog.log.port import MetadataLog
from ringlog.log.replicas.replica import LogReplica
from ringlog.protocol.effects import Draw
from ringlog.runtime.clock import ManualClock


def founded(log: MetadataLog, name: str, settings: Mapping[str, int] | None = None, *, draw: Draw) -> None:
    """Append the initial entry."""
    command = InitializeCluster(name, tuple(sorted((settings or {}).items())))
    log.append([Author("founder", ManualClock(), draw).entry(EMPTY_STATE, command, since_epoch=0).data])


def appended(log: MetadataLog, entries: int, *, draw: Draw) -> None:
    """Append that many more Noops behind the present entries."""
    author = Author("others", ManualClock(), draw)
    with LogReplica(log) as replica:
        state = replica.read_barrier()
    for _ in range(entries):
        encoded = author.entry(state, Noop())
        state = fold(state, encoded.entry).state
        log.append([encoded.data])

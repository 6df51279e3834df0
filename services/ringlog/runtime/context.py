"""The clusters that this user knows, and the one in use, so that the next command needs no options.

``ringlog cluster found``, ``ringlog cluster use`` and ``ringlog demo`` put a cluster in use; nothing else does.
Whatever is given by option or by a ``RINGLOG_*`` variable goes before it. ``context.json`` in the data folder keeps
them, closed to other users: the address of a Redis may hold its password.

A cluster is its id, not its name: two brokers may have clusters of one name. At one broker a name means one cluster, so
one that was founded there anew takes the place of its namesake. No two entries have the same (broker, name).
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ringlog.files import FILE_MODE, OWNER_ONLY_MASK, FileUnusable, default_data_dir, private_folder, write_private
from ringlog.runtime.kafka.config import VARIABLE, current, use
from ringlog.runtime.trust import TRUST_VARIABLE, trust_by


@dataclass(frozen=True, slots=True)
class ClusterContext:
    """A cluster and where its broker (``host:port,…``) and its cache (a Redis URL, may be empty) are.

    ``kafka_config``: path of the file that its broker wants (see ``kafka_config``), may be empty; ``cluster_id``: empty
    where no command has asked for it yet; ``trust_config``: path of the file that its nodes want (see ``trust``).
    """

    bootstrap: str
    cluster: str
    redis: str
    kafka_config: str = ""
    cluster_id: str = ""
    trust_config: str = ""


@dataclass(frozen=True, slots=True)
class StoredClusters:
    """All known clusters, and which of them is in use (None: no one)."""

    clusters: tuple[ClusterContext, ...] = ()
    current: ClusterContext | None = None


def store_cluster(context: ClusterContext, *, is_in_use: bool = True) -> None:
    """Know this cluster, and have later commands use it if it ``is_in_use``. Raises FileUnusable, FolderUnusable."""

    def changed(stored: StoredClusters) -> StoredClusters:
        clusters = (*_except(stored.clusters, context), context)
        current = context if is_in_use or stored.current not in clusters else stored.current
        return StoredClusters(clusters, current)

    _change(changed)


def stored_id(bootstrap: str, cluster: str) -> str:
    """The id of the cluster of that name at that broker, as far as is known; empty: none."""
    return next((one.cluster_id for one in _at(bootstrap) if one.cluster == cluster), "")


def remove_clusters(gone: Callable[[ClusterContext], bool]) -> tuple[ClusterContext, ...]:
    """Know these clusters no more; returns them. Where the one in use was among them, none is in use."""
    lost = tuple(context for context in stored_clusters().clusters if gone(context))
    if lost:
        _change(
            lambda stored: StoredClusters(
                tuple(context for context in stored.clusters if not gone(context)),
                None if stored.current is None or gone(stored.current) else stored.current,
            )
        )
    return lost


def current_cluster() -> ClusterContext | None:
    """The cluster in use, if there is one and the file is readable."""
    return stored_clusters().current


def stored_clusters() -> StoredClusters:
    """The clusters of the file; none if it is missing or not readable. Closes a file that others can read."""
    try:
        _close_to_others(_path())
        found = json.loads(_path().read_text(encoding="utf-8"))
        clusters = tuple(_context(fields) for fields in found["clusters"])
        number = found["current"]
        return StoredClusters(clusters, None if number is None else clusters[int(number)])
    except (OSError, ValueError, AttributeError, LookupError, TypeError, RecursionError):
        return StoredClusters()


def _close_to_others(path: Path) -> None:
    """Redis' password may be in it."""
    found = path.stat()
    if found.st_mode & OWNER_ONLY_MASK and found.st_uid == os.geteuid():
        path.chmod(FILE_MODE)


def kafka_config_of(bootstrap: str) -> str:
    """The file that this broker wants, as far as is known; empty: none."""
    return next((context.kafka_config for context in _at(bootstrap) if context.kafka_config), "")


def log_in_at(bootstrap: str, of_stack: str = "") -> None:
    """Use the file that the broker wants, if one is known and no other was given. Raises BadKafkaConfig.

    ``of_stack``: the file of the stack of this user that has this broker.
    """
    file = of_stack or kafka_config_of(bootstrap)
    if file and VARIABLE not in os.environ:
        use(Path(file))
    current()  # what variables say is looked at before anything begins


def trust_of(bootstrap: str, cluster: str) -> str:
    """The file that the nodes of this cluster want, as far as is known; empty: none."""
    return next((one.trust_config for one in _at(bootstrap) if one.cluster == cluster), "")


def trust_in(bootstrap: str, cluster: str) -> None:
    """Use the file that the cluster's nodes want, if one is known and no other was given. Raises BadTrustConfig."""
    file = trust_of(bootstrap, cluster)
    if file and TRUST_VARIABLE not in os.environ:
        trust_by(Path(file))


def redis_of(bootstrap: str) -> str:
    """The cache that belongs to this broker, as far as is known; empty: none."""
    return next((context.redis for context in _at(bootstrap) if context.redis), "")


def _at(bootstrap: str) -> list[ClusterContext]:
    """The known clusters of this broker: the one in use first, then the one that was in use last before it, and so on.

    Of several at one broker an older one may have the file, or the cache, of before these were moved.
    """
    found = stored_clusters()
    there = [context for context in reversed(found.clusters) if context.bootstrap == bootstrap]
    return sorted(there, key=lambda context: context != found.current)


def _context(fields: Any) -> ClusterContext:
    optional = {name: str(fields.get(name, "")) for name in ("kafka_config", "cluster_id", "trust_config")}
    return ClusterContext(str(fields["bootstrap"]), str(fields["cluster"]), str(fields["redis"]), **optional)


def _except(clusters: Sequence[ClusterContext], fresh: ClusterContext) -> tuple[ClusterContext, ...]:
    place = (fresh.bootstrap, fresh.cluster)
    return tuple(
        context
        for context in clusters
        if (context.bootstrap, context.cluster) != place
        and not (fresh.cluster_id and context.cluster_id == fresh.cluster_id)
    )


def _path() -> Path:
    return default_data_dir() / "context.json"


def _change(change: Callable[[StoredClusters], StoredClusters]) -> None:
    private_folder(_path().parent, "context.json", "agents", "nodes", "stack", "demo")
    with _locked():
        after = change(stored_clusters())
        number = None if after.current is None else after.clusters.index(after.current)
        found = {"current": number, "clusters": [asdict(context) for context in after.clusters]}
        write_private(_path(), json.dumps(found, indent=2) + "\n")


@contextmanager
def _locked() -> Iterator[None]:
    """One command at a time changes the file."""
    path = _path().with_name("context.lock")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    except OSError as error:
        raise FileUnusable.of(error, path) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)

"""The user's known clusters and the current one, so that commands need no connection options.

``ringlog cluster create``, ``ringlog cluster use`` and ``ringlog demo`` set the current cluster; no other command does.
Options and ``RINGLOG_*`` variables override it. ``context.json`` in the data folder stores the clusters. Other users
cannot read that file, because the address of a Redis may contain its password.

Invariant: no two stored clusters have the same broker and name. A cluster is identified by its id, so clusters on two
brokers may have the same name. On one broker a name means one cluster. A cluster that is created again under a name
replaces the earlier one.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ringlog.files import FILE_MODE, OWNER_ONLY_MASK, FileUnusable, default_data_dir, private_folder, write_private
from ringlog.kernel.values import Value, asdict
from ringlog.runtime.kafka.config import VARIABLE, current, use
from ringlog.runtime.trust import (
    REQUEST_KEY_VARIABLE,
    TRUST_VARIABLE,
    request_keys,
    use_request_key,
    use_trust_file,
)


class ClusterContext(Value):
    """A cluster and the addresses of its broker (``host:port,…``) and its cache (a Redis URL, may be empty).

    ``kafka_config`` is the path of the broker's client configuration, ``trust_config`` that of the certificates for its
    nodes (``ringlog.runtime.trust``), ``request_key`` that of the keys that sign requests. Each may be empty.
    ``cluster_id`` is empty until a command has read it.
    """

    bootstrap: str
    cluster: str
    redis: str
    kafka_config: str = ""
    cluster_id: str = ""
    trust_config: str = ""
    request_key: str = ""


class StoredClusters(Value):
    """All known clusters, and the current one of them (None: there is none)."""

    clusters: tuple[ClusterContext, ...] = ()
    current: ClusterContext | None = None


def store_cluster(context: ClusterContext, *, is_in_use: bool = True) -> None:
    """Store a cluster, and make it the current one if ``is_in_use``. Raises FileUnusable, FolderUnusable."""

    def changed(stored: StoredClusters) -> StoredClusters:
        clusters = (*_except(stored.clusters, context), context)
        current = context if is_in_use or stored.current not in clusters else stored.current
        return StoredClusters(clusters, current)

    _change(changed)


def stored_id(bootstrap: str, cluster: str) -> str:
    """Return the stored id of the cluster with that name at that broker; empty if unknown."""
    return next((one.cluster_id for one in _at(bootstrap) if one.cluster == cluster), "")


def remove_clusters(gone: Callable[[ClusterContext], bool]) -> tuple[ClusterContext, ...]:
    """Remove the selected clusters and return them. If they include the current cluster, no cluster is current."""
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
    """Return the current cluster, or None if there is none or the file is not readable."""
    return stored_clusters().current


def stored_clusters() -> StoredClusters:
    """Return the stored clusters. Empty if the file is missing or not readable.

    If other users can read the file, this removes their permission.
    """
    try:
        _restrict_to_owner(_path())
        found = json.loads(_path().read_text(encoding="utf-8"))
        clusters = tuple(_context(fields) for fields in found["clusters"])
        number = found["current"]
        return StoredClusters(clusters, None if number is None else clusters[int(number)])
    except (OSError, ValueError, AttributeError, LookupError, TypeError, RecursionError):
        return StoredClusters()


def _restrict_to_owner(path: Path) -> None:
    """Restrict the file to its owner: it may contain a password for Redis."""
    found = path.stat()
    if found.st_mode & OWNER_ONLY_MASK and found.st_uid == os.geteuid():
        path.chmod(FILE_MODE)


def kafka_config_of(bootstrap: str) -> str:
    """Return the stored client configuration for a broker; empty if unknown."""
    return next((context.kafka_config for context in _at(bootstrap) if context.kafka_config), "")


def use_stored_login(bootstrap: str, of_stack: str = "") -> None:
    """Use the client configuration of the broker, if one is stored and none was given. Raises BadKafkaConfig.

    Args:
        of_stack: Configuration of this user's local stack with this broker. It takes precedence over a stored one.
    """
    file = of_stack or kafka_config_of(bootstrap)
    if file and VARIABLE not in os.environ:
        use(Path(file))
    current()  # reject invalid variables before the command starts to work


def trust_of(bootstrap: str, cluster: str) -> str:
    """Return the stored trust file for the nodes of a cluster; empty if unknown."""
    return next((one.trust_config for one in _at(bootstrap) if one.cluster == cluster), "")


def use_stored_trust(bootstrap: str, cluster: str) -> None:
    """Use the trust file and the request key of the cluster, if stored and none was given. Raises BadTrustConfig.

    A trust file with ``request.key``, as nodes have, takes precedence over the stored key.
    """
    file = trust_of(bootstrap, cluster)
    if file and TRUST_VARIABLE not in os.environ:
        use_trust_file(Path(file), f"the stored context of the cluster {cluster} (see: ringlog cluster list)")
    key = next((one.request_key for one in _at(bootstrap) if one.cluster == cluster), "")
    if key and REQUEST_KEY_VARIABLE not in os.environ and not request_keys():
        use_request_key(Path(key))


def redis_of(bootstrap: str) -> str:
    """Return the stored cache address for a broker; empty if unknown."""
    return next((context.redis for context in _at(bootstrap) if context.redis), "")


def _at(bootstrap: str) -> list[ClusterContext]:
    """Return the known clusters of a broker, most recently used first.

    If one broker has several clusters, an older one may have an outdated file or cache address.
    """
    found = stored_clusters()
    there = [context for context in reversed(found.clusters) if context.bootstrap == bootstrap]
    return sorted(there, key=lambda context: context != found.current)


def _context(fields: Any) -> ClusterContext:
    optional = {
        name: str(fields.get(name, "")) for name in ("kafka_config", "cluster_id", "trust_config", "request_key")
    }
    return ClusterContext(str(fields["bootstrap"]), str(fields["cluster"]), str(fields["redis"]), **optional)


def _except(clusters: Sequence[ClusterContext], fresh: ClusterContext) -> tuple[ClusterContext, ...]:
    # Remove the entry with the same broker and name, and an entry of the same cluster under another address.
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
    """Lock the file, so that only one command at a time changes it."""
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

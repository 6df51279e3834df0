"""The identity of a node on disk: its id, its cluster, and the newest epoch that it acknowledged.

The same folder contains the node's rows (``ringlog.node.rows.disk_rows``) and its registers
(``ringlog.node.registers.journal``). A lock on the folder admits one process at a time; the operating system releases
it when the process ends in any way. So two processes on one machine never act as the same node. Of processes with
copies of a folder, only the latest counts (``wire.acks``, ``node.duplicate_identity``).

Invariant: an epoch and the id of its state are on disk before an acknowledgement of it leaves the node. The stored
epoch never decreases. A restarted node ends instead of serving if the log does not contain that epoch: the log is
different, was truncated, or was truncated and has grown again.

A folder belongs to one node of one cluster id. The same names in another cluster use another folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringlog.client.data.peers import PORT_MAX
from ringlog.files import private_folder, replace_durably
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import NodeId, is_uuid
from ringlog.log.errors import CopyInUse
from ringlog.log.replicas.identity import KnownEpoch
from ringlog.node.errors import NodeFailed
from ringlog.runtime.monitoring.scrape import with_port
from ringlog.runtime.trust import CertificateOfAnotherNode, certificate_source
from ringlog.stack.processes import draw
from ringlog.wire.acks import incarnation

IDENTITY, ACKNOWLEDGED, LOCK = "identity.json", "acknowledged.json", "lock"
EPOCH_MAX = 2**63 - 1
_DRAWS_MAX = 20


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """The configuration of a node.

    Attributes:
        host: The address that the node listens on.
        port: 0 selects the port used before, or a free one.
        folder: Keeps the id and the ports of the node across restarts.
        advertise: The host that others use to reach the node; empty selects ``host``.
        data_port: The port of the gRPC server; 0 has the same meaning as for ``port``.
        certified: The node id in the certificate; empty without a certificate.
    """

    name: str
    host: str
    port: int
    datacenter: str
    rack: str
    shards: int
    folder: Path
    advertise: str = ""
    data_port: int = 0
    certified: NodeId = ""

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names that the node answers to."""
        return tuple(filter(None, (self.host, self.advertise)))

    def address(self, port: int) -> str:
        """Return the address that others use to reach the node."""
        return with_port(self.advertise or self.host, port)


def folder_of(nodes: Path, cluster: str, cluster_id: str, name: str) -> Path:
    """Return the folder of node ``name`` of a cluster, below the folder ``nodes``."""
    return nodes / f"{cluster}.{cluster_id}" / name


class NodeFolder:
    """The folder of one node, locked until ``close``.

    Args:
        cluster_id: The cluster that the folder must belong to; empty accepts any.

    Attributes:
        socket: Listens on the port of the node.
        incarnation: Identifies this start of the node.
        ack_keys: Digests of the MAC keys that were valid when all acknowledgements in the node's name had been checked,
            without a finding against the folder.

    Raises:
        NodeFailed: Another process has the folder, a file is not readable, or the port is in use.
        CertificateOfAnotherNode: The certificate names another node. Nothing was changed.
    """

    def __init__(self, options: NodeOptions, cluster_id: str = "") -> None:
        self._folder = options.folder
        private_folder(self._folder, LOCK, IDENTITY)
        self._lock = _locked(self._folder)
        self._writing = threading.Lock()
        try:
            node, port = self.stored_identity()
            if node and options.certified not in ("", node):
                text = f"it names node {options.certified}, {self._folder} is node {node}: {certificate_source()}"
                raise CertificateOfAnotherNode(text)
            self.socket = _listen(options.host, options.port or port)
            self.port: int = self.socket.getsockname()[1]
            self.node = node or options.certified or str(uuid.uuid4())
            self.data_port = self.stored_data_port()
            self._start = self.stored_start() + 1
            self.ack_keys = self.stored_ack_keys()
            self.incarnation = incarnation(self._start, str(uuid.uuid4()))
            # The number of this start must be on disk before an acknowledgement contains it
            # (``node.duplicate_identity``).
            self._store_identity()
            self.cluster_id, self.acknowledged = self.stored_acknowledgement()
            self._check_cluster(cluster_id)
        except BaseException:
            os.close(self._lock)
            raise

    def close(self) -> None:
        """Close the socket and release the lock."""
        self.socket.close()
        os.close(self._lock)

    def check(self, state: ClusterState) -> None:
        """Raise NodeFailed unless ``state``, which is everything in the log, has reached the acknowledged epoch."""
        self._check_cluster(state.cluster_id)
        if state.epoch < self.acknowledged:
            raise NodeFailed(
                f"this node acknowledged epoch {self.acknowledged}, and the log ends at epoch {state.epoch}: "
                "restore the log; the node may have served data of the lost epochs"
            )

    def _check_cluster(self, cluster_id: str) -> None:
        if self.cluster_id and cluster_id and self.cluster_id != cluster_id:
            raise NodeFailed(
                f"{self._folder} is a node of cluster {self.cluster_id}, this one is {cluster_id}: use another folder"
            )

    def seen(self) -> tuple[KnownEpoch, ...]:
        """Return the acknowledged epoch, which the log must have."""
        return known_epochs_in(self._folder)

    def keep(self, cluster_id: str, epoch: int, state_id: str) -> None:
        """Write ``epoch`` and the id of its state to disk, before it is acknowledged. A lower epoch changes nothing."""
        if epoch > self.acknowledged:
            self._write(ACKNOWLEDGED, {"cluster_id": cluster_id, "epoch": epoch, "state_id": state_id})
            self.cluster_id, self.acknowledged = cluster_id, epoch

    def store_data_port(self, port: int) -> None:
        """Write the port of the gRPC server to disk."""
        if port != self.data_port:
            self.data_port = port
            self._store_identity()

    def store_ack_keys(self, digests: tuple[str, ...]) -> None:
        """Write the digests of the present MAC keys to disk, after all earlier acknowledgements were checked."""
        if digests != self.ack_keys:
            self.ack_keys = digests
            self._store_identity()

    def _store_identity(self) -> None:
        with self._writing:
            kept = {"id": self.node, "port": self.port, "data_port": self.data_port, "start": self._start}
            self._write(IDENTITY, kept | {"ack_keys": list(self.ack_keys)})

    def stored_ack_keys(self) -> tuple[str, ...]:
        """Return the digests on disk; see ``ack_keys``. Raises NodeFailed."""
        kept = self._read(IDENTITY).get("ack_keys", [])
        if not isinstance(kept, list) or not all(isinstance(one, str) for one in kept):
            raise _wrong("ack_keys", kept)
        return tuple(kept)

    def stored_data_port(self) -> int:
        """Return the port of the gRPC server on disk, or 0 if there was none. Raises NodeFailed."""
        return _integer(self._read(IDENTITY), "data_port", PORT_MAX)

    def stored_start(self) -> int:
        """Return the number of starts from this folder. Raises NodeFailed."""
        return _integer(self._read(IDENTITY), "start", EPOCH_MAX)

    def stored_identity(self) -> tuple[str, int]:
        """Return (node id, port) on disk, or an empty id and 0 in a new folder. Raises NodeFailed."""
        kept = self._read(IDENTITY)
        return _uuid(kept, "id"), _integer(kept, "port", PORT_MAX)

    def stored_acknowledgement(self) -> tuple[str, int]:
        """Return (cluster id, epoch) on disk, or an empty id and 0 if nothing was acknowledged. Raises NodeFailed."""
        kept = self._read(ACKNOWLEDGED)
        return _uuid(kept, "cluster_id"), _integer(kept, "epoch", EPOCH_MAX)

    def _read(self, name: str) -> dict[str, Any]:
        return _read(self._folder / name)

    def _write(self, name: str, value: dict[str, Any]) -> None:
        path = self._folder / name
        replace_durably(path, f"{json.dumps(value)}\n".encode(), path.with_suffix(".new"))


def known_epochs_in(folder: Path) -> tuple[KnownEpoch, ...]:
    """Return the acknowledged epoch of the node in a folder; see ``NodeFolder.seen``. Raises NodeFailed."""
    kept = _read(folder / ACKNOWLEDGED)
    state_id = _uuid(kept, "state_id")
    return (KnownEpoch(_integer(kept, "epoch", EPOCH_MAX), state_id, str(folder / ACKNOWLEDGED)),) if state_id else ()


@contextlib.contextmanager
def exclusive_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, so that no node runs from it. Raises CopyInUse."""
    try:
        lock = _locked(folder)
    except NodeFailed as failed:
        raise CopyInUse(str(failed)) from failed
    try:
        yield
    finally:
        os.close(lock)


def _locked(folder: Path) -> int:
    """Lock a folder until the returned descriptor is closed. Raises NodeFailed."""
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise NodeFailed(f"another process runs the node of {folder}: stop it first") from None
    return lock


def _read(path: Path) -> dict[str, Any]:
    try:
        kept = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as broken:
        raise NodeFailed(f"{path} is not readable ({broken}): restore it; do not start without it") from broken
    if not isinstance(kept, dict):
        raise NodeFailed(f"{path} is not a folder of a node: restore it; do not start without it")
    return kept


def _uuid(kept: dict[str, Any], name: str) -> str:
    value = kept.get(name, "")
    if not isinstance(value, str) or (value and not is_uuid(value)):
        raise _wrong(name, value)
    return value


def _integer(kept: dict[str, Any], name: str, most: int) -> int:
    value = kept.get(name, 0)
    if type(value) is not int or not 0 <= value <= most:
        raise _wrong(name, value)
    return value


def _wrong(name: str, value: object) -> NodeFailed:
    return NodeFailed(f"{name} is {repr(value)[:100]} in the node's folder: restore the file")


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. ``port`` 0: draw a port, which the node keeps for its lifetime.

    The kernel would choose one from its range for outgoing connections. An outgoing connection of another process could
    then use it while the node is down.
    """
    for _ in range(0 if port else _DRAWS_MAX):
        with contextlib.suppress(OSError):
            return _bound(host, draw())
    try:
        return _bound(host, port)
    except OSError as error:
        raise NodeFailed(
            f"cannot listen on {host}:{port} ({error.strerror}): stop the process that uses the port, which is the "
            "registered port of this node"
        ) from error


def _bound(host: str, port: int) -> socket.socket:
    found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host.strip("[]"), port))
        found.listen(128)
    except OSError:
        found.close()
        raise
    return found

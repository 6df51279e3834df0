"""What a node keeps on disk: who it is, in which cluster, and the newest epoch that it acknowledged.

Beside these files are its rows (see ``ringlog.node.rows.disk_rows``) and the cells of its registers (see
``ringlog.node.registers.journal``). A folder belongs to one process at a time (a lock that the kernel of
the machine drops with the process, also with a killed one), so two processes of one machine never act as the same node;
of processes on copies of a folder only the latest counts (``wire.acks``, ``node.duplicate_identity``).

Invariant: the epoch is on the disk, with the id of its state, before an acknowledgement of it leaves the node, and
never goes back; a restarted node that cannot get there again (another log, a log cut short, one that was cut and has
grown again) ends instead of serving.

A folder is one node of one *cluster*, which is its id: the same names in another cluster are another folder.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringlog.client.data.peers import PORT_MAX
from ringlog.files import private_folder, replace_durably
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import NodeId, is_uuid
from ringlog.log.errors import CopyInUse
from ringlog.log.replicas.identity import Seen
from ringlog.node.errors import NodeFailed
from ringlog.runtime.monitoring.scrape import with_port
from ringlog.runtime.trust import CertificateOfAnotherNode
from ringlog.wire.acks import incarnation

IDENTITY, ACKNOWLEDGED, LOCK = "identity.json", "acknowledged.json", "lock"
EPOCH_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """Who this node is. ``folder`` keeps its id and ports over restarts; ``port`` 0: the kept one, or a free one.

    It listens at ``host``. ``advertise``: the host that others reach it by, empty: the same; ``data_port``: of its data
    side, as ``port``; ``certified``: the id that its certificate names, empty: it has no certificate.
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
        """The names that it answers under."""
        return tuple(filter(None, (self.host, self.advertise)))

    def address(self, port: int) -> str:
        """Where others find the node."""
        return with_port(self.advertise or self.host, port)


def folder_of(nodes: Path, cluster: str, cluster_id: str, name: str) -> Path:
    """Return where node ``name`` of a cluster is kept under ``nodes``."""
    return nodes / f"{cluster}.{cluster_id}" / name


class NodeFolder:
    """The folder of one node, locked until ``close``; ``socket`` listens on the node's port. ``cluster_id``: the
    cluster that it is opened for; empty: whichever it is of. ``incarnation``: this start of the node. ``ack_keys``:
    digests of the keys that its acknowledgements had a code by when all that had been said in its name was looked at,
    and nothing was found against the folder.

    Raises NodeFailed where another process has it, a file is not readable, or the port is taken; and
    CertificateOfAnotherNode, before anything is changed.
    """

    def __init__(self, options: NodeOptions, cluster_id: str = "") -> None:
        self._folder = options.folder
        private_folder(self._folder, LOCK, IDENTITY)
        self._lock = _locked(self._folder)
        self._writing = threading.Lock()
        try:
            node, port = self.kept_identity()
            if node and options.certified not in ("", node):
                raise CertificateOfAnotherNode(f"it names node {options.certified}, {self._folder} is node {node}")
            self.socket = _listen(options.host, options.port or port)
            self.port: int = self.socket.getsockname()[1]
            self.node = node or options.certified or str(uuid.uuid4())
            self.data_port = self.kept_data_port()
            self._start = self.kept_start() + 1
            self.ack_keys = self.kept_ack_keys()
            self.incarnation = incarnation(self._start, str(uuid.uuid4()))
            self._keep_identity()
            self.cluster_id, self.acknowledged = self.kept_acknowledgement()
            self._check_cluster(cluster_id)
        except BaseException:
            os.close(self._lock)
            raise

    def close(self) -> None:
        """Let others have the folder."""
        self.socket.close()
        os.close(self._lock)

    def check(self, state: ClusterState) -> None:
        """Raise NodeFailed unless ``state``, everything that the log has, is a later one of what was acknowledged."""
        self._check_cluster(state.cluster_id)
        if state.epoch < self.acknowledged:
            raise NodeFailed(
                f"this node acknowledged epoch {self.acknowledged}, and the log ends at epoch {state.epoch}: "
                "restore the log; the node may have served what is not in it"
            )

    def _check_cluster(self, cluster_id: str) -> None:
        if self.cluster_id and cluster_id and self.cluster_id != cluster_id:
            raise NodeFailed(
                f"{self._folder} is a node of cluster {self.cluster_id}, this one is {cluster_id}: use another folder"
            )

    def seen(self) -> tuple[Seen, ...]:
        """What was acknowledged: the log must have it."""
        return seen_in(self._folder)

    def keep(self, cluster_id: str, epoch: int, state_id: str) -> None:
        """Have ``epoch`` and its state's id on the disk: it is about to be acknowledged."""
        if epoch > self.acknowledged:
            self._write(ACKNOWLEDGED, {"cluster_id": cluster_id, "epoch": epoch, "state_id": state_id})
            self.cluster_id, self.acknowledged = cluster_id, epoch

    def keep_data_port(self, port: int) -> None:
        """Have the port of the node's data side on the disk; it says, too, that the folder has cells."""
        if port != self.data_port:
            self.data_port = port
            self._keep_identity()

    def keep_ack_keys(self, digests: tuple[str, ...]) -> None:
        """Have on the disk by which keys acknowledgements have a code from here on: those before were looked at."""
        if digests != self.ack_keys:
            self.ack_keys = digests
            self._keep_identity()

    def _keep_identity(self) -> None:
        with self._writing:
            kept = {"id": self.node, "port": self.port, "data_port": self.data_port, "start": self._start}
            self._write(IDENTITY, kept | {"ack_keys": list(self.ack_keys)})

    def kept_ack_keys(self) -> tuple[str, ...]:
        """See ``ack_keys``. Raises NodeFailed."""
        kept = self._read(IDENTITY).get("ack_keys", [])
        if not isinstance(kept, list) or not all(isinstance(one, str) for one in kept):
            raise _wrong("ack_keys", kept)
        return tuple(kept)

    def kept_data_port(self) -> int:
        """Port of the data side on the disk; 0 where the node never had one. Raises NodeFailed."""
        return _integer(self._read(IDENTITY), "data_port", PORT_MAX)

    def kept_start(self) -> int:
        """How many times the node was started from this folder. Raises NodeFailed."""
        return _integer(self._read(IDENTITY), "start", EPOCH_MAX)

    def kept_identity(self) -> tuple[str, int]:
        """(node id, port) on the disk; empty and 0 where nothing is kept yet. Raises NodeFailed."""
        kept = self._read(IDENTITY)
        return _uuid(kept, "id"), _integer(kept, "port", PORT_MAX)

    def kept_acknowledgement(self) -> tuple[str, int]:
        """(cluster id, epoch) on the disk; empty and 0 where nothing is kept yet. Raises NodeFailed."""
        kept = self._read(ACKNOWLEDGED)
        return _uuid(kept, "cluster_id"), _integer(kept, "epoch", EPOCH_MAX)

    def _read(self, name: str) -> dict[str, Any]:
        return _read(self._folder / name)

    def _write(self, name: str, value: dict[str, Any]) -> None:
        path = self._folder / name
        replace_durably(path, f"{json.dumps(value)}\n".encode(), path.with_suffix(".new"))


def seen_in(folder: Path) -> tuple[Seen, ...]:
    """What the node of a folder acknowledged: see ``NodeFolder.seen``. Raises NodeFailed."""
    kept = _read(folder / ACKNOWLEDGED)
    state_id = _uuid(kept, "state_id")
    return (Seen(_integer(kept, "epoch", EPOCH_MAX), state_id, str(folder / ACKNOWLEDGED)),) if state_id else ()


@contextmanager
def exclusive_folder(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, so that no node runs from it. Raises CopyInUse."""
    try:
        lock = _locked(folder)
    except NodeFailed as failed:
        raise CopyInUse(str(failed)) from failed
    try:
        yield
    finally:
        os.close(lock)


def _locked(folder: Path) -> int:
    """The lock of a folder, until it is closed. Raises NodeFailed."""
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
        raise NodeFailed(f"{path} does not hold what a node keeps: restore it; do not start without it")
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
    """A listening socket; ``port`` 0: any free one."""
    found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host.strip("[]"), port))
        found.listen(128)
    except OSError as error:
        found.close()
        raise NodeFailed(
            f"cannot listen on {host}:{port} ({error.strerror}): end what uses the port, which is the one this node is "
            "registered with"
        ) from error
    return found

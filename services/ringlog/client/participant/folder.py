"""The identity of a node on disk: its id, its cluster, its starts, and the newest epoch that it acknowledged.

A lock on the folder admits one process at a time; the operating system releases it when the process ends in any way. So
two processes on one machine never act as the same node. Of processes with copies of a folder, only the latest counts
(``wire.acks``, ``client.participant.duplicate_identity``).

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
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ringlog.files import private_folder, replace_durably
from ringlog.kernel.history import contradicts
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import NodeId, is_uuid
from ringlog.log.errors import CopyInUse
from ringlog.log.replicas.identity import KnownEpoch
from ringlog.protocol.nodes.errors import NodeFailed
from ringlog.runtime.trust import CertificateOfAnotherNode, certificate_source
from ringlog.wire.acks import incarnation

IDENTITY, ACKNOWLEDGED, ADOPTED, LOCK = "identity.json", "acknowledged.json", "adopted.json", "lock"
EPOCH_MAX = 2**63 - 1


class IdentityFolder:
    """The folder of one node, locked until ``close``.

    Args:
        folder: Keeps the identity across restarts. It is created if necessary.
        cluster_id: The cluster that the folder must belong to; empty accepts any.
        certified: The node id in the certificate; empty without a certificate.

    Attributes:
        incarnation: Identifies this start of the node.
        ack_keys: Digests of the MAC keys that were valid when all acknowledgements in the node's name had been checked,
            without a finding against the folder.

    Raises:
        NodeFailed: Another process has the folder, or a file is not readable.
        CertificateOfAnotherNode: The certificate names another node. Nothing was changed.
    """

    def __init__(self, folder: Path, cluster_id: str = "", certified: NodeId = "") -> None:
        self._folder = folder
        private_folder(self._folder, LOCK, IDENTITY)
        self._lock = _locked(self._folder)
        self._writing = threading.Lock()
        try:
            node = self.stored_id()
            if node and certified not in ("", node):
                text = f"it names node {certified}, {self._folder} is node {node}: {certificate_source()}"
                raise CertificateOfAnotherNode(text)
            self._open()
            self.node = node or certified or str(uuid.uuid4())
            self._start = self.stored_start() + 1
            self.ack_keys = self.stored_ack_keys()
            self.incarnation = incarnation(self._start, str(uuid.uuid4()))
            # The number of this start must be on disk before an acknowledgement contains it
            # (``client.participant.duplicate_identity``).
            self._store_identity()
            self.cluster_id, self.acknowledged = self.stored_acknowledgement()
            self._check_cluster(cluster_id)
        except BaseException:
            os.close(self._lock)
            raise

    def _open(self) -> None:
        """Acquire what else the node needs, before anything is written."""

    def _addresses(self) -> dict[str, int]:
        """Return what else is stored with the identity."""
        return {}

    def close(self) -> None:
        """Release the lock."""
        os.close(self._lock)

    @property
    def adopted(self) -> int:
        """The newest epoch that may have admitted a write; see ``note_adopted``. Raises NodeFailed."""
        kept = self._read(ADOPTED)
        if self.acknowledged and not kept:
            raise NodeFailed(f"{self._folder / ADOPTED} is missing: restore it; do not start without it")
        return stored_integer(kept, "epoch", EPOCH_MAX)

    @property
    def places(self) -> frozenset[str]:
        """The keyspaces and tables of that epoch. Raises NodeFailed."""
        return frozenset(_texts(self._read(ADOPTED), "places"))

    def note_adopted(self, epoch: int, places: frozenset[str]) -> None:
        """Write an epoch and its places to disk, before a write is admitted under it."""
        self._write(ADOPTED, {"epoch": epoch, "places": sorted(places)})

    def check(self, state: ClusterState) -> None:
        """Raise NodeFailed unless ``state``, which is everything in the log, has reached the acknowledged epoch."""
        self._check_cluster(state.cluster_id)
        if any(contradicts(state, known.epoch, known.state_id) for known in self.seen()):
            raise NodeFailed(
                f"this node acknowledged epoch {self.acknowledged}, and the log has another state at that epoch: "
                "restore the log"
            )
        newest = max(self.acknowledged, stored_integer(self._read(ADOPTED), "epoch", EPOCH_MAX))
        if state.epoch < newest:
            raise NodeFailed(
                f"this node acknowledged epoch {newest}, and the log ends at epoch {state.epoch}: "
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

    def store_ack_keys(self, digests: tuple[str, ...]) -> None:
        """Write the digests of the present MAC keys to disk, after all earlier acknowledgements were checked."""
        if digests != self.ack_keys:
            self.ack_keys = digests
            self._store_identity()

    def _store_identity(self) -> None:
        with self._writing:
            kept = {"id": self.node, "start": self._start, "ack_keys": list(self.ack_keys)}
            self._write(IDENTITY, kept | self._addresses())

    def stored_ack_keys(self) -> tuple[str, ...]:
        """Return the digests on disk; see ``ack_keys``. Raises NodeFailed."""
        return _texts(self._read(IDENTITY), "ack_keys")

    def stored_start(self) -> int:
        """Return the number of starts from this folder. Raises NodeFailed."""
        return stored_integer(self._read(IDENTITY), "start", EPOCH_MAX)

    def stored_id(self) -> str:
        """Return the node id on disk; empty in a new folder. Raises NodeFailed."""
        return _uuid(self._read(IDENTITY), "id")

    def stored_acknowledgement(self) -> tuple[str, int]:
        """Return (cluster id, epoch) on disk, or an empty id and 0 if nothing was acknowledged. Raises NodeFailed."""
        kept = self._read(ACKNOWLEDGED)
        return _uuid(kept, "cluster_id"), stored_integer(kept, "epoch", EPOCH_MAX)

    def _read(self, name: str) -> dict[str, Any]:
        return _read(self._folder / name)

    def _write(self, name: str, value: dict[str, Any]) -> None:
        path = self._folder / name
        replace_durably(path, f"{json.dumps(value)}\n".encode(), path.with_suffix(".new"))


def known_epochs_in(folder: Path) -> tuple[KnownEpoch, ...]:
    """Return the acknowledged epoch of the node in a folder; see ``NodeFolder.seen``. Raises NodeFailed."""
    kept = _read(folder / ACKNOWLEDGED)
    state_id = _uuid(kept, "state_id")
    return (
        (KnownEpoch(stored_integer(kept, "epoch", EPOCH_MAX), state_id, str(folder / ACKNOWLEDGED)),)
        if state_id
        else ()
    )


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


def _texts(kept: dict[str, Any], name: str) -> tuple[str, ...]:
    value = kept.get(name, [])
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise _wrong(name, value)
    return tuple(value)


def stored_integer(kept: dict[str, Any], name: str, most: int) -> int:
    """Return a number from a file of the folder, 0 if it is missing. Raises NodeFailed."""
    value = kept.get(name, 0)
    if type(value) is not int or not 0 <= value <= most:
        raise _wrong(name, value)
    return value


def _wrong(name: str, value: object) -> NodeFailed:
    return NodeFailed(f"{name} is {repr(value)[:100]} in the node's folder: restore the file")

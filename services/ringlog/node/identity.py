"""The identity of a reference node: its folder also keeps the ports (``client.participant.folder``).

The same folder contains the node's rows (``ringlog.node.rows.disk_rows``) and its registers
(``ringlog.node.registers.journal``).
"""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

from ringlog.client.data.peers import PORT_MAX
from ringlog.client.participant.folder import IDENTITY, IdentityFolder, stored_integer
from ringlog.kernel.values import NodeId, Value
from ringlog.protocol.nodes.errors import NodeFailed
from ringlog.runtime.monitoring.scrape import with_port
from ringlog.stack.processes import draw

_DRAWS_MAX = 20


class NodeOptions(Value):
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


class NodeFolder(IdentityFolder):
    """The folder of one reference node, locked until ``close``.

    Attributes:
        socket: Listens on the port of the node.

    Raises:
        NodeFailed: As ``IdentityFolder``, or the port is in use.
    """

    def __init__(self, options: NodeOptions, cluster_id: str = "") -> None:
        self._options = options
        super().__init__(options.folder, cluster_id, options.certified)

    def _open(self) -> None:
        self.socket = _listen(self._options.host, self._options.port or self.stored_port())
        self.port: int = self.socket.getsockname()[1]
        self.data_port = self.stored_data_port()

    def _addresses(self) -> dict[str, int]:
        return {"port": self.port, "data_port": self.data_port}

    def close(self) -> None:
        """Close the socket and release the lock."""
        self.socket.close()
        super().close()

    def store_data_port(self, port: int) -> None:
        """Write the port of the gRPC server to disk."""
        if port != self.data_port:
            self.data_port = port
            self._store_identity()

    def stored_data_port(self) -> int:
        """Return the port of the gRPC server on disk, or 0 if there was none. Raises NodeFailed."""
        return stored_integer(self._read(IDENTITY), "data_port", PORT_MAX)

    def stored_port(self) -> int:
        """Return the port on disk, or 0 in a new folder. Raises NodeFailed."""
        return stored_integer(self._read(IDENTITY), "port", PORT_MAX)


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

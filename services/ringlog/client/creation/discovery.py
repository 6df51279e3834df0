"""Discovery of processes before there is a cluster: ``ringlog.protocol.discovery`` over gRPC, with state in a file.

``Discovery`` answers other processes while its context is open. ``settle`` asks them until the log shows a cluster.
This process creates the cluster if the protocol selects it.

Invariants:

- A process that learns of a cluster never creates another one.

- Reports of other processes never decide which cluster it is. The first valid initial entry of the log decides.

With certificates (``ringlog.runtime.trust``), a process communicates only with nodes of its authority. The node at an
address is not known yet. So a connection is verified against a name that all node certificates share.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import grpc

from ringlog.client.data.peers import OPTIONS, channel_to, is_revoked, listening, shown_node
from ringlog.client.errors import DiscoveryImpossible
from ringlog.files import private_folder, replace_durably
from ringlog.protocol.discovery import (
    initial_view,
    merge_view,
    missing_views,
    must_create,
    other_addresses,
    restored_view,
    with_cluster,
)
from ringlog.protocol.effects import Draw
from ringlog.runtime.draw import SystemDraw, draw_uuid
from ringlog.runtime.monitoring.open_connections import grpc_options
from ringlog.runtime.trust import ANY_NODE, Trust, current
from ringlog.wire.data import DISCOVERY, DiscoveryView, pack, unpack
from ringlog.wire.errors import WireError

FILE: Final = "discovery"
DISCOVER: Final = f"/{DISCOVERY}/Meet"
ANSWER_S: Final = 1.0
ROUND_S: Final = 0.5
"""The pause between two rounds of questions. A change of the view ends it early."""
WORKERS: Final = 8
CALLS_MAX: Final = 64
SHOWN_MAX: Final = 10
KEPT_HINT: Final = (
    "remove the file if the cluster does not exist or was created elsewhere; otherwise pass the "
    "earlier address and seeds"
)


class Discovery:
    """A process that searches for the cluster of a name.

    Its view is stored in ``folder``.

    Args:
        cluster: Name of the cluster. Empty: the name that the other processes report.
        address: host:port where this process listens and other processes reach it.
        seeds: Addresses of some other processes.

    Raises DiscoveryImpossible, OSError.
    """

    def __init__(
        self,
        folder: Path,
        cluster: str,
        address: str,
        seeds: Iterable[str] = (),
        draw: Draw | None = None,
        trust: Callable[[], Trust] = current,
    ) -> None:
        self._trust = trust
        self._path = private_folder(folder, FILE) / FILE
        self._lock = threading.Lock()
        self._wakeup = threading.Event()
        kept = self._kept(cluster, address)
        self._view = restored_view(kept, cluster, seeds) if kept else _fresh(cluster, address, seeds, draw)
        self._save(self._view)
        self._server = grpc.server(
            ThreadPoolExecutor(WORKERS, thread_name_prefix="discovery"),
            options=(("grpc.so_reuseport", 0), *OPTIONS, *grpc_options()),
            maximum_concurrent_rpcs=CALLS_MAX,
        )
        meet = {"Meet": grpc.unary_unary_rpc_method_handler(self._exchange_views)}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(DISCOVERY, meet),))
        if not listening(self._server, address, trust):
            raise DiscoveryImpossible(f"cannot listen on {address}", "pass an address of this machine with a free port")

    def __enter__(self) -> Discovery:
        """Start to answer other processes."""
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait()

    @property
    def view(self) -> DiscoveryView:
        """The current view, as it is stored on disk."""
        return self._view

    def settle(
        self,
        existing: Callable[[str], str],
        found: Callable[[str], object],
        stopping: threading.Event,
        on_progress: Callable[[str], object] = lambda _: None,
    ) -> tuple[str, str]:
        """Return name and id of the cluster when the log shows it; two empty strings if ``stopping`` is set. Not
        bounded in time.

        Args:
            existing: Returns the id of the cluster of a name, or an empty string if its log shows none yet.
            found: Creates the cluster of a name on the log, or finds that another process created it.
            on_progress: Callback for the reason of the wait, called when the reason changes.

        Errors of ``existing`` and ``found`` propagate.
        """
        channels: dict[str, grpc.Channel] = {}
        reported = ""
        try:
            while not stopping.is_set():
                self._wakeup.clear()
                if (name := self._view.cluster) and (cluster_id := existing(name)):
                    with self._lock:
                        self._save(with_cluster(self._view, cluster_id))
                    # Push the result to the others, so that they need not ask for it.
                    self._ask(channels)
                    return name, cluster_id
                if must_create(self._view):
                    found(name)
                    continue
                self._ask(channels)
                if (why := waits_for(self._view)) != reported:
                    on_progress(why)
                    reported = why
                self._wakeup.wait(ROUND_S)
            return "", ""
        finally:
            for channel in channels.values():
                channel.close()

    def _ask(self, channels: dict[str, grpc.Channel]) -> None:
        """Exchange views with all known processes in parallel."""
        asked = []
        for address in other_addresses(self._view):
            if address not in channels:
                channels[address] = channel_to(address, ANY_NODE, self._trust(), OPTIONS)
            asked.append((address, channels[address].unary_unary(DISCOVER).future(pack(self._view), timeout=ANSWER_S)))
        for address, answer in asked:
            # The next round asks this process again.
            with suppress(grpc.RpcError, WireError):
                self._merge(unpack(DiscoveryView, answer.result()), address)

    def _exchange_views(self, data: bytes, context: Any) -> bytes:
        if shown_node(context) == "" or is_revoked(context, self._trust()):
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "the certificate does not name a node, or is revoked")
        try:
            answered = self._merge(unpack(DiscoveryView, data))
        except WireError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            # ``abort`` always raises. This line is for the type checker.
            raise
        if answered is None:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "the view is of another cluster, or is too large")
        return pack(answered)

    def _merge(self, other: DiscoveryView, asked_at: str = "") -> DiscoveryView | None:
        with self._lock:
            answered = merge_view(self._view, other, asked_at)
            if answered is not None and answered != self._view:
                self._save(answered)
            return answered

    def _save(self, view: DiscoveryView) -> None:
        """Store a view on disk, then publish it. A view that other processes have seen must survive a crash."""
        replace_durably(self._path, pack(view), self._path.with_suffix(".new"))
        self._view = view
        self._wakeup.set()

    def _kept(self, cluster: str, address: str) -> DiscoveryView | None:
        try:
            kept = unpack(DiscoveryView, self._path.read_bytes())
        except FileNotFoundError:
            return None
        except WireError as error:
            raise DiscoveryImpossible(f"{self._path}: {error}", KEPT_HINT) from error
        if kept.address != address or cluster not in ("", kept.cluster or cluster):
            sought = kept.cluster or "any cluster"
            raise DiscoveryImpossible(f"{self._path} belongs to {kept.address}, which searches for {sought}", KEPT_HINT)
        return kept


def _fresh(cluster: str, address: str, seeds: Iterable[str], draw: Draw | None) -> DiscoveryView:
    return initial_view(cluster, address, draw_uuid(draw or SystemDraw()), seeds)


def waits_for(view: DiscoveryView) -> str:
    """Return the reason of the wait and the next step for the operator."""
    if not view.cluster:
        return "no seed knows the name of the cluster: start one of the nodes with --cluster"
    if view.cluster_id:
        return (
            f"cluster {view.cluster} exists with the id {view.cluster_id}, but this broker does not have its "
            "log: pass the broker of the other nodes, or rebuild a lost log (ringlog recover)"
        )
    silent = missing_views(view)
    shown = ", ".join(silent[:SHOWN_MAX]) + (f" and {len(silent) - SHOWN_MAX} more" if silent[SHOWN_MAX:] else "")
    waits = f"no answer from {shown}" if silent else f"{view.founder or 'the lowest id'} has not created it"
    return f"{waits}: start it, or create the cluster yourself (ringlog cluster create {view.cluster})"

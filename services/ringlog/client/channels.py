"""gRPC as this process's certificates have it: a port, a channel, and who is at the other end.

Without certificates (``ringlog.runtime.trust``) all of it is plain text, and nobody is known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from ringlog.kernel.values import NodeId
from ringlog.runtime.trust import CertificateOfAnotherNode, Trust, node_of_names


def listening(server: grpc.Server, place: str, trust: Callable[[], Trust]) -> int:
    """Have a server listen at ``host:port`` for those with a certificate of the cluster; the port, 0: it cannot.

    Each connection gets the certificate of its moment.
    """
    try:
        if not trust().encrypts:
            return int(server.add_insecure_port(place))
        credentials = grpc.dynamic_ssl_server_credentials(_shown(trust()), lambda: _shown(trust()), True)
        return int(server.add_secure_port(place, credentials))
    except RuntimeError:
        return 0


def _shown(trust: Trust) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(trust.key, trust.certificate)], trust.ca)


def channel_to(target: str, name: str, trust: Trust, options: tuple[tuple[str, Any], ...]) -> grpc.Channel:
    """To what listens at ``host:port``, if its certificate has this dNSName."""
    if not trust.encrypts:
        return grpc.insecure_channel(target, options=options)
    credentials = grpc.ssl_channel_credentials(trust.ca, trust.key, trust.certificate)
    return grpc.secure_channel(target, credentials, (*options, ("grpc.ssl_target_name_override", name)))


def shown_node(context: grpc.ServicerContext) -> NodeId | None:
    """The node that the certificate of who asks names; empty: it names none, None: there is no TLS."""
    shown = context.auth_context()
    if shown.get("transport_security_type", [b""])[0] not in (b"ssl", b"tls"):
        return None
    try:
        return node_of_names(tuple(name.decode("latin-1") for name in shown.get("peer_dns", ())))
    except CertificateOfAnotherNode:
        return ""

"""The protection that a cluster's connections lack, by the present login and certificates.

A cluster on this machine needs none: its brokers listen on the loopback interface.
"""

from __future__ import annotations

from collections.abc import Iterator

from ringlog.runtime.kafka.security import Security
from ringlog.runtime.trust import Trust, is_loopback


def missing_protection(
    bootstrap: str, security: Security, trust: Trust, *, has_principals: bool = True
) -> tuple[str, ...]:
    """Return the missing protection of brokers and nodes that other machines can reach.

    Args:
        has_principals: The cluster authenticates requests. Only an existing cluster can have principals.
    """
    hosts = (place.strip().rpartition(":")[0] or place.strip() for place in bootstrap.split(","))
    return () if all(map(is_loopback, hosts)) else tuple(_missing(security, trust, has_principals))


def _missing(security: Security, trust: Trust, has_principals: bool) -> Iterator[str]:
    if not security.encrypted:
        yield "no TLS to the brokers"
    if not (security.logs_in or security.certificate):
        yield "no login at the brokers"
    if not trust.encrypts:
        yield "no certificates for nodes"
    if not has_principals:
        yield "no principals"

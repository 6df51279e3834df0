"""Certificates of TLS connections: their end, and those that an operator has revoked.

A revoked certificate is named by its serial number, or by each of its dNSNames. A serial number has hex digits without
leading zeros.

Source: RFC 5280; decisions 83 and 191.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

_SERIAL: Final = re.compile(r"[0-9a-f]{1,2}(:?[0-9a-f]{2})*")
_NAME: Final = re.compile(r"[a-z0-9-]+(\.[a-z0-9-]+)+")
_LONG_FORM, _VERSION_TAG = 0x80, 0xA0
"""Of DER: the first length byte that contains the number of length bytes; the tag of the version."""

NEVER: Final = 2**53
"""The expiry, beyond every real date, if no authority limits it."""

Refuses = Callable[[int, Iterable[str]], bool]
"""Returns whether the certificate with this serial number and these dNSNames is revoked."""


def parse_revoked(text: str) -> frozenset[str]:
    """Return the certificates in a list, one a line. Raises ValueError, which quotes the line."""
    lines = (line.partition("#")[0].strip().lower() for line in text.splitlines())
    found = set()
    for line in filter(None, lines):
        if _SERIAL.fullmatch(line):
            found.add(f"{int(line.replace(':', ''), 16):x}")
        elif _NAME.fullmatch(line):
            found.add(line)
        else:
            raise ValueError(f"{line[:80]!a} is neither a serial number in hex digits nor a dNSName")
    return frozenset(found)


def serial_of(der: bytes) -> int:
    """Return the serial number of a certificate in DER: the first integer after the optional version."""

    def element(at: int) -> tuple[int, int, int]:
        """Return (tag, begin and end of the content) of the element at an offset."""
        begin, size = at + 2, der[at + 1]
        if size >= _LONG_FORM:
            begin, size = begin + size - _LONG_FORM, int.from_bytes(der[begin : begin + size - _LONG_FORM], "big")
        return der[at], begin, begin + size

    tag, begin, end = element(element(element(0)[1])[1])
    if tag == _VERSION_TAG:
        _, begin, end = element(end)
    return int.from_bytes(der[begin:end], "big")


def checking_classes(refuses: Refuses) -> tuple[type[ssl.SSLSocket], type[ssl.SSLObject]]:
    """Return connection classes of a client that refuse a server with a revoked certificate in the handshake."""

    def check(shown: Any) -> None:
        if refuses(int(shown["serialNumber"], 16), dns_names(shown)):
            raise ssl.SSLCertVerificationError("the certificate of the server is revoked")

    class CheckingSocket(ssl.SSLSocket):
        def do_handshake(self, block: bool = False) -> None:
            super().do_handshake(block)
            check(self.getpeercert())

    class CheckingObject(ssl.SSLObject):
        def do_handshake(self) -> None:
            super().do_handshake()
            check(self.getpeercert())

    return CheckingSocket, CheckingObject


def dns_names(certificate: Any) -> tuple[str, ...]:
    """Return the dNSNames of a certificate as described by ``ssl``; empty without one."""
    return tuple(value for kind, value in (certificate or {}).get("subjectAltName", ()) if kind == "DNS")


def certificate_end(certificate: Any) -> int:
    """Return the expiry of a certificate as described by ``ssl``, in seconds since 1970."""
    return int(ssl.cert_time_to_seconds(certificate["notAfter"]))


def authorities_end(ca: Path, certificate: Path, key: Path) -> int:
    """Return the expiry of the authorities that sign the certificate, in seconds since 1970.

    This is the latest expiry of a signing root, or the earliest of an intermediate, whichever comes first. During the
    replacement of an authority ``ca`` contains several roots, perhaps two with the same name. So each root is tried
    alone.
    """
    sending = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    sending.check_hostname, sending.verify_mode = False, ssl.CERT_NONE
    sending.load_cert_chain(certificate, key)
    roots, chain = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    roots.load_verify_locations(ca)
    chain.load_verify_locations(certificate)
    ends = []
    for root, shown in zip(roots.get_ca_certs(binary_form=True), roots.get_ca_certs(), strict=True):
        server_only = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server_only.load_cert_chain(certificate, key)
        server_only.load_verify_locations(cadata=root)
        server_only.verify_mode = ssl.CERT_REQUIRED
        with suppress(ssl.SSLError):
            handshake(sending, server_only)
            ends.append(certificate_end(shown))
    return min(max(ends, default=NEVER), *map(certificate_end, chain.get_ca_certs()), NEVER)


def shown_certificate(context: Callable[..., ssl.SSLContext]) -> Any:
    """Return the own certificate as a server sees it. Raises ssl.SSLError if the server rejects it."""
    server, client = context(ssl.PROTOCOL_TLS_SERVER), context(ssl.PROTOCOL_TLS_CLIENT, trusting=False)
    server.verify_mode = ssl.CERT_REQUIRED
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    return handshake(client, server)


def handshake(client: ssl.SSLContext, server: ssl.SSLContext, name: str | None = None) -> Any:
    """Perform a TLS handshake in memory and return the certificate that the server sees. Raises ssl.SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    shaking = list(ends)
    while shaking:
        for end in tuple(shaking):
            try:
                end.do_handshake()
                shaking.remove(end)
            except ssl.SSLWantReadError:
                continue
    return ends[1].getpeercert()

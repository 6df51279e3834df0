"""Revoked certificates: the list of an operator, and the checks of a connection.

A certificate is named by its serial number, or by each of its dNSNames. A serial number has hex digits without leading
zeros.

Source: RFC 5280; decision 191.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Iterable
from typing import Any, Final

_SERIAL: Final = re.compile(r"[0-9a-f]{2}(:?[0-9a-f]{2})*")
_NAME: Final = re.compile(r"[a-z0-9-]+(\.[a-z0-9-]+)+")
_LONG_FORM, _VERSION_TAG = 0x80, 0xA0
"""Of DER: the first length byte that contains the number of length bytes; the tag of the version."""

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
        names = [value for kind, value in shown.get("subjectAltName", ()) if kind == "DNS"]
        if refuses(int(shown["serialNumber"], 16), names):
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

"""Whom a process trusts on the network, and what it shows of itself: certificates for TLS, tokens for HTTP.

The file that ``RINGLOG_TRUST_CONFIG`` names; without it nodes and their clients talk in plain text, on the loopback.

    tls.ca=ca.pem
    tls.certificate=n1.pem
    tls.key=n1.key
    token.file=token
    ack.key=n1.acks

``tls.ca`` signs for everybody of one cluster, nodes and clients. A node's certificate names the node as a dNSName,
``<node id>.nodes.ringlog``: who calls a node compares it with the node that was meant, wherever the directory says that
it listens, and a node compares it with the node that somebody says to be. A client's certificate names no node.
``token.file`` has a token on each line: the first one is sent, each is taken, so that a token can be changed without a
moment in which one is refused. ``ack.key`` has the node's key for codes of its acknowledgements, ``ack.master`` that of
who believes them (``wire.acks``); a line for each, the first one makes, each checks.

Invariants: an address that other machines reach is listened on only with certificate and token, or where the operator
says that it is meant to be open (``guard``); files that anybody may read are refused; a secret is in no error, log or
``repr``. Files that are replaced hold from the next connection on; while the new ones are no good the old ones stay.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from ringlog.files import exposure
from ringlog.runtime.kafka.properties import BadPropertyLine, read_properties

if TYPE_CHECKING:  # every command of the program loads this module
    from ringlog.kernel.values import NodeId

TRUST_VARIABLE: Final = "RINGLOG_TRUST_CONFIG"
NODE_SUFFIX: Final = ".nodes.ringlog"
ANY_NODE: Final = "nodes.ringlog"
"""In the certificates of all nodes: who looks for a cluster knows addresses only
(``ringlog.client.creation.discovery``).
"""
TLS: Final = ("tls.ca", "tls.certificate", "tls.key")
TOKEN: Final = "token.file"
ACK_KEY, ACK_MASTER = "ack.key", "ack.master"
OPTIONS: Final = (*TLS, TOKEN, ACK_KEY, ACK_MASTER)
_NEVER: Final = 2**53
RECHECK_S: Final = 1.0
"""How old what is known of the files may be."""
FILE_BYTES_MAX: Final = 1024 * 1024
_NODE: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]{16,512}=*")


class BadTrustConfig(Exception):
    """Files of certificates and tokens cannot be used. The message names file and rule, and no secret."""

    code = "bad_trust_config"


class CertificateOfAnotherNode(BadTrustConfig):
    """The certificate that a node is to show names another node, or none."""

    code = "certificate_of_another_node"


class UnguardedAddress(BadTrustConfig):
    """Other machines reach the address, and all of them would be served: give certificate and token."""

    code = "unguarded_address"


@dataclass(frozen=True, slots=True)
class Trust:
    """What the files say. ``node``: the one that the certificate names, empty: none; ``expires``: when it or an
    authority that it depends on ends, seconds since 1970. ``server`` and ``client``: for Python's own TLS, None
    without; who connects to ``server`` shows a token, no certificate.
    """

    ca: bytes = b""
    certificate: bytes = b""
    key: bytes = field(default=b"", repr=False)
    tokens: tuple[str, ...] = field(default=(), repr=False)
    node: NodeId = ""
    expires: int = 0
    ack_keys: tuple[str, ...] = field(default=(), repr=False)
    ack_masters: tuple[str, ...] = field(default=(), repr=False)
    server: ssl.SSLContext | None = field(default=None, compare=False, repr=False)
    client: ssl.SSLContext | None = field(default=None, compare=False, repr=False)

    @property
    def encrypts(self) -> bool:
        """Is it TLS?"""
        return bool(self.ca)

    def url(self, address: str) -> str:
        """Of a node's HTTP side at ``host:port``."""
        return f"{'https' if self.encrypts else 'http'}://{address}"

    def headers(self) -> dict[str, str]:
        """What a request to HTTP brings with it."""
        return {"Authorization": f"Bearer {self.tokens[0]}"} if self.tokens else {}


PLAIN_TRUST: Final = Trust()


def name_of_node(node: NodeId) -> str:
    """The dNSName in the certificate of a node."""
    return f"{node}{NODE_SUFFIX}"


def guard(host: str, trust: Trust, *, insecure: bool) -> None:
    """Refuse to listen on what other machines reach without knowing who they are. Raises UnguardedAddress."""
    if insecure or (trust.encrypts and trust.tokens) or is_loopback(host):
        return
    lacks = " and ".join(name for name, given in ((", ".join(TLS), trust.encrypts), (TOKEN, trust.tokens)) if not given)
    raise UnguardedAddress(
        f"{host} is reached from other machines: give {TRUST_VARIABLE} (--trust-config) a file with {lacks}; or say "
        "that everybody there may do everything: RINGLOG_INSECURE=1"
    )


def is_loopback(host: str) -> bool:
    """True if nobody from another machine reaches that host, or it is gRPC's word for a socket in a folder. A name
    counts as what it stands for now.
    """
    if host == "unix":
        return True
    try:
        found = {address[4][0] for address in socket.getaddrinfo(host.strip("[]"), None)}
    except (OSError, UnicodeError):
        return False
    return bool(found) and all(ipaddress.ip_address(str(each).partition("%")[0]).is_loopback for each in found)


def node_of_names(names: tuple[str, ...]) -> NodeId:
    """The node that the dNSNames of a certificate name; empty: none. Raises CertificateOfAnotherNode for two."""
    node_names = sorted({name.lower() for name in names if name.lower().endswith(NODE_SUFFIX)})
    if not node_names:
        return ""
    node = node_names[0].removesuffix(NODE_SUFFIX)
    if len(node_names) > 1 or not _NODE.fullmatch(node):
        raise CertificateOfAnotherNode(f"a certificate names one node, not {', '.join(node_names)[:200]}")
    return node


def serving(trust: Callable[[], Trust]) -> ssl.SSLContext | None:
    """For a server: each connection gets the certificate of that moment. None without TLS."""
    if not trust().encrypts:
        return None

    def choose(connection: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
        found = trust().server
        assert found is not None, "files that take TLS back are not taken over"
        connection.context = found

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.sni_callback = choose
    return context


# ------------------------------------------------------------------------------------------------------ the process


def current() -> Trust:
    """What this process's file says by now. Raises BadTrustConfig."""
    path = os.environ.get(TRUST_VARIABLE)
    return _file(str(Path(path).absolute())).now() if path else PLAIN_TRUST


def trust_by(path: Path) -> None:
    """Have this process, and those that it starts, use the file. Raises BadTrustConfig."""
    absolute = str(path.absolute())
    _file(absolute).now()
    os.environ[TRUST_VARIABLE] = absolute


@cache
def _file(path: str) -> TrustFile:
    return TrustFile(Path(path))


class TrustFile:
    """A file that is looked at again and again. Safe from threads."""

    def __init__(self, path: Path, recheck_s: float = RECHECK_S) -> None:
        self._path = path
        self._recheck_s = recheck_s
        self._lock = threading.Lock()
        self._current: Trust | None = None
        self._files: tuple[Path, ...] = (path,)
        self._seen: object = None
        self._looked = float("-inf")

    def now(self) -> Trust:
        """What it says: the same value until it says something else. Raises BadTrustConfig, the first time only."""
        with self._lock:
            if self._current is not None and time.monotonic() - self._looked < self._recheck_s:
                return self._current
            self._looked = time.monotonic()
            seen = tuple(map(_mark, self._files))
            if self._current is not None and seen == self._seen:
                return self._current
            self._seen = seen
            try:
                files, found = read_trust(self._path)
                _follows(self._current, found)
            except BadTrustConfig as bad:
                if self._current is None:
                    raise
                _log().error("trust_kept", why=str(bad))
                return self._current
            if set(files) != set(self._files):
                self._files, self._seen = files, tuple(map(_mark, files))
            if self._current is not None and found != self._current:
                _log().info("trust_renewed", file=str(self._path), node=found.node)
            if found != self._current:
                self._current = found
            return self._current


def _log() -> Any:
    from ringlog.runtime.logs import get_logger

    return get_logger(__name__)


def _follows(previous: Trust | None, found: Trust) -> None:
    """Raises BadTrustConfig for what a process that runs cannot become."""
    if previous is not None and (previous.encrypts, previous.node) != (found.encrypts, found.node):
        raise BadTrustConfig("they are of another node, or TLS comes or goes: start the process again")


def _mark(path: Path) -> object:
    """Differs when the file does."""
    try:
        found = path.stat()
    except OSError as error:
        return error.errno
    return found.st_ino, found.st_size, found.st_mtime_ns


def read_trust(path: Path) -> tuple[tuple[Path, ...], Trust]:
    """The file and those that it names, checked as far as they can be without others. Raises BadTrustConfig."""
    try:
        lines = {line.name: line for line in read_properties(_bytes(path).decode("utf-8"))}
    except BadPropertyLine as bad:
        raise BadTrustConfig(f"{path}, line {bad.number}: {bad.rule}") from bad
    except UnicodeDecodeError as error:
        raise BadTrustConfig(f"{path}: not text in UTF-8") from error
    for line in lines.values():
        if line.name not in OPTIONS:
            raise BadTrustConfig(f"{path}, line {line.number}: {line.name}: one of {', '.join(OPTIONS)}")
    given = {name: path.absolute().parent / line.value for name, line in lines.items() if line.value}
    tls = given.keys() & set(TLS)
    if tls and len(tls) < len(TLS):
        raise BadTrustConfig(f"{path}: {', '.join(TLS)} belong together")
    tokens, ack_keys, ack_masters = (_secrets(given.get(name)) for name in (TOKEN, ACK_KEY, ACK_MASTER))
    found = _encrypting(tokens, *(given[name] for name in TLS)) if tls else Trust(tokens=tokens)
    return (path, *given.values()), replace(found, ack_keys=ack_keys, ack_masters=ack_masters)


def _bytes(path: Path, secret: bool = False) -> bytes:
    try:
        with path.open("rb") as file:
            if why := exposure(path, os.fstat(file.fileno()).st_mode, is_secret=secret):
                raise BadTrustConfig(why)
            data = file.read(FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        raise BadTrustConfig(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > FILE_BYTES_MAX:
        raise BadTrustConfig(f"{path} has more than {FILE_BYTES_MAX} bytes")
    return data


def _secrets(path: Path | None) -> tuple[str, ...]:
    """The secrets of a file, tokens or keys; none without a file."""
    if path is None:
        return ()
    found = tuple(filter(None, map(str.strip, _bytes(path, secret=True).decode("latin-1").splitlines())))
    if not found or not all(map(_TOKEN.fullmatch, found)):
        raise BadTrustConfig(f"{path}: a token on each line, of 16 to 512 letters, digits, or - . _ ~ + /")
    return found


def _encrypting(tokens: tuple[str, ...], ca: Path, certificate: Path, key: Path) -> Trust:
    """With contexts made of the very bytes. Raises BadTrustConfig, also for what the authority has not signed."""
    read = _bytes(ca), _bytes(certificate), _bytes(key, secret=True)

    def context(side: int, *, trusting: bool = True, showing: bool = True) -> ssl.SSLContext:
        made = ssl.SSLContext(side)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        made.hostname_checks_common_name = False  # who a certificate is of, its dNSNames say
        if trusting:
            made.load_verify_locations(ca)
        if showing:
            made.load_cert_chain(certificate, key, password=lambda: _refuse(f"{key} is encrypted: decrypt it"))
        return made

    try:
        server = context(ssl.PROTOCOL_TLS_SERVER)
        client = context(ssl.PROTOCOL_TLS_CLIENT)
        shown = _shown_certificate(context)
        node = node_of_names(tuple(value for kind, value in shown.get("subjectAltName", ()) if kind == "DNS"))
        expires = min(_end(shown), _authorities_end(ca, certificate, key))
        if node:
            _shake_hands(context(ssl.PROTOCOL_TLS_CLIENT, showing=False), server, name_of_node(node))
    except (OSError, ValueError) as error:  # SSLError is an OSError
        why = getattr(error, "verify_message", None) or getattr(error, "reason", None) or error
        raise BadTrustConfig(f"{ca}, {certificate}, {key}: not what TLS takes: {why}") from error
    if read != (_bytes(ca), _bytes(certificate), _bytes(key, secret=True)):
        raise BadTrustConfig(f"{certificate}, {key}: were replaced while they were read")
    return Trust(*read, tokens, node, expires, server=server, client=client)


def _refuse(why: str) -> NoReturn:
    raise BadTrustConfig(why)


def _end(certificate: Any) -> int:
    """Return when a certificate, as ``ssl`` describes it, ends: seconds since 1970."""
    return int(ssl.cert_time_to_seconds(certificate["notAfter"]))


def _authorities_end(ca: Path, certificate: Path, key: Path) -> int:
    """Return when the authorities that sign our certificate end: the last root that does, and each intermediate.

    While an authority is replaced, ``ca`` has several roots, and two of them may have one name: each is tried alone.
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
            _shake_hands(sending, server_only)
            ends.append(_end(shown))
    return min(max(ends, default=_NEVER), *map(_end, chain.get_ca_certs()), _NEVER)


def _shown_certificate(context: Callable[..., ssl.SSLContext]) -> Any:
    """Our certificate as a server sees it. Raises ssl.SSLError if that does not trust it."""
    server, client = context(ssl.PROTOCOL_TLS_SERVER), context(ssl.PROTOCOL_TLS_CLIENT, trusting=False)
    server.verify_mode = ssl.CERT_REQUIRED
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    return _shake_hands(client, server)


def _shake_hands(client: ssl.SSLContext, server: ssl.SSLContext, name: str | None = None) -> Any:
    """In memory; what the server is shown. Raises ssl.SSLError."""
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

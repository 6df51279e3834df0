"""Trust between processes on the network: certificates for TLS, tokens for HTTP, and keys for acknowledgements.

``RINGLOG_TRUST_CONFIG`` names the file. Without it, nodes and their clients communicate in plain text, on the loopback
interface.

    tls.ca=ca.pem
    tls.certificate=n1.pem
    tls.key=n1.key
    token.file=token
    ack.key=n1.acks
    request.key=n1.request-key
    revoked.file=revoked

``tls.ca`` signs the certificates of all nodes and clients of one cluster. A node's certificate names the node as a
dNSName, ``<node id>.nodes.ringlog``. A caller compares this name with the intended node, so a wrong address in the
directory does no harm. A node also compares it with the node that its caller claims to be. A client's certificate names
its principal, ``<name>.clients.ringlog``, and no node. Nodes check the rights of that principal to rows
(``ringlog.kernel.authorization``).

``token.file`` contains one token per line. The first one is sent and each one is accepted, so tokens can be replaced
without rejected requests. A token after the word ``metrics`` is accepted for metrics and health only, and never sent.

``ack.key`` contains the node's MAC keys for its acknowledgements, ``ack.master`` the master keys of the roles that
check them (``wire.acks``). In both, the first line makes MACs, and each line checks them. ``request.key`` contains the
keys of the principal that signs this process's requests, ``request.master`` the master keys of the validator that
checks them (``wire.requests``). The variable ``RINGLOG_REQUEST_KEY`` names another file of such keys, for a client
without a trust file.

``revoked.file`` contains one certificate per line: its serial number in hex digits, or a dNSName. Servers refuse the
calls of such a certificate, and clients of HTTP refuse such a server before they send the token.

Invariants:

- A process listens on an address that other machines can reach only with certificate and token, or if the operator
  allows it explicitly (``check_listen_address``).

- Files that other users own or can change are rejected, and so are secrets that the group or other users can open.

- No error, log or ``repr`` contains a secret.

- Replaced files apply to the next connection. If the new files are invalid, the old contents stay in use.

Source: decisions 83, 101, 187, 191 and 195.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from ringlog.errors import RinglogError
from ringlog.files import exposure
from ringlog.kernel.values import HidingValue, replace
from ringlog.runtime.certificates import (
    authorities_end,
    certificate_end,
    checking_classes,
    dns_names,
    handshake,
    parse_revoked,
    shown_certificate,
)
from ringlog.runtime.kafka.properties import BadPropertyLine, read_properties

if TYPE_CHECKING:  # every command of the program loads this module
    from ringlog.kernel.values import NodeId
    from ringlog.wire.requests import PrincipalKey

TRUST_VARIABLE: Final = "RINGLOG_TRUST_CONFIG"
NODE_SUFFIX: Final = ".nodes.ringlog"
CLIENT_SUFFIX: Final = ".clients.ringlog"
ANY_NODE: Final = "nodes.ringlog"
"""A name in the certificates of all nodes. A client that discovers a cluster knows only addresses, not node ids
(``ringlog.client.creation.discovery``).
"""
TLS: Final = ("tls.ca", "tls.certificate", "tls.key")
TOKEN: Final = "token.file"
METRICS_SCOPE: Final = "metrics "
"""Before a token in ``token.file``."""
ACK_KEY, ACK_MASTER = "ack.key", "ack.master"
REQUEST_KEY, REQUEST_MASTER = "request.key", "request.master"
ON_BEHALF_VARIABLE: Final = "RINGLOG_ON_BEHALF"
"""The person that the commands of this process act for."""
REQUEST_KEY_VARIABLE: Final = "RINGLOG_REQUEST_KEY"
REVOKED: Final = "revoked.file"
OPTIONS: Final = (*TLS, TOKEN, ACK_KEY, ACK_MASTER, REQUEST_KEY, REQUEST_MASTER, REVOKED)
RECHECK_S: Final = 1.0
"""Maximum age of the known contents of the files."""
FILE_BYTES_MAX: Final = 1024 * 1024
_NODE: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]{16,512}=*")


class BadTrustConfig(RinglogError):
    """Files of certificates and tokens are not valid. The message names file and rule, and no secret."""

    code = "bad_trust_config"


class CertificateOfAnotherNode(BadTrustConfig):
    """The configured certificate names another node, or none."""

    code = "certificate_of_another_node"


class UnguardedAddress(BadTrustConfig):
    """Other machines can reach the address and would have full access: configure certificate and token."""

    code = "unguarded_address"


class Trust(HidingValue):
    """The contents of the files.

    Attributes:
        tokens: Tokens for each request over HTTP.
        metrics_tokens: Tokens for metrics and health only.
        node: The node named by the certificate; empty: none.
        revoked: Refused certificates: serial numbers in hex digits, and dNSNames in lower case.
        expires: The first expiry of the certificate and its authorities, seconds since 1970.
        server: Context for Python's TLS servers, None without TLS (``server_context``).
        client: Context for Python's TLS clients, None without TLS.
    """

    HIDDEN = (
        *("key", "tokens", "metrics_tokens", "ack_keys", "ack_masters", "request_keys", "request_masters"),
        *("server", "client"),
    )

    ca: bytes = b""
    certificate: bytes = b""
    key: bytes = b""
    tokens: tuple[str, ...] = ()
    metrics_tokens: tuple[str, ...] = ()
    node: NodeId = ""
    expires: int = 0
    revoked: frozenset[str] = frozenset()
    ack_keys: tuple[str, ...] = ()
    ack_masters: tuple[str, ...] = ()
    request_keys: tuple[str, ...] = ()
    request_masters: tuple[str, ...] = ()
    server: ssl.SSLContext | None = None
    client: ssl.SSLContext | None = None

    @property
    def encrypts(self) -> bool:
        """True if TLS is configured."""
        return bool(self.ca)

    @property
    def monitoring_tokens(self) -> tuple[str, ...]:
        """The tokens that are accepted for metrics and health."""
        return self.tokens + self.metrics_tokens

    def refuses(self, serial: int, names: Iterable[str]) -> bool:
        """Return True if the certificate with this serial number and these dNSNames is revoked."""
        return not self.revoked.isdisjoint({f"{serial:x}", *map(str.lower, names)})

    def url(self, address: str) -> str:
        """Return the URL of a node's HTTP server at ``host:port``."""
        return f"{'https' if self.encrypts else 'http'}://{address}"

    def headers(self) -> dict[str, str]:
        """Return the HTTP headers that authenticate a request."""
        return {"Authorization": f"Bearer {self.tokens[0]}"} if self.tokens else {}


PLAIN_TRUST: Final = Trust()


def name_of_node(node: NodeId) -> str:
    """Return the dNSName in the certificate of a node."""
    return f"{node}{NODE_SUFFIX}"


def check_listen_address(host: str, trust: Trust, *, insecure: bool) -> None:
    """Refuse to listen on an address that other machines can reach without authentication. Raises UnguardedAddress."""
    if insecure or (trust.encrypts and trust.tokens) or is_loopback(host):
        return
    lacks = " and ".join(name for name, given in ((", ".join(TLS), trust.encrypts), (TOKEN, trust.tokens)) if not given)
    raise UnguardedAddress(
        f"other machines can reach {host}: pass --trust-config (or {TRUST_VARIABLE}) with {lacks}; or allow full "
        "access without login: RINGLOG_INSECURE=1"
    )


def is_loopback(host: str) -> bool:
    """Return True if other machines cannot reach the host, or if it is gRPC's name for a Unix socket.

    A host name is resolved now.
    """
    if host == "unix":
        return True
    try:
        found = {address[4][0] for address in socket.getaddrinfo(host.strip("[]"), None)}
    except (OSError, UnicodeError):
        return False
    return bool(found) and all(ipaddress.ip_address(str(each).partition("%")[0]).is_loopback for each in found)


def node_of_names(names: tuple[str, ...]) -> NodeId:
    """Return the node in the dNSNames of a certificate; empty if there is none.

    Raises CertificateOfAnotherNode if there are two.
    """
    node_names = sorted({name.lower() for name in names if name.lower().endswith(NODE_SUFFIX)})
    if not node_names:
        return ""
    node = node_names[0].removesuffix(NODE_SUFFIX)
    if len(node_names) > 1 or not _NODE.fullmatch(node):
        raise CertificateOfAnotherNode(f"a certificate must name exactly one node, not {', '.join(node_names)[:200]}")
    return node


def principal_of_names(names: tuple[str, ...]) -> str:
    """Return the principal in the dNSNames of a certificate; empty if they name a node, no principal, or two."""
    found = {name.removesuffix(CLIENT_SUFFIX) for name in names if name.endswith(CLIENT_SUFFIX)}
    is_client = len(found) == 1 and not any(name.lower().endswith(NODE_SUFFIX) for name in names)
    return found.pop() if is_client else ""


def server_context(trust: Callable[[], Trust], requests_certificate: bool = False) -> ssl.SSLContext | None:
    """Return a server context that selects the present certificate for each connection. None without TLS.

    Args:
        requests_certificate: Request a certificate of the client. A client without one is served, one of another
            authority is not.
    """
    if not trust().encrypts:
        return None

    def choose(connection: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
        found = trust().server
        assert found is not None, "a file without TLS is not adopted"
        connection.context = found

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.sni_callback = choose
    if requests_certificate:
        # A connection keeps this mode. The chosen context has its authorities, and the mode that ``getpeercert`` reads.
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


# ------------------------------------------------------------------------------------------------------ the process


def current() -> Trust:
    """Return the present contents of this process's trust file. Raises BadTrustConfig."""
    path = os.environ.get(TRUST_VARIABLE)
    return _file(str(Path(path).absolute())).now() if path else PLAIN_TRUST


def request_keys() -> tuple[PrincipalKey, ...]:
    """Return the keys that sign this process's requests; empty if it has none. Raises BadTrustConfig."""
    path = os.environ.get(REQUEST_KEY_VARIABLE)
    return _principal_keys((_key_file(str(Path(path).absolute())).now() if path else current()).request_keys)


def use_request_key(path: Path) -> None:
    """Sign requests with the keys in the file, in this process and its child processes. Raises BadTrustConfig."""
    absolute = str(path.absolute())
    _principal_keys(_key_file(absolute).now().request_keys)
    os.environ[REQUEST_KEY_VARIABLE] = absolute


@lru_cache(maxsize=8)
def _principal_keys(lines: tuple[str, ...]) -> tuple[PrincipalKey, ...]:
    if not lines:
        return ()
    from ringlog.wire.requests import principal_key

    found = tuple(principal_key(line) for line in lines)
    if None in found:
        raise BadTrustConfig(f"{REQUEST_KEY}: each line must be NAME/NUMBER/KEY, as `ringlog principal key` writes it")
    return tuple(key for key in found if key is not None)


def use_trust_file(path: Path, chosen_by: str = TRUST_VARIABLE) -> None:
    """Use the file in this process and its child processes. Raises BadTrustConfig.

    ``chosen_by``: the option, variable or context that names the file, for messages.
    """
    absolute = str(path.absolute())
    _file(absolute).now()
    os.environ[TRUST_VARIABLE] = absolute
    _chosen_by[absolute] = chosen_by


def certificate_source() -> str:
    """Return the file that this process has its certificate from, and who chose that file."""
    path = os.environ.get(TRUST_VARIABLE, "")
    return f"tls.certificate of {path}, chosen by {_chosen_by.get(path, TRUST_VARIABLE)}"


_chosen_by: dict[str, str] = {}


@cache
def _file(path: str) -> TrustFile:
    return TrustFile(Path(path))


@cache
def _key_file(path: str) -> TrustFile:
    return TrustFile(Path(path), read=lambda file: ((file,), Trust(request_keys=read_secrets(file))))


ReadTrust = Callable[[Path], tuple[tuple[Path, ...], Trust]]


class TrustFile:
    """A trust file that is checked for changes. Safe from threads."""

    def __init__(self, path: Path, recheck_s: float = RECHECK_S, read: ReadTrust | None = None) -> None:
        self._path = path
        self._read = read or read_trust
        self._recheck_s = recheck_s
        self._lock = threading.Lock()
        self._current: Trust | None = None
        self._files: tuple[Path, ...] = (path,)
        self._seen: object = None
        self._looked = float("-inf")

    def now(self) -> Trust:
        """Return the present contents, as the same object until they change.

        Raises BadTrustConfig at the first call only. Later, invalid files are logged and the old contents stay in use.
        """
        with self._lock:
            if self._current is not None and time.monotonic() - self._looked < self._recheck_s:
                return self._current
            self._looked = time.monotonic()
            seen = tuple(map(_mark, self._files))
            if self._current is not None and seen == self._seen:
                return self._current
            self._seen = seen
            try:
                files, found = self._read(self._path)
                _check_change(self._current, found)
            except BadTrustConfig as bad:
                if self._current is None:
                    raise
                _log().error("trust_kept", why=str(bad))
                return self._current
            # The file now names other files. Watch these, too.
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


def _check_change(previous: Trust | None, found: Trust) -> None:
    """Reject changes that a running process cannot make. Raises BadTrustConfig."""
    if previous is not None and (previous.encrypts, previous.node) != (found.encrypts, found.node):
        raise BadTrustConfig("the files belong to another node, or switch TLS on or off: restart the process")


def _mark(path: Path) -> object:
    """Return a value that changes when the file does."""
    try:
        found = path.stat()
    except OSError as error:
        return error.errno
    return found.st_ino, found.st_size, found.st_mtime_ns


def read_trust(path: Path) -> tuple[tuple[Path, ...], Trust]:
    """Read and check the trust file. Return the paths of all files and the contents. Raises BadTrustConfig."""
    try:
        lines = {line.name: line for line in read_properties(_bytes(path).decode("utf-8"))}
    except BadPropertyLine as bad:
        raise BadTrustConfig(f"{path}, line {bad.number}: {bad.rule}") from bad
    except UnicodeDecodeError as error:
        raise BadTrustConfig(f"{path}: not UTF-8 text") from error
    for line in lines.values():
        if line.name not in OPTIONS:
            raise BadTrustConfig(f"{path}, line {line.number}: {line.name}: must be one of {', '.join(OPTIONS)}")
    given = {name: path.absolute().parent / line.value for name, line in lines.items() if line.value}
    tls = given.keys() & set(TLS)
    if tls and len(tls) < len(TLS):
        raise BadTrustConfig(f"{path}: set {', '.join(TLS)} together")
    keys = (read_secrets(given.get(name)) for name in (ACK_KEY, ACK_MASTER, REQUEST_KEY, REQUEST_MASTER))
    ack_keys, ack_masters, own_keys, request_masters = keys
    _principal_keys(own_keys)
    revoked = _revoked(given.get(REVOKED))
    tokens = read_secrets(given.get(TOKEN), METRICS_SCOPE)
    scoped = tuple(one.removeprefix(METRICS_SCOPE) for one in tokens if one.startswith(METRICS_SCOPE))
    tokens = tuple(one for one in tokens if not one.startswith(METRICS_SCOPE))
    if scoped and not tokens:
        raise BadTrustConfig(f"{given[TOKEN]}: one line must be a token without a scope")
    found = _tls_trust(tokens, *(given[name] for name in TLS)) if tls else Trust(tokens=tokens)
    found = replace(found, ack_keys=ack_keys, ack_masters=ack_masters, request_keys=own_keys)
    found = replace(found, request_masters=request_masters, metrics_tokens=scoped, revoked=revoked)
    if found.client is not None and revoked:
        found.client.sslsocket_class, found.client.sslobject_class = checking_classes(found.refuses)
    return (path, *given.values()), found


def _bytes(path: Path, secret: bool = False) -> bytes:
    try:
        # Without O_NONBLOCK, a FIFO without a writer would block here.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if why := exposure(path, os.fstat(file.fileno()), is_secret=secret):
                raise BadTrustConfig(why)
            data = file.read(FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        raise BadTrustConfig(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > FILE_BYTES_MAX:
        raise BadTrustConfig(f"{path} has more than {FILE_BYTES_MAX} bytes")
    return data


def read_secrets(path: Path | None, scope: str = "") -> tuple[str, ...]:
    """Return the tokens or keys in a file; empty without a file. A line may begin with the scope.

    Raises BadTrustConfig.
    """
    if path is None:
        return ()
    found = secret_lines(path)
    if not found or not all(_TOKEN.fullmatch(one.removeprefix(scope)) for one in found):
        raise BadTrustConfig(f"{path}: each line must be a token of 16 to 512 letters, digits, or - . _ ~ + /")
    return found


def secret_lines(path: Path) -> tuple[str, ...]:
    """Return the lines of a file that only its owner can read, without empty ones. Raises BadTrustConfig."""
    return tuple(filter(None, map(str.strip, _bytes(path, secret=True).decode("latin-1").splitlines())))


def _revoked(path: Path | None) -> frozenset[str]:
    try:
        return frozenset() if path is None else parse_revoked(_bytes(path).decode("latin-1"))
    except ValueError as error:
        raise BadTrustConfig(f"{path}: {error}") from error


def _tls_trust(tokens: tuple[str, ...], ca: Path, certificate: Path, key: Path) -> Trust:
    """Return a trust with TLS contexts. Raises BadTrustConfig, also if the authority has not signed the certificate.

    The ``ssl`` module loads certificates from paths only. To detect a replacement during the read, the files are read
    before and after.
    """
    read = _bytes(ca), _bytes(certificate), _bytes(key, secret=True)

    def context(side: int, *, trusting: bool = True, showing: bool = True) -> ssl.SSLContext:
        made = ssl.SSLContext(side)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        made.hostname_checks_common_name = False  # identity is in the dNSNames only
        if trusting:
            made.load_verify_locations(ca)
        if showing:
            made.load_cert_chain(certificate, key, password=lambda: _refuse(f"{key} is encrypted: decrypt it"))
        return made

    try:
        server = context(ssl.PROTOCOL_TLS_SERVER)
        server.verify_mode = ssl.CERT_OPTIONAL
        client = context(ssl.PROTOCOL_TLS_CLIENT)
        shown = shown_certificate(context)
        node = node_of_names(dns_names(shown))
        expires = min(certificate_end(shown), authorities_end(ca, certificate, key))
        if node:
            handshake(context(ssl.PROTOCOL_TLS_CLIENT, showing=False), server, name_of_node(node))
    except CertificateOfAnotherNode as error:
        raise CertificateOfAnotherNode(f"{certificate}: {error}") from error
    except (OSError, ValueError) as error:  # SSLError is an OSError
        why = getattr(error, "verify_message", None) or getattr(error, "reason", None) or error
        raise BadTrustConfig(f"{ca}, {certificate}, {key}: not usable for TLS: {why}") from error
    if read != (_bytes(ca), _bytes(certificate), _bytes(key, secret=True)):
        raise BadTrustConfig(f"{certificate}, {key}: the files changed during the read")
    return Trust(*read, tokens, node=node, expires=expires, server=server, client=client)


def _refuse(why: str) -> NoReturn:
    raise BadTrustConfig(why)

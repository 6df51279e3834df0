"""A certificate authority for trials and small clusters: certificates of nodes and clients, and keys for
acknowledgements and requests.

All files are in one folder that only its owner can read. ``openssl`` creates the keys on P-256. ``ca.key`` can sign a
certificate for any identity, so keep it off the machines of the cluster. ``acks.master`` derives the nodes' keys, so it
belongs on the machines of the agents (``ringlog.wire.acks``), and so does ``request.master``, which derives the keys of
principals (``ringlog.wire.requests``). ``ringlog.runtime.trust`` defines how a certificate names a node or principal.

Certificates are short-lived. ``renew_certificates`` renews those in the last third of their life, and those of an old
authority.
"""

from __future__ import annotations

import re
import secrets
import shutil
import ssl
import subprocess
import time
import uuid
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from ringlog.files import OWNER_ONLY_MASK, private_folder, write_private
from ringlog.kernel.model.principals import FIRST_KEY
from ringlog.kernel.values import NodeId, Value, is_uuid
from ringlog.runtime.trust import (
    ACK_KEY,
    ACK_MASTER,
    ANY_NODE,
    CLIENT_SUFFIX,
    NODE_SUFFIX,
    REQUEST_KEY,
    REQUEST_MASTER,
    TLS,
    TOKEN,
    name_of_node,
)
from ringlog.wire.acks import key_of
from ringlog.wire.requests import key_of_principal

CA, CA_KEY, TOKENS, MASTER, REQUESTS = "ca.pem", "ca.key", "token", "acks.master", "request.master"
CA_DAYS: Final = 3650
DAYS: Final = 30
"""The lifetime of a certificate, unless the operator chooses another."""
LIFE_LEFT: Final = 1 / 3
"""A certificate is renewed in this last part of its life."""
DAY_S: Final = 86_400
OPENSSL_S: Final = 60.0
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----\n[^-]+-----END CERTIFICATE-----\n")
_NEW_KEY: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


class CertificatesFailed(Exception):
    """The certificate or key could not be created; the message has the cause."""

    code = "certificates_failed"


class AuthorityInUse(CertificatesFailed):
    """Certificates in the folder need the authority to remove; the message has the command that renews them."""

    code = "authority_in_use"


class MadeCertificate(Value):
    """A new certificate. ``node``: the named node, empty for none. ``config``: the file for ``--trust-config``."""

    name: str
    node: NodeId
    config: Path


class CertificateUse(Enum):
    """The holder of a certificate."""

    NODE = "node"
    AGENTS = "agents"
    CLIENT = "client"


def make_certificates(
    folder: Path,
    nodes: Iterable[tuple[str, NodeId]],
    clients: Iterable[str],
    days: int,
    agents: Iterable[str] = (),
    keys: Iterable[tuple[str, NodeId]] = (),
    ca_days: int = CA_DAYS,
    cluster_id: str = "",
) -> tuple[MadeCertificate, ...]:
    """Create certificates for nodes, agents and clients.

    The authority, the token and the master keys are created if they are missing.

    Args:
        nodes: (name, id) pairs. An empty id keeps the id of the name's last certificate, or draws a new one.
        keys: (name, id) pairs of nodes that get only a key for acknowledgements, because another authority signs their
            certificates.
        days: Lifetime of the certificates; at most the remaining lifetime of the authority.
        ca_days: Lifetime of a new authority.
        cluster_id: The cluster that nodes and clients send requests to. Their first key for it is created, if they have
            none. Empty: create no keys for requests.

    Raises CertificatesFailed, FileUnusable.
    """
    wanted = [(name, node, CertificateUse.NODE) for name, node in nodes]
    wanted += [
        (name, "", use)
        for use, them in ((CertificateUse.AGENTS, agents), (CertificateUse.CLIENT, clients))
        for name in them
    ]
    keys = tuple(keys)
    names = [name for name, _, _ in wanted] + [name for name, _ in keys]
    for name in names:
        if not _NAME.fullmatch(name) or name in ("ca", TOKENS, "acks") or names.count(name) > 1:
            raise CertificatesFailed(f"{name}: expected one name for each, of letters, digits, or - . _")
    if wanted and shutil.which("openssl") is None:
        raise CertificatesFailed("openssl is not in PATH: install it, or use your own authority (docs/deploy/tls.md)")
    if cluster_id and not is_uuid(cluster_id):
        raise CertificatesFailed(f"{cluster_id}: expected the id of a cluster, as `ringlog status` shows it")
    _check_ids(keys)
    private_folder(folder, CA, MASTER, ours=True)
    if wanted and not (folder / CA).exists():
        _make_authority(folder, ca_days)
    if wanted:
        _check_end(folder / CA, days)
    for path in (folder / name for name in ((TOKENS, MASTER, REQUESTS) if wanted else (MASTER,))):
        if not path.exists():
            write_private(path, f"{secrets.token_urlsafe(32)}\n")
    for name, node in keys:
        _write_ack_keys(folder, name, node)
    return tuple(_make(folder, name, node, use, days, cluster_id) for name, node, use in wanted)


def renew_certificates(folder: Path, days: int = DAYS) -> tuple[MadeCertificate, ...]:
    """Renew the expiring certificates in the folder. Raises CertificatesFailed, FileUnusable."""
    signing = _authorities(folder)[0]
    ours = [path for path in sorted(folder.glob("*.pem")) if path.with_suffix(".properties").exists()]
    with TemporaryDirectory(dir=folder) as made:
        newest = Path(made, CA)
        write_private(newest, signing)
        due = [path for path in ours if _is_due(path, newest)]
    by_use = {use: [path.stem for path in due if _use_of(path) is use] for use in CertificateUse}
    nodes = [(name, "") for name in by_use[CertificateUse.NODE]]
    return make_certificates(folder, nodes, by_use[CertificateUse.CLIENT], days, by_use[CertificateUse.AGENTS])


def _is_due(certificate: Path, authority: Path) -> bool:
    """Return True in the last third of a certificate's life, and if another authority signed it."""
    begin, end = _life(certificate)
    return end - time.time() < (end - begin) * LIFE_LEFT or not _is_signed(certificate, authority)


def _life(certificate: Path) -> tuple[int, int]:
    """Return the begin and the end of a certificate's life, in seconds since 1970."""
    shown = _openssl("x509", "-in", certificate, "-noout", "-startdate", "-enddate")
    begin, end = (ssl.cert_time_to_seconds(line.partition("=")[2]) for line in shown.splitlines())
    return begin, end


def add_authority(folder: Path, days: int = CA_DAYS) -> None:
    """Create a new signing authority. The old ones stay in ``ca.pem`` after it, so their certificates remain valid.

    Raises CertificatesFailed, FileUnusable.
    """
    authorities = _authorities(folder)
    _make_authority(folder, days)
    write_private(folder / CA, "".join([(folder / CA).read_text(encoding="ascii"), *authorities]))


def retire_authorities(folder: Path) -> int:
    """Remove all authorities but the signing one from ``ca.pem``, and return the number removed.

    Raises AuthorityInUse if a valid certificate in the folder needs one of them, CertificatesFailed, FileUnusable.
    """
    newest, *old = _authorities(folder)
    if old:
        _check_unused(folder, newest, old)
    write_private(folder / CA, newest)
    return len(old)


def _check_unused(folder: Path, newest: str, old: Iterable[str]) -> None:
    """Refuse to remove an authority that signed a certificate in the folder. Expired certificates do not count."""
    with TemporaryDirectory(dir=folder) as made:
        kept, retired = Path(made, "kept.pem"), Path(made, "retired.pem")
        write_private(kept, newest)
        write_private(retired, "".join(old))
        needing = [
            path
            for path in sorted(folder.glob("*.pem"))
            if path.name != CA and not _is_signed(path, kept) and _is_signed(path, retired)
        ]
    if needing:
        renewing = " ".join(f"--{_use_of(path).value} {path.stem}" for path in needing)
        raise AuthorityInUse(
            f"{', '.join(path.name for path in needing)} in {folder}: signed by an old authority. Renew with "
            f"`ringlog cluster certificates {folder} {renewing}`, or delete the files that are not used. Copy the new "
            "files to their machines first"
        )


def _is_signed(certificate: Path, authorities: Path) -> bool:
    try:
        _openssl("verify", "-CAfile", authorities, certificate)
    except CertificatesFailed:
        return False
    return True


def _use_of(certificate: Path) -> CertificateUse:
    """Return the holder of an existing certificate."""
    if _named_by(certificate):
        return CertificateUse.NODE
    config = certificate.with_suffix(".properties")
    is_agents = config.exists() and f"{ACK_MASTER}=" in config.read_text(encoding="utf-8")
    return CertificateUse.AGENTS if is_agents else CertificateUse.CLIENT


def _authorities(folder: Path) -> list[str]:
    """Return the certificates in ``ca.pem``, the signing authority first."""
    try:
        found = _PEM.findall((folder / CA).read_text(encoding="ascii"))
    except (OSError, UnicodeDecodeError) as error:
        raise CertificatesFailed(f"{folder / CA} cannot be read: {error}") from error
    if not found:
        raise CertificatesFailed(f"{folder / CA} contains no certificate")
    return found


def _check_end(ca: Path, days: int) -> None:
    """Refuse a certificate that would outlive the authority. Raises CertificatesFailed."""
    end = _life(ca)[1]
    left = int((end - time.time()) / DAY_S)
    if days > left:
        day = time.strftime("%Y-%m-%d", time.gmtime(end))
        raise CertificatesFailed(
            f"the authority in {ca} expires on {day}: pass --days {max(left, 0)} at most, or replace the authority "
            "with --new-ca"
        )


def _make_authority(folder: Path, days: int) -> None:
    """Create key and certificate in a temporary folder first, so a failure of ``openssl`` keeps the old authority."""
    with TemporaryDirectory(dir=folder) as made:
        key, certificate = Path(made, CA_KEY), Path(made, CA)
        extensions = (
            "-addext",
            "basicConstraints=critical,CA:TRUE,pathlen:0",
            "-addext",
            "keyUsage=critical,keyCertSign",
        )
        where = ("-keyout", key, "-out", certificate, "-days", str(days), "-subj", "/CN=ringlog")
        _openssl("req", "-x509", *_NEW_KEY, *where, *extensions)
        key.replace(folder / CA_KEY)
        certificate.replace(folder / CA)


def _make(folder: Path, name: str, node: NodeId, use: CertificateUse, days: int, cluster_id: str) -> MadeCertificate:
    if node and not is_uuid(node):
        raise CertificatesFailed(f"{name}={node}: expected a UUID as the id. `ringlog node list` shows it")
    if use is CertificateUse.NODE:
        node = node or _named_by(folder / f"{name}.pem") or str(uuid.uuid4())
    extensions = ["basicConstraints=CA:FALSE", "extendedKeyUsage=serverAuth,clientAuth"]
    names = (name_of_node(node), ANY_NODE) if node else (f"{name}{CLIENT_SUFFIX}",)
    extensions.append(f"subjectAltName={','.join(f'DNS:{each}' for each in names)}")
    with TemporaryDirectory(dir=folder) as made:
        key, request, certificate, extension_file = (
            Path(made, f"{name}.{end}") for end in ("key", "csr", "pem", "cnf")
        )
        extension_file.write_text("\n".join(extensions), encoding="utf-8")
        _openssl("req", "-new", *_NEW_KEY, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
        authority = ("-CA", folder / CA, "-CAkey", folder / CA_KEY, "-set_serial", f"0x{secrets.token_hex(16)}")
        signing = ("-in", request, "-out", certificate, "-days", str(days), "-extfile", extension_file)
        _openssl("x509", "-req", *signing, *authority)
        key.replace(folder / key.name)
        certificate.replace(folder / certificate.name)
    config = folder / f"{name}.properties"
    values = dict(zip((*TLS, TOKEN), (CA, certificate.name, key.name, TOKENS), strict=True))
    if use is CertificateUse.NODE:
        _write_ack_keys(folder, name, node)
        values[ACK_KEY] = f"{name}.acks"
    elif use is CertificateUse.AGENTS:
        values |= {ACK_MASTER: MASTER, REQUEST_MASTER: REQUESTS}
    own = folder / f"{name}.request-key"
    if cluster_id and use is not CertificateUse.AGENTS and not own.exists():
        master = (folder / REQUESTS).read_text(encoding="utf-8").split()[0]
        write_private(own, f"{key_of_principal(master, cluster_id, name, FIRST_KEY)}\n")
    if own.exists():
        values[REQUEST_KEY] = own.name
    old = config.read_text(encoding="utf-8").splitlines() if config.exists() else []
    kept = [line for line in old if line.partition("=")[0].strip() not in values]
    write_private(
        config, "".join(f"{line}\n" for line in (*(f"{name}={value}" for name, value in values.items()), *kept))
    )
    return MadeCertificate(name, node, config)


def _check_ids(keys: Iterable[tuple[str, NodeId]]) -> None:
    for name, node in keys:
        if not is_uuid(node):
            raise CertificatesFailed(f"{name}={node}: expected a UUID as the id. `ringlog node list` shows it")


def _write_ack_keys(folder: Path, name: str, node: NodeId) -> None:
    """Write a node's keys, one for each master key in the same order. The node signs with the first."""
    masters = (folder / MASTER).read_text(encoding="utf-8").split()
    write_private(folder / f"{name}.acks", "".join(f"{key_of(master, node)}\n" for master in masters))


def _named_by(certificate: Path) -> NodeId:
    """Return the node that an existing certificate names; empty if the certificate is missing or names none."""
    if not certificate.exists():
        return ""
    shown = _openssl("x509", "-in", certificate, "-noout", "-text")
    found = re.search(rf"DNS:([0-9a-f-]{{36}}){re.escape(NODE_SUFFIX)}\b", shown)
    return found[1] if found else ""


def _openssl(*arguments: object) -> str:
    command = ["openssl", *map(str, arguments)]
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=OPENSSL_S, umask=OWNER_ONLY_MASK, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CertificatesFailed(f"openssl {command[1]}: {error}") from error
    if ended.returncode != 0:
        raise CertificatesFailed(f"openssl {command[1]}: {ended.stderr.strip()[-300:]}")
    return ended.stdout

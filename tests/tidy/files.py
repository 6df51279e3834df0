"""The repository's own files, as its self-checks see them."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@cache
def files() -> tuple[Path, ...]:
    """Every file that belongs to the repository: tracked, or new and not ignored."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return tuple(path for path in (ROOT / name for name in sorted(listed.split("\0")) if name) if path.is_file())


def python_files(*folders: str) -> tuple[Path, ...]:
    """The Python files below some top folders, all of them without an argument."""
    chosen = (path for path in files() if path.suffix == ".py")
    return tuple(path for path in chosen if not folders or path.relative_to(ROOT).parts[0] in folders)


def text(path: Path) -> str | None:
    """A file's text, None for one that is not text."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def shown(path: Path) -> str:
    """A file's name as a reader of the repository knows it."""
    return str(path.relative_to(ROOT))

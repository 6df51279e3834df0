"""Finding a Java that the broker and Spark run on: 17 or newer, and really there, not just a name in PATH."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass

JAVA_MAJOR_MIN = 17
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')


@dataclass(frozen=True, slots=True)
class Java:
    """A Java launcher that answered: its path and major version (17, 21, …)."""

    path: str
    major: int


def parse_major(text: str) -> int | None:
    """Major version in what ``java -version`` prints (``1.8.0`` is 8), None when there is none."""
    found = _VERSION.search(text)
    if found is None:
        return None
    major = int(found.group(1))
    return int(found.group(2) or 0) if major == 1 else major


def candidates() -> tuple[str, ...]:
    """Launchers to try, JAVA_HOME first: whoever sets it means it."""
    home = os.environ.get("JAVA_HOME")
    found = [os.path.join(home, "bin", "java")] if home else []
    on_path = shutil.which("java")
    return tuple(found + ([on_path] if on_path else []))


def find_java() -> Java | None:
    """The first candidate that runs and is new enough, or None."""
    for path in candidates():
        try:
            answer = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=60, check=False)
        except (OSError, subprocess.TimeoutExpired):
            continue
        major = parse_major(answer.stderr + answer.stdout)
        if answer.returncode == 0 and major is not None and major >= JAVA_MAJOR_MIN:
            return Java(path=path, major=major)
    return None

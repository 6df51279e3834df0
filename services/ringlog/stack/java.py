"""Finding a Java that the broker and Spark run on: 17 to 23, and really there, not just a name in PATH.

Spark 4.0 stands on a call that Java 24 took away. A distribution's newest Java is therefore often not the one, and the
right one is often installed beside it: it is looked for where distributions put theirs.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path

JAVA_MAJOR_MIN, JAVA_MAJOR_MAX = 17, 23
WANTED = f"Java {JAVA_MAJOR_MIN} to {JAVA_MAJOR_MAX}"
INSTALLED = (
    "/usr/lib/jvm/*/bin/java",
    "/opt/homebrew/opt/openjdk@*/bin/java",
    "/usr/local/opt/openjdk@*/bin/java",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home/bin/java",
)
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
    """Launchers to try, JAVA_HOME first: it was set on purpose. Then PATH, then what is installed beside it."""
    home = os.environ.get("JAVA_HOME")
    found = [os.path.join(home, "bin", "java")] if home else []
    on_path = shutil.which("java")
    beside = (path for pattern in INSTALLED for path in sorted(glob.glob(pattern)))
    return (*found, *([on_path] if on_path else []), *beside)


def find_java() -> Java | None:
    """The first candidate that runs and has a fitting version, or None."""
    for path in candidates():
        try:
            answer = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=60, check=False)
        except (OSError, subprocess.TimeoutExpired):
            continue
        major = parse_major(answer.stderr + answer.stdout)
        if answer.returncode == 0 and major is not None and JAVA_MAJOR_MIN <= major <= JAVA_MAJOR_MAX:
            return Java(path=path, major=major)
    return None


def prefer_fitting(environment: MutableMapping[str, str]) -> None:
    """Leads PySpark, which asks JAVA_HOME and PATH only, to the Java that was found; a JAVA_HOME that is set stays."""
    java = None if environment.get("JAVA_HOME") else find_java()
    if java is not None and java.path != shutil.which("java"):
        environment["JAVA_HOME"] = str(Path(java.path).parents[1])

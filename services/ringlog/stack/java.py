"""Java for the broker and Spark: an installed version from 17 to 23, and class archives for faster starts.

Spark 4.0 uses a call that Java 24 removed. So the newest Java of a distribution is often unsuitable, while a suitable
one is installed next to it. The usual folders of distributions are searched. Each candidate is started once, because a
launcher in PATH may not work.

A class archive contains the classes that a JVM otherwise reads, verifies and lays out at each start (class data sharing
in the JDK). With an archive, a broker answers a third sooner, and a local Spark session needs about half of the
processor time until its first answer (``bench/class_archives.py``). An archive fits one Java and one class path. The
JVM verifies that, and continues without an archive that does not fit. So an archive affects only the start time.

Archives are stored in the Python environment with the libraries. ``make archives`` records them: with
``RINGLOG_RECORD_CLASSES`` set, each JVM writes its loaded classes when it exits.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
import sys
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
    """A Java launcher that works: its path and major version (17, 21, …)."""

    path: str
    major: int


def parse_major(text: str) -> int | None:
    """Parse the major version from the output of ``java -version`` (``1.8.0`` is 8). Return None if there is none."""
    found = _VERSION.search(text)
    if found is None:
        return None
    major = int(found.group(1))
    return int(found.group(2) or 0) if major == 1 else major


def candidates() -> tuple[str, ...]:
    """Return the launchers to try: first JAVA_HOME, which was set on purpose, then PATH, then the usual folders."""
    home = os.environ.get("JAVA_HOME")
    found = [os.path.join(home, "bin", "java")] if home else []
    on_path = shutil.which("java")
    installed = (path for pattern in INSTALLED for path in sorted(glob.glob(pattern)))
    return (*found, *([on_path] if on_path else []), *installed)


def find_java() -> Java | None:
    """Return the first candidate that works and has a suitable version, or None."""
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
    """Set JAVA_HOME to a suitable Java for PySpark, unless it is set. PySpark searches only JAVA_HOME and PATH."""
    java = None if environment.get("JAVA_HOME") else find_java()
    if java is not None and java.path != shutil.which("java"):
        environment["JAVA_HOME"] = str(Path(java.path).parents[1])


RECORD = "RINGLOG_RECORD_CLASSES"
BROKER, SPARK = "broker", "spark"
_QUIET = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off")
"""Suppress messages about an archive that does not fit, because the JVM works without it."""


def path_of(name: str) -> Path:
    """Return the path of an archive. It may not exist yet."""
    return Path(sys.prefix) / "share" / "ringlog" / f"{name}.jsa"


def options(name: str) -> tuple[str, ...]:
    """Return JVM options that use or record an archive. Recording requires ``RINGLOG_RECORD_CLASSES``."""
    if os.environ.get(RECORD):
        return (f"-XX:ArchiveClassesAtExit={recording_path(name)}", *_QUIET)
    return archive_options(name)


def recording_path(name: str) -> Path:
    """Return the path of an archive that is being recorded. It is renamed when complete, so no JVM uses a partial
    archive.
    """
    return path_of(name).with_suffix(".new")


def archive_options(name: str) -> tuple[str, ...]:
    """Return options that use an existing archive, for tools that share it and are not recorded."""
    path = path_of(name)
    return (f"-XX:SharedArchiveFile={path}", *_QUIET) if path.is_file() else ()

"""Java for the broker and Spark: an installed version from 17 to 23, and class archives for faster starts.

Spark 4.0 uses a call that Java 24 removed. The newest Java of a distribution is therefore often unsuitable, and a
suitable one is often installed next to it, so the usual folders of distributions are searched. A found Java is started
once, because a name in PATH may not work.

A class archive stores the classes that a JVM reads, checks and lays out at each start (class data sharing in the JDK).
With one, a broker answers a third sooner, and a local Spark session needs about half of the processor time until its
first answer (``bench/class_archives.py``). An archive fits one Java and one class path; the JVM checks that and
continues without one that does not fit. So an archive makes a start faster and changes nothing else.

Archives are in the environment of the libraries that they belong to. ``make archives`` records them: with
``RINGLOG_RECORD_CLASSES`` set, each JVM writes its loaded classes when it ends.
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
    installed = (path for pattern in INSTALLED for path in sorted(glob.glob(pattern)))
    return (*found, *([on_path] if on_path else []), *installed)


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


RECORD = "RINGLOG_RECORD_CLASSES"
BROKER, SPARK = "broker", "spark"
_QUIET = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off")
"""Nothing is said of an archive that does not fit: the JVM works as it would have without."""


def path_of(name: str) -> Path:
    """Where the archive lies, or will lie."""
    return Path(sys.prefix) / "share" / "ringlog" / f"{name}.jsa"


def options(name: str) -> tuple[str, ...]:
    """The JVM's options: to use the archive; to record it where that is asked for; none where there is none."""
    if os.environ.get(RECORD):
        return (f"-XX:ArchiveClassesAtExit={recorded(name)}", *_QUIET)
    return used(name)


def recorded(name: str) -> Path:
    """Where a JVM writes what it had loaded, until all of it is there: nobody uses half an archive."""
    return path_of(name).with_suffix(".new")


def used(name: str) -> tuple[str, ...]:
    """The options of a tool beside the JVM that the archive is of: it has no classes of its own to record."""
    path = path_of(name)
    return (f"-XX:SharedArchiveFile={path}", *_QUIET) if path.is_file() else ()

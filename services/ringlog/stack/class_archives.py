"""Class archives: the classes that a JVM reads, checks and lays out at each start, stored once for those that follow.

A broker answers a third sooner with one, a local Spark session takes about half of the processor time until its first
answer (``bench/class_archives.py``). The JDK calls it class data sharing. An archive fits one Java and one class path:
the JVM looks itself, and goes on without one that does not fit. So an archive makes a start faster and changes nothing
else; where none was made, none is used.

They lie in the environment whose libraries they are of, and go with it. ``make archives`` records them: with
``RINGLOG_RECORD_CLASSES`` set, each JVM that ends writes what it had loaded.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

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

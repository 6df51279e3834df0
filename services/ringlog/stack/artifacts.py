"""The jars for the broker and Spark: their list, their folder and their verification.

``artifacts.sha256`` lists one jar per line: SHA-256, set, Maven coordinates. A set of Spark's jars
has the release of Spark in its name. Jars are stored in the user's cache, in
``$XDG_CACHE_HOME/ringlog/jars/<set>-<hash of the set's list>/``. A release with another list uses another folder, so
two checkouts do not affect each other.

Invariant: a jar has its final name only if its hash was correct.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ringlog.stack.errors import StackError

LIST = Path(__file__).with_name("artifacts.sha256")
SPARK_RELEASES = ("4.2", "4.0")
"""The Spark releases that the CDC job runs on. The first one is the default of set-up."""
_LINE = re.compile(r"([0-9a-f]{64})  ([a-z]+(?:-[0-9.]+)?)  ([\w.-]+):([\w.-]+):([\w.-]+)")


@dataclass(frozen=True, slots=True)
class Artifact:
    """A jar: its Maven coordinates and its expected hash."""

    sha256: str
    set_name: str
    group: str
    name: str
    version: str

    @property
    def file_name(self) -> str:
        return f"{self.name}-{self.version}.jar"


def parse(text: str) -> tuple[Artifact, ...]:
    """Parse a list of jars. Raises StackError ``bad_artifact_list`` with the line number."""
    found: list[Artifact] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise StackError(
                "bad_artifact_list", f"Line {number} of the artifact list is not 'sha256  set  group:name:version'."
            )
        found.append(Artifact(*match.groups()))
    return tuple(found)


def artifacts(set_name: str) -> tuple[Artifact, ...]:
    """Return the jars of a set in list order, which is the order of the class path."""
    return tuple(artifact for artifact in parse(LIST.read_text(encoding="utf-8")) if artifact.set_name == set_name)


def sets(spark: str) -> tuple[str, ...]:
    """Return the sets that a Spark release needs: the broker, Spark's connectors, Delta."""
    return "kafka", f"spark-{spark}", f"lake-{spark}"


def installed_spark() -> str:
    """Return the release of the installed PySpark, such as 4.2. Raises StackError ``spark_unsupported``."""
    try:
        found = version("pyspark")
    except PackageNotFoundError:
        found = "none"
    release = ".".join(found.split(".")[:2])
    if release not in SPARK_RELEASES:
        raise StackError(
            "spark_unsupported",
            f"PySpark {found} is installed, not {' or '.join(SPARK_RELEASES)}.",
            'Run: pip install "ringlog[spark]"',
        )
    return release


def spark_jars() -> tuple[Path, ...]:
    """Return the jars for the installed PySpark. Raises StackError ``spark_unsupported`` or ``jars_missing``."""
    _, *own = sets(installed_spark())
    return tuple(path for name in own for path in jars(name))


def cache_root() -> Path:
    """Return the user's cache folder for Ringlog. As the XDG specification requires, a relative path is ignored."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "ringlog"


def jar_folder(set_name: str) -> Path:
    """Return the folder of a set's jars. It may not exist yet."""
    listed = "\n".join(artifact.sha256 for artifact in artifacts(set_name))
    return cache_root() / "jars" / f"{set_name}-{hashlib.sha256(listed.encode()).hexdigest()[:12]}"


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def damaged(set_name: str) -> tuple[Artifact, ...]:
    """Return the jars of a set that are missing or have a wrong hash."""
    folder = jar_folder(set_name)

    def is_intact(artifact: Artifact) -> bool:
        path = folder / artifact.file_name
        return path.is_file() and file_hash(path) == artifact.sha256

    return tuple(artifact for artifact in artifacts(set_name) if not is_intact(artifact))


def jars(set_name: str) -> tuple[Path, ...]:
    """Return the paths of a set's jars. Raises StackError ``jars_missing`` if set-up has not downloaded them."""
    folder = jar_folder(set_name)
    paths = tuple(folder / artifact.file_name for artifact in artifacts(set_name))
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise StackError(
            "jars_missing",
            f"{len(missing)} {set_name} jars are missing in {folder}, the first is {missing[0]}.",
            "Run: ringlog stack setup",
        )
    return paths

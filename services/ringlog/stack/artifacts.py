"""The jars that the broker and Spark need: which, where they lie, and whether they are what they should be.

The list is data (``artifacts.sha256``): a SHA-256, a set and Maven coordinates a line. Jars lie in the user's cache,
``$XDG_CACHE_HOME/ringlog/jars/<set>-<hash of the set's list>/``: a release with another list gets another folder, so
two checkouts never spoil each other's jars. A jar is there only under its final name, and only after its hash was
right.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from ringlog.stack.errors import StackError

LIST = Path(__file__).with_name("artifacts.sha256")
SETS = ("kafka", "spark", "lake")
_LINE = re.compile(r"([0-9a-f]{64})  ([a-z]+)  ([\w.-]+):([\w.-]+):([\w.-]+)")


@dataclass(frozen=True, slots=True)
class Artifact:
    """One jar by its Maven coordinates, with the hash it must have."""

    sha256: str
    set_name: str
    group: str
    name: str
    version: str

    @property
    def file_name(self) -> str:
        return f"{self.name}-{self.version}.jar"


def parse(text: str) -> tuple[Artifact, ...]:
    """Artifacts of a list; raises StackError ``bad_artifact_list`` that names the line."""
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
    """The jars of one set, in the order of the list (which is the order of the class path)."""
    return tuple(artifact for artifact in parse(LIST.read_text(encoding="utf-8")) if artifact.set_name == set_name)


def cache_root() -> Path:
    """The user's cache folder for Ringlog, by the XDG rule (a relative value is ignored, as the rule says)."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "ringlog"


def jar_folder(set_name: str) -> Path:
    """Where the jars of a set lie, once fetched."""
    listed = "\n".join(artifact.sha256 for artifact in artifacts(set_name))
    return cache_root() / "jars" / f"{set_name}-{hashlib.sha256(listed.encode()).hexdigest()[:12]}"


def file_hash(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def damaged(set_name: str) -> tuple[Artifact, ...]:
    """Jars of a set that are absent or have the wrong bytes."""
    folder = jar_folder(set_name)

    def is_intact(artifact: Artifact) -> bool:
        path = folder / artifact.file_name
        return path.is_file() and file_hash(path) == artifact.sha256

    return tuple(artifact for artifact in artifacts(set_name) if not is_intact(artifact))


def jars(set_name: str) -> tuple[Path, ...]:
    """Paths of a set's jars; raises StackError ``jars_missing`` when set-up has not fetched them."""
    folder = jar_folder(set_name)
    paths = tuple(folder / artifact.file_name for artifact in artifacts(set_name))
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise StackError(
            "jars_missing",
            f"{len(missing)} {set_name} jars are not in {folder}, {missing[0]} first.",
            "Run: make setup",
        )
    return paths

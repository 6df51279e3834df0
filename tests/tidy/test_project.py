"""The files around the code: lock, list of jars, Makefile, continuous integration, and the import contract."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from configparser import RawConfigParser
from pathlib import Path

import pytest

import ringlog
from ringlog.protocol.roles import ROLES
from ringlog.stack.bootstrap import lock_blocks
from tests.cli.known_commands import parse
from tests.tidy.files import ROOT, files, shown, text

ADDRESS = re.compile(r"\bhttps?://|\bgit\+|--(?:extra-)?index-url|--find-links")


def test_the_lock_gives_a_version_and_hashes_for_each_package_and_no_address() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    blocks = lock_blocks(lock)
    assert len(blocks) > 60
    assert "".join(blocks.values()) == lock, "only packages"
    form = re.compile(r"(?:[\w.-]+==\S+(?: ; [^\\\n]+)? \\\n(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)+")
    assert [name for name, block in blocks.items() if not form.fullmatch(block)] == []


def test_the_lock_has_every_dependency_of_the_project() -> None:
    with (ROOT / "pyproject.toml").open("rb") as stream:
        project = tomllib.load(stream)
    lists = [*project["project"]["optional-dependencies"].values(), *project["dependency-groups"].values()]
    asked = [*project["project"]["dependencies"], *(one for several in lists for one in several)]
    names = {re.split(r"[\[<>=!~ ]", one)[0].lower() for one in asked} - {"ringlog"}
    assert len(project["project"]["dependencies"]) <= 8
    assert names - lock_blocks((ROOT / "requirements.lock").read_text()).keys() == set()


def test_the_project_and_the_program_have_the_same_version() -> None:
    with (ROOT / "pyproject.toml").open("rb") as stream:
        project = tomllib.load(stream)["project"]
    assert project["version"] == ringlog.__version__
    assert (ROOT / project["license-files"][0]).read_text(encoding="utf-8").split()[:2] == ["Apache", "License"]


def test_a_release_has_addresses_that_exist() -> None:
    """Before the first release, the addresses are names that RFC 2606 reserves."""
    with (ROOT / "pyproject.toml").open("rb") as stream:
        urls = tomllib.load(stream)["project"]["urls"]
    assert {"Documentation", "Source", "Issues", "Changelog"} <= urls.keys()
    assert ".dev" in ringlog.__version__ or [url for url in urls.values() if ".example/" in url] == []


@pytest.mark.parametrize(
    "name", ["requirements.lock", "services/ringlog/stack/artifacts.sha256", "Makefile", ".ci/run"]
)
def test_no_address_of_a_registry(name: str) -> None:
    assert ADDRESS.findall((ROOT / name).read_text()) == []


def test_the_import_contract_is_kept() -> None:
    program = Path(sys.executable).with_name("lint-imports")
    sources = os.pathsep.join(str(ROOT / name) for name in ("services", "streaming", "schemas"))
    environment = {**os.environ, "PYTHONPATH": sources}
    checked = subprocess.run(
        [str(program), "--no-cache"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout
    assert " 0 broken" in checked.stdout


def test_scripts_are_valid_and_executable() -> None:
    scripts = [path for path in files() if (text(path) or "").startswith("#!")]
    assert ".ci/run" in {shown(path) for path in scripts}
    for path in scripts:
        assert os.access(path, os.X_OK), shown(path)
        if "bash" in path.read_text().splitlines()[0]:
            checked = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True, check=False)
            assert checked.returncode == 0, checked.stderr


def test_make_alone_prints_every_target_with_its_purpose() -> None:
    # As a child of make, this make would print the directories that it enters.
    command = ["make", "--no-print-directory"]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert targets is not None
    assert [line.split()[1] for line in answer.splitlines()] == targets.group(1).split()


def test_small_text_files_end_with_a_newline() -> None:
    def is_torn(path: Path) -> bool:
        # fuzzer inputs are bytes, with or without a newline
        content = text(path) if "corpus" not in path.parts else None
        return content is not None and content != "" and not content.endswith("\n")

    assert [shown(path) for path in files() if is_torn(path)] == []


# The systemd units start known commands, restart them after a crash, and allow enough file descriptors.


UNITS = sorted((ROOT / "compose" / "systemd").glob("*.service"))
INSTANCES = {"ringlog-agent@": tuple(ROLES), "ringlog-node@": ("n1",), "ringlog-cdc@": ("orders",)} | {
    "ringlog-console": ("",)
}
FILES_MIN = 65_536
EXPOSURE_MAX = 20
"""The limit of the exposure that systemd computes for a unit, in tenths."""


def service(path: Path) -> dict[str, str]:
    """Return the options of the section Service; of repeated options, the last value."""
    found = RawConfigParser(strict=False)
    found.optionxform = str  # type: ignore[assignment, method-assign]
    found.read_string(path.read_text(encoding="utf-8"))
    return dict(found["Service"])


def test_each_kind_of_process_has_a_unit() -> None:
    assert {path.stem for path in UNITS} == set(INSTANCES)


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_restarts_a_known_command(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for line in (path.parent / "ringlog.env").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#") and "/etc/" not in line:  # those files are not on this machine
            monkeypatch.setenv(*line.split("=", 1))
    options = service(path)
    assert options["Restart"] == "always"
    assert int(options["LimitNOFILE"]) >= FILES_MIN
    assert options["KillMode"] == "mixed"
    for instance in INSTANCES[path.stem]:
        program, *command = shlex.split(options["ExecStart"].replace("%i", instance))
        assert Path(program).name == "ringlog"
        parse(command)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_is_sandboxed(path: Path) -> None:
    """The exposure is 0.0 to 10.0. Without a sandbox it is 9.2."""
    ended = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", f"--threshold={EXPOSURE_MAX}", str(path)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_systemd_understands_every_line(path: Path, tmp_path: Path) -> None:
    """The program of the unit is not installed here, so the test names another one."""
    instance = path.stem + INSTANCES[path.stem][0] + ".service"
    text = path.read_text(encoding="utf-8").replace("/opt/ringlog/bin/ringlog", "/bin/true")
    (tmp_path / instance).write_text(text, encoding="utf-8")
    ended = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(tmp_path / instance)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    complaints = [line for line in ended.stderr.splitlines() if instance in line]
    assert (ended.returncode, complaints) == (0, [])

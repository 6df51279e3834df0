"""The wheel: built twice with the same bytes, complete, and sufficient in an environment with nothing else."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
import typer

from ringlog.cli.main import app
from ringlog.extras import EXTRAS
from tests.cli.known_commands import parse
from tests.client.test_build_pages import PAGES, samples
from tests.stack.installed import ROOT, build, clean, closure, install, size

OWN = {path.name for top in ("services", "streaming", "schemas") for path in (ROOT / top).glob("ringlog*")}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def base(built: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("base"), built[-1])


@pytest.fixture(scope="module")
def with_cli(built: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("cli"), built[-1], "cli")


def run(python: Path, code: str, *arguments: str) -> Any:
    """Run a program in an environment and return the JSON of its last line."""
    command = [str(python), "-I", "-c", code, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, env=clean(), check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


# ------------------------------------------------------------------------------------------------------- the files


def test_two_builds_have_the_same_bytes(built: list[Path], tmp_path: Path) -> None:
    """The second wheel is built from the source distribution, in another folder and with another time of its files."""
    again = build(tmp_path / "again")
    with tarfile.open(built[0]) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.glob("ringlog-*")
    from_sources = build(tmp_path / "from-sources", unpacked, "wheel")
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in built]
    assert from_sources[0].read_bytes() == built[-1].read_bytes()


def test_the_wheel_has_types_schemas_and_jar_hashes_and_no_tests(built: list[Path]) -> None:
    names = zipfile.ZipFile(built[-1]).namelist()
    packages = {name.split("/")[0] for name in names if "dist-info" not in name}
    assert packages == OWN - {"ringlog_sim"}
    assert {name.split("/")[0] for name in names if name.endswith("/py.typed")} == packages
    schemas = [path.relative_to(ROOT / "schemas") for path in (ROOT / "schemas").rglob("*.avsc")]
    assert len(schemas) > 100
    assert {*map(str, schemas), "ringlog/stack/artifacts.sha256"} <= {*names}
    assert [name for name in names if name.startswith("tests/") or name.endswith((".pyc", ".diff"))] == []


# ------------------------------------------------------------------------------------------------------- the types


@pytest.fixture(scope="module")
def checked(built: list[Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the Python of an installation with all extras, and a folder with every sample of ``docs/build``."""
    pytest.importorskip("pyspark", reason="a light environment")
    folder = tmp_path_factory.mktemp("checked")
    for page in PAGES:
        for number, block in enumerate(samples(page)):
            (folder / f"{page.stem.replace('-', '_')}_{number}.py").write_text(block, encoding="utf-8")
    assert len([*folder.iterdir()]) > 15
    return install(folder / "venv", built[-1], "all"), folder


def check_types(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    files = sorted(path.name for path in folder.glob("*.py"))
    return subprocess.run([*command, *files], cwd=folder, env=clean(), capture_output=True, text=True, check=False)


def test_mypy_accepts_every_sample_and_finds_a_wrong_argument(checked: tuple[Path, Path]) -> None:
    """mypy reads the types in the wheel. The wrong argument shows that it finds them."""
    python, folder = checked
    wrong = "from ringlog import commands\n\ncommands.create_keyspace('ks')\n"
    (folder / "wrong.py").write_text(wrong, encoding="utf-8")
    ended = check_types([sys.executable, "-m", "mypy", "--strict", "--python-executable", str(python)], folder)
    assert [line.split(": ")[:2] for line in ended.stdout.splitlines()[:-1]] == [["wrong.py:3", "error"]], ended.stdout


@pytest.mark.skipif(shutil.which("pyright") is None, reason="pyright is not in PATH: make others installs it")
def test_pyright_accepts_every_sample(checked: tuple[Path, Path]) -> None:
    python, folder = checked
    (folder / "wrong.py").unlink(missing_ok=True)
    ended = check_types(["pyright", "--pythonpath", str(python)], folder)
    assert ended.stdout.startswith("0 errors"), ended.stdout


# ------------------------------------------------------------------------------------------------------ the extras


def test_the_table_of_extras_is_that_of_the_project() -> None:
    """Each module of an extra belongs to a distribution of that extra, and each distribution of an extra is listed."""
    pytest.importorskip("pyspark", reason="a light environment")
    with (ROOT / "pyproject.toml").open("rb") as stream:
        declared = tomllib.load(stream)["project"]["optional-dependencies"]
    assert declared.keys() == {*EXTRAS, "all"}
    of_module = packages_distributions()
    for extra, modules in EXTRAS.items():
        brought = {one.metadata["Name"].lower() for one in closure(frozenset({extra})).values()}
        for module in modules:
            assert {name.lower() for name in of_module[module]} & brought, f"{module} in {extra}"
    unlisted = {*closure(frozenset({"all"}))} - {*closure(frozenset({*EXTRAS}))}
    assert unlisted == set()


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the page shows Python 3.11")
def test_the_page_has_the_packages_and_sizes_of_each_extra() -> None:
    pytest.importorskip("pyspark", reason="a light environment")
    page = (ROOT / "docs" / "build" / "install.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (none|`\w+`) \| .* \| (\d+) \| (\d+) \|$", page, re.MULTILINE)
    assert {name.strip("`") for name, *_ in rows} == {"none", "all", *EXTRAS}
    for name, packages, megabytes in rows:
        extras = frozenset({name.strip("`")} - {"none"})
        assert len(closure(extras)) == int(packages), name
        assert size(extras) / 1e6 == pytest.approx(int(megabytes), rel=0.1), name


def test_the_base_has_every_public_name(base: Path) -> None:
    code = "import json, ringlog; print(json.dumps([n for n in ringlog.__all__ if getattr(ringlog, n) is None]))"
    assert run(base, code) == []


def test_the_first_test_of_the_page_passes_in_the_base(base: Path) -> None:
    page = (ROOT / "docs" / "build" / "testing.md").read_text(encoding="utf-8")
    sample = page.split("```python\n")[1].split("```")[0]
    assert run(base, f"{sample}\ntest_my_first_keyspace(FakeCluster())\nprint(0)") == 0


def leaves(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of each command below a group."""
    inner = getattr(command, "list_commands", None)
    if inner is None or command.invoke_without_command:
        yield words
    for name in inner(None) if inner else ():
        yield from leaves(command.get_command(None, name), (*words, name))


WALK = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from ringlog.cli.__main__ import main

found = []
for words in json.loads(sys.argv[1]):
    sys.argv = ["ringlog", *words]
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as errors:
        try:
            main()
            status = 0
        except SystemExit as end:
            status = end.code or 0
    found.append([words, status, errors.getvalue() or out.getvalue()])
print(json.dumps(found))
"""

COMMANDS = sorted(leaves(typer.main.get_command(app)))
NEEDS = {
    "agents": "agents",
    "agent validator": "agents",
    "audit --bootstrap 127.0.0.1:1 --cluster c": "audit",
    "cdc run --cluster c --checkpoint /tmp/none --bootstrap 127.0.0.1:1": "spark",
    "demo": "agents",
    "node run n1": "node",
    "status --cached --bootstrap 127.0.0.1:1 --cluster c": "redis",
}
"""Commands to the first extra that they lack when only ``cli`` is installed."""


def test_without_the_command_line_each_command_names_its_extra(base: Path) -> None:
    assert len(COMMANDS) > 100
    for words, status, printed in run(base, WALK, json.dumps(COMMANDS)):
        assert (status, printed.startswith("extra_missing: "), "ringlog[cli]" in printed) == (3, True, True), words
    as_json = subprocess.run(
        [str(base.with_name("ringlog")), "status", "--json"], capture_output=True, text=True, env=clean(), check=False
    )
    assert (as_json.returncode, json.loads(as_json.stdout)["code"]) == (3, "extra_missing")


def test_with_the_command_line_every_help_is_there(with_cli: Path) -> None:
    asked = [[*words, "--help"] for words in COMMANDS if words[0] != "sim" or words[1] not in ONLY_IN_A_CLONE]
    for words, status, printed in run(with_cli, WALK, json.dumps(asked)):
        assert (status, "Usage: " in printed) == (0, True), (words, printed)


ONLY_IN_A_CLONE = {"run", "replay", "mutants"}


@pytest.mark.parametrize("line", NEEDS)
def test_a_command_names_the_extra_that_it_lacks(line: str, with_cli: Path) -> None:
    parse(line.split())
    ((_, status, printed),) = run(with_cli, WALK, json.dumps([line.split()]))
    assert (status, printed.split(":")[0]) == (3, "extra_missing"), printed
    assert f'pip install "ringlog[{NEEDS[line]}]"' in printed


IMPORTS = {
    "from ringlog.cache.reader import CachedReader as c; c.connect('redis://127.0.0.1:1', 'c')": "redis",
    "import ringlog_cdc_reader": "spark",
    "from ringlog.log.archive.locations import open_location; open_location('s3://bucket/x')": "archive",
}


@pytest.mark.parametrize("code", IMPORTS)
def test_an_import_names_the_extra_that_it_lacks(code: str, base: Path) -> None:
    caught = f"import json, ringlog\ntry:\n    {code.replace('; ', chr(10) + '    ')}\n"
    caught += "except ringlog.RinglogError as error:\n    print(json.dumps([error.code, str(error)]))"
    found, text = run(base, caught)
    assert found == "extra_missing"
    assert f"ringlog[{IMPORTS[code]}]" in text

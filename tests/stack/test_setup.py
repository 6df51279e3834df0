"""``ringlog stack setup``: the broker's jars for an installation without a clone, mvn or PySpark."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ringlog.stack import artifacts
from tests.stack.installed import build, clean, install

JARS = {name: f"content of {name}".encode() for name in ("one", "two", "three")}


class QuietHandler(SimpleHTTPRequestHandler):
    """A handler that does not log requests."""

    def log_message(self, format: str, *args: object) -> None:
        """Do nothing."""


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[str]:
    """Yield the address of a Maven repository with the jars."""
    for name, content in JARS.items():
        folder = tmp_path / "repository" / "org" / "example" / name / "1.0"
        folder.mkdir(parents=True)
        (folder / f"{name}-1.0.jar").write_bytes(content)
    handler = partial(QuietHandler, directory=str(tmp_path / "repository"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        serving.join()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the program of an installation with the extra ``testing``, whose list of jars a test may change."""
    folder = tmp_path_factory.mktemp("installed")
    return install(folder / "venv", build(folder / "dist", artifacts.LIST.parents[3], "wheel")[0], "testing")


def set_up(program: Path, home: Path, repository: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the command with an empty home, and only with Java in PATH."""
    path = os.pathsep.join([str(program.parent), "/usr/bin"])
    variables = clean(HOME=str(home), XDG_CACHE_HOME=str(home), PATH=path, RINGLOG_MAVEN_REPOSITORY=repository)
    hidden = "import shutil, sys; find = shutil.which\n"
    hidden += "shutil.which = lambda name, *rest: None if name == 'mvn' else find(name, *rest)\n"
    hidden += "sys.argv = ['ringlog', 'stack', 'setup', *sys.argv[1:]]\nfrom ringlog.cli.__main__ import main\nmain()"
    command = [str(program), "-I", "-c", hidden, *options]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


def listed(program: Path, wrong: str = "") -> None:
    """Write the installed list of jars, with a wrong hash for one of them."""
    digests = {name: hashlib.sha256(b"x" if name == wrong else content).hexdigest() for name, content in JARS.items()}
    (place,) = program.parents[1].glob("lib/python3*/site-packages/ringlog/stack/artifacts.sha256")
    place.write_text("".join(f"{digest}  kafka  org.example:{name}:1.0\n" for name, digest in digests.items()))


def test_jars_come_from_the_repository_and_are_checked(program: Path, repository: str, tmp_path: Path) -> None:
    listed(program, wrong="two")
    refused = set_up(program, tmp_path / "home", repository)
    assert refused.returncode == 1
    assert refused.stderr.startswith("fetch_failed: 1 kafka jars were not downloaded: org.example:two:1.0")
    assert "two-1.0.jar has SHA-256" in refused.stderr
    (folder,) = (tmp_path / "home" / "ringlog" / "jars").iterdir()
    assert {path.name for path in folder.iterdir()} == {"one-1.0.jar", "three-1.0.jar"}
    listed(program)
    done = set_up(program, tmp_path / "home", repository, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert {"java", "redis", "jars"} == json.loads(done.stdout).keys()
    again = set_up(program, tmp_path / "home", "http://127.0.0.1:1")
    assert (again.returncode, again.stdout.count("Python")) == (0, 0), "nothing is left to download"


def test_a_repository_that_is_away_is_named(program: Path, tmp_path: Path) -> None:
    listed(program)
    refused = set_up(program, tmp_path / "home", "http://127.0.0.1:1")
    assert refused.returncode == 1
    assert refused.stderr.startswith("fetch_failed: 3 kafka jars were not downloaded")
    assert "Connection refused" in refused.stderr

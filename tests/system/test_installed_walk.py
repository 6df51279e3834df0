"""A developer without a clone: the wheel in a new environment, a local cluster, the first program, the first test.

The commands and the code are those of the pages, typed in an empty home. The walk prints the time of each part and the
size of the environment (``pytest -s``).
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.ending import taking_down
from tests.stack.installed import EPOCH
from tests.system.page_shell import Shell, blocks, follow, shell
from tests.tidy.files import ROOT
from tests.tidy.markdown import blocks as fenced

from ringlog.stack import Stack

pytestmark = pytest.mark.system

BUILD = ROOT / "docs" / "build"


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    """Yield a shell in an empty project beside the clone. It uses the locked versions of packages."""
    home, programs = tmp_path / "home", tmp_path / "programs"
    for folder in (home / "project", programs):
        folder.mkdir(parents=True)
    (home / "ringlog").symlink_to(ROOT)
    base = str(getattr(sys, "_base_executable", sys.executable))
    (programs / "python3").write_text(f'#!/bin/sh\nexec {shlex.quote(base)} "$@"\n')
    (programs / "python3").chmod(0o755)
    lock = re.findall(r"^(\S+==[^\\\n]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    (tmp_path / "constraints").write_text("\n".join(lock))
    monkeypatch.setenv("PIP_CONSTRAINT", str(tmp_path / "constraints"))
    monkeypatch.setenv("PIP_DISABLE_PIP_VERSION_CHECK", "1")  # its notice is no output of the page
    monkeypatch.setenv("PIP_NO_COMPILE", "1")  # Python compiles what a command imports
    monkeypatch.setenv("SOURCE_DATE_EPOCH", EPOCH)
    with taking_down(Stack(home / ".local/state/ringlog/stack")), shell(home, programs, is_installed=True) as opened:
        assert opened.run("cd ~/project")[0] == 0
        yield opened


def test_the_pages_lead_from_an_empty_folder_to_a_program_and_a_test(reader: Shell) -> None:
    began, times = time.monotonic(), {}
    *install, remove = blocks((BUILD / "install.md").read_text(encoding="utf-8"))
    program = blocks((BUILD / "first-program.md").read_text(encoding="utf-8"))
    assert (len(install), len(program)) == (5, 3)
    for name, block in [*zip(("wheel", "install", "jars", "start", "nodes"), install, strict=True)]:
        follow(block, reader)
        times[name] = time.monotonic() - began
    for block in program:
        follow(block, reader)
    times["program"] = time.monotonic() - began
    sample = next(one.text for one in fenced((BUILD / "testing.md").read_text(encoding="utf-8")))
    status, printed = reader.run(f"cat > test_first.py <<'END'\n{sample}END\npython -m pytest -q test_first.py")
    assert (status, "1 passed" in printed) == (0, True), printed
    times["test"] = time.monotonic() - began
    status, printed = reader.run("python -c 'import ringlog; print(ringlog.__file__)'; pip list; du -sm venv")
    assert printed.startswith("~/project/venv/lib/"), "not the packages of the clone"
    assert "pyspark" not in printed
    print(*(f"{name} after {seconds:.1f} s" for name, seconds in times.items()), printed.splitlines()[-1], sep="\n")
    reader.run("kill $(jobs -p); wait")
    follow(remove, reader)
    assert reader.run("ringlog --version")[0] == 127
    assert os.fspath(ROOT) not in printed

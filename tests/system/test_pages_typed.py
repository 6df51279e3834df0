"""Pages of the documentation, typed into a shell with an empty home.

The quick start starts a cluster, and each of its blocks answers as the page shows. The other pages are typed into the
same cluster. Invariant: each command block of a page is typed, or has a reason in ``page_walks`` why it cannot be.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.ending import taking_down
from tests.system.page_shell import PROGRAM_S, Block, Shell, blocks, follow, matches, program_folder, shell, type_page
from tests.system.page_walks import NOT_RUN, NOT_TYPED, OFFLINE, PROGRAMS, WALKS, Walk
from tests.tidy.files import ROOT
from tests.tidy.markdown import blocks as fenced
from tests.waiting import until

from ringlog.stack import Stack

pytestmark = pytest.mark.system

DOCS = ROOT / "docs"
QUICK_START = "quick-start.md"


def typed(page: str) -> list[Block]:
    return blocks((DOCS / page).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def reader(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """Yield a shell after all blocks of the quick start but the last."""
    programs = program_folder(tmp_path_factory.mktemp("programs"))
    setup, *others = typed(QUICK_START)
    assert setup.commands == "make setup\nsource .venv/bin/activate\n", "the test's shell has the program already"
    assert len(others) > 12
    with taking_down(Stack(home / ".local/state/ringlog/stack")), shell(home, programs) as opened:
        for block in others[:-1]:
            follow(block, opened)
        yield opened


def test_each_block_of_the_quick_start_answers_as_shown(reader: Shell) -> None:
    status, printed = reader.run("jobs -r")
    assert (status, printed.count("ringlog node run")) == (0, 4), printed


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk.page)
def test_the_blocks_of_a_page_can_be_typed(walk: Walk, reader: Shell, home: Path) -> None:
    folder = home / "pages" / walk.page.replace("/", "-")
    folder.mkdir(parents=True)
    assert reader.run(f"cd {folder}")[0] == 0
    for command, condition in walk.given:
        assert until(lambda: reader.run(command)[0] == 0, condition)  # noqa: B023 (called here)
    type_page(walk, typed(walk.page), reader)


@pytest.mark.parametrize(("page", "number"), PROGRAMS, ids=lambda part: str(part))
def test_a_program_of_a_page_runs(page: str, number: int, reader: Shell, home: Path) -> None:
    stack = Stack(home / ".local/state/ringlog/stack").address()
    assert stack is not None
    block = [one for one in fenced((DOCS / page).read_text(encoding="utf-8")) if one.language == "python"][number]
    program = block.text.replace("127.0.0.1:9092", stack.bootstrap).replace("redis://127.0.0.1:6379/0", stack.redis)
    (home / "pages" / "program.py").write_text(program)
    runner = sys.executable if "pyspark" in program else "run-file"  # a driver of Spark shares nothing with the server
    command = f"cd ~/pages; RINGLOG_KAFKA_CONFIG={stack.kafka_config} timeout {PROGRAM_S} {runner} program.py"
    status, printed = reader.run(command)
    if "Python worker failed to connect back" in printed:  # the machine is busy, and the page says to start it again
        status, printed = reader.run(command)
    assert status == 0, printed


def test_the_quick_start_leaves_nothing_behind(reader: Shell, home: Path) -> None:
    reader.run("cd ~/quick-start; rm -r ~/pages")
    follow(typed(QUICK_START)[-1], reader)
    assert [path.name for path in home.iterdir()] == [".local"]


def test_each_page_with_commands_is_typed_or_has_a_reason() -> None:
    pages = {
        str(path.relative_to(DOCS))
        for path in DOCS.rglob("*.md")
        if path.parent.name != "decisions" and blocks(path.read_text(encoding="utf-8"))
    }
    listed = [QUICK_START, *(walk.page for walk in (*WALKS, *OFFLINE)), *NOT_TYPED]
    assert sorted(pages) == sorted(listed)


def test_each_program_runs_or_has_a_reason() -> None:
    found = []
    for path in DOCS.rglob("*.md"):
        programs = [one for one in fenced(path.read_text(encoding="utf-8")) if one.language == "python"]
        found += [(str(path.relative_to(DOCS)), number) for number in range(len(programs))]
    assert sorted(found) == sorted([*PROGRAMS, *NOT_RUN])


def test_a_wrong_output_would_be_seen() -> None:
    shown = "applied at epoch 7, operation join-46\n…\n  finished, epoch 56\n"
    assert matches(shown, "applied at epoch 12, operation join-3\n  requested, epoch 3\n  finished, epoch 5 \n")
    assert not matches(shown, "applied at epoch 12, operation join-3\n  cancelled, epoch 5\n")
    assert not matches('{"line": 1}\n', '{"line": 2}\n')
    assert not matches("n1  normal\n", "n2  normal\n")

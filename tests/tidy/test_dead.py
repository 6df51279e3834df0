"""The product has no unused code.

``vulture`` reads the product without the tests, so code for tests only counts as unused. A name is used if product code
uses it, if the guides name it for embedders, or if the list below has it with a reason.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from vulture.core import Vulture

from tests.tidy.files import ROOT, files, python_files, shown, text

PRODUCT = ("services", "streaming", "schemas")
SURE = 60
"""The confidence in percent that vulture gives for a name without another occurrence."""
BY_DECORATOR = ["@app.*", "@*.command", "@*.command()", "@*.callback", "@register", "@*.exception_handler", "@command"]
BY_NAME = ["decide_*"]
"""Rules of commands; the registry finds them by name."""
HOOKS = {
    "a role's thread, imported by its name when the role starts": {
        "BalancerThread",
        "CoordinatorThread",
        "KeeperThread",
        "PublisherThread",
        "ValidatorThread",
    },
    "called by the interpreter for a name of a module": {"__getattr__", "__dir__"},
    "called by typer": {"format_commands"},
    "called by http.server and socketserver": {
        "allow_reuse_address",
        "block_on_close",
        "daemon_threads",
        "do_GET",
        "service_actions",
        "handle_error",
        "log_message",
        "redirect_request",
        "version_string",
        "address_family",
    },
    "called by faust": {"spinner", "on_start", "_sentinel_task"},
    "read by templates of the console": {"may_change"},
    "read by uvicorn": {"should_exit"},
    "read by pydantic": {"model_config", "_empty_is_default", "_empty_is_none", "_empty_is_not"},
    "read by the Java gateway of Spark": {"implements"},
    "called by Spark": {
        "onQueryProgress",
        "onQueryStarted",
        "onQueryIdle",
        "onQueryTerminated",
        "streamReader",
        "latestOffset",
        "addInPlace",
    },
    "choices of the command line, found by their values": {
        "CONFLUENT",
        "APICURIO",
        "MILLISECONDS",
        "MICROSECONDS",
        "NANOSECONDS",
    },
    "a command of the program, whose name is a keyword of Python": {"import_plan"},
    "figures that are written by their names": {"repeated"},
    "statements of a batch, found by the class of the command": {
        "alter_keyspace",
        "drop_keyspace",
        "alter_table",
        "drop_table",
        "create_type",
        "alter_type",
        "drop_type",
        "create_view",
        "drop_view",
        "create_index",
        "drop_index",
        "create_function",
        "drop_function",
        "create_aggregate",
        "drop_aggregate",
    },
}
FOR_TESTS = {"decode_state": "the inverse of ``encode`` as a whole: parts of a snapshot are decoded one by one"}


@cache
def _guides() -> str:
    docs, apart = ROOT / "docs", (ROOT / "docs" / "reference", ROOT / "docs" / "decisions")
    pages = (path for path in files() if path.suffix == ".md" and path.is_relative_to(docs))
    pages = (path for path in pages if path.parent not in apart or path.name == "python.md")
    return "\n".join(text(path) or "" for path in pages)


def unused(folders: list[Path]) -> dict[str, str]:
    """Return the unused names of ``folders`` with their definitions."""
    reader = Vulture(ignore_decorators=BY_DECORATOR, ignore_names=BY_NAME)
    reader.scavenge([str(folder) for folder in folders])
    return {item.name: f"{item.typ} in {item.filename}" for item in reader.get_unused_code(min_confidence=SURE)}


@pytest.fixture(scope="module")
def dead() -> dict[str, str]:
    return unused([ROOT / folder for folder in PRODUCT])


def test_every_name_has_a_user(dead: dict[str, str]) -> None:
    excused = set().union(*HOOKS.values(), FOR_TESTS)
    guides = _guides()
    left = {name: where for name, where in dead.items() if name not in excused}
    assert {name: where for name, where in left.items() if not re.search(rf"\b{name}\b", guides)} == {}


def test_every_exception_is_needed(dead: dict[str, str]) -> None:
    assert set().union(*HOOKS.values(), FOR_TESTS) - set(dead) == set()


def unread(code: str) -> set[str]:
    """Return private functions, classes and values that their module does not read.

    ``vulture`` compares names only: it misses such a name if another module has it too.
    """
    tree = ast.parse(code)
    defined = {one.name for one in tree.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    defined |= {
        one.id
        for line in tree.body
        for one in ast.walk(line)
        if isinstance(line, ast.Assign | ast.AnnAssign) and isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
    }
    decorated = {one.name for one in tree.body if isinstance(one, ast.FunctionDef) and one.decorator_list}
    read = {one.id for one in ast.walk(tree) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)}
    return {name for name in defined - read - decorated if re.match("_[A-Za-z]", name)}


def test_private_names_are_read_in_their_module() -> None:
    texts = {shown(path): text(path) or "" for path in python_files(*PRODUCT)}
    found = {name: {one for one in unread(code) if not _imported(texts, one)} for name, code in texts.items()}
    assert {name: names for name, names in found.items() if names} == {}


def _imported(texts: dict[str, str], name: str) -> bool:
    return any(re.search(rf"import [^\n]*\b{name}\b", code) for code in texts.values())


def test_an_unread_private_name_is_found() -> None:
    assert unread("def _idle(): pass\n_used = 1\n_left: int = 2\nprint(_used)\n") == {"_idle", "_left"}


def test_a_dead_name_is_found(tmp_path: Path) -> None:
    (tmp_path / "room.py").write_text("def used(): pass\ndef idle(): pass\nused()\n")
    assert set(unused([tmp_path])) == {"idle"}

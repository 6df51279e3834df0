"""Rules for all files: short files and functions, docstrings, no unfinished work, no paths of a machine."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from ringlog.kernel.values import Value
from tests.tidy.files import ROOT, files, python_files, shown, text

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 60
SOURCES = ("services", "streaming", "schemas", "bench")
# Each pattern is split in two, so that the rule does not match itself.
LEFTOVERS = re.compile(r"\b(?:" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK")) + r")\b")
MACHINE_PATHS = re.compile("|".join(rf"(?<![\w./-])/{name}/\w" for name in ("root", "home", "work", "Users")))
SLEEP = re.compile(r"\bsleep\(")


def offences(paths: tuple[Path, ...], find: Callable[[Path, str], Iterator[str]]) -> list[str]:
    """Return every violation in text files, grouped by file."""
    found: list[str] = []
    for path in paths:
        content = text(path)
        if content is not None:
            found += [f"{shown(path)}: {what}" for what in find(path, content)]
    return found


def lines_with(pattern: re.Pattern[str]) -> Callable[[Path, str], Iterator[str]]:
    def find(_path: Path, content: str) -> Iterator[str]:
        for number, line in enumerate(content.splitlines(), start=1):
            if pattern.search(line):
                yield f"line {number}: {line.strip()[:80]}"

    return find


def test_the_checked_files_are_not_empty() -> None:
    names = {shown(path) for path in python_files()}
    assert {"services/ringlog/stack/commands.py", "tests/tidy/test_sources.py"} <= names


def test_files_are_short() -> None:
    long = {shown(path): len(path.read_text().splitlines()) for path in python_files()}
    assert {name: count for name, count in long.items() if count > FILE_LINES_MAX} == {}


class Facts(Value, dict=True):
    """The facts of one Python file; each file is parsed once, because parsing dominates the time of these tests."""

    long_functions: tuple[str, ...]
    says_what_it_is: bool
    undocumented: tuple[str, ...]
    """Public functions and classes without a docstring."""
    classes: tuple[str, ...]
    """Public classes of the module."""


@cache
def facts(path: Path) -> Facts:
    """Return the facts of one Python file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    lengths = [(node.name, (node.end_lineno or node.lineno) - node.lineno + 1) for node in functions]
    definitions = [n for n in tree.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]
    return Facts(
        tuple(f"{name} has {length} lines" for name, length in lengths if length > FUNCTION_LINES_MAX),
        ast.get_docstring(tree) is not None or (path.name == "__init__.py" and not tree.body),
        tuple(n.name for n in definitions if not n.name.startswith("_") and ast.get_docstring(n) is None),
        tuple(n.name for n in definitions if isinstance(n, ast.ClassDef) and not n.name.startswith("_")),
    )


def test_functions_are_short() -> None:
    assert {shown(path): found for path in python_files() if (found := facts(path).long_functions)} == {}


def test_every_module_has_a_docstring() -> None:
    assert [shown(path) for path in python_files() if not facts(path).says_what_it_is] == []


def test_public_functions_and_classes_have_docstrings() -> None:
    assert {shown(path): found for path in python_files(*SOURCES) if (found := facts(path).undocumented)} == {}


def test_a_public_class_name_is_unique() -> None:
    homes: dict[str, list[str]] = {}
    for path in python_files("services", "streaming", "schemas"):
        for name in facts(path).classes:
            homes.setdefault(name, []).append(shown(path))
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}


def test_no_unfinished_work_is_marked() -> None:
    assert offences(files(), lines_with(LEFTOVERS)) == []


def test_no_path_of_a_machine() -> None:
    assert offences(files(), lines_with(MACHINE_PATHS)) == []


def test_no_test_waits_by_the_clock() -> None:
    assert offences(python_files("tests"), lines_with(SLEEP)) == []


def test_no_test_is_disabled() -> None:
    switched_off = re.compile(r"pytest\.mark\.(?:" + "|".join(("sk" + "ip", "xf" + "ail")) + r")\b")
    assert offences(python_files("tests"), lines_with(switched_off)) == []


KAFKA_ADDRESS = re.compile(r"""["'](?:kafka\.)?bootstrap\.servers["']|kafka://""")
MAKES_CLIENTS = {
    "services/ringlog/runtime/kafka/config.py": "the one place",
    "services/ringlog/runtime/kafka/options.py": "reads what that is told",
    "services/ringlog/stack/probes.py": "the stack's own broker, which the stack has set up itself",
    "services/ringlog/cli/cdc/permissions.py": "writes a file for a client",
    "services/ringlog/agents/app.py": "faust, with the log-in of the one place beside it",
}


def test_every_kafka_client_uses_the_one_login_file() -> None:
    product = [path for path in python_files("services", "streaming") if shown(path) not in MAKES_CLIENTS]
    assert offences(tuple(product), lines_with(KAFKA_ADDRESS)) == []
    app = (ROOT / "services/ringlog/agents/app.py").read_text()
    assert app.count("kafka://") == app.count("broker_credentials=credentials(current().security)") == 1
    assert {name for name in MAKES_CLIENTS if not KAFKA_ADDRESS.search((ROOT / name).read_text())} == set()


def test_clients_of_kafka_get_login_options() -> None:
    """The options of a client are a dictionary that starts with the connection, or a name with such a dictionary."""

    def find(_path: Path, content: str) -> Iterator[str]:
        if not re.search(r"\b(?:Consumer|Producer|AdminClient)\(", content):
            return
        for node in ast.walk(ast.parse(content)):
            kind = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
            if kind in ("Consumer", "Producer", "AdminClient") and isinstance(node, ast.Call) and node.args:
                given = node.args[0]
                if isinstance(given, ast.Dict) and "connection(" not in ast.unparse(given):
                    yield f"line {node.lineno}: {kind} without connection()"

    product = [path for path in python_files("services", "streaming") if shown(path) not in MAKES_CLIENTS]
    assert offences(tuple(product), find) == []

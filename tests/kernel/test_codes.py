"""The set of refusal codes is closed: the source refuses with no other code, and promises none that it never gives."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import ringlog
from ringlog.kernel.codes import CODES

SOURCE = Path(ringlog.__file__).parent


def _declares(node: ast.stmt) -> bool:
    return isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") in ("CODES", "_PROTOCOL")


def trees() -> Iterator[ast.Module]:
    """The sources without the declarations of codes."""
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        yield ast.Module([node for node in tree.body if not _declares(node)], [])


def given_codes() -> set[str]:
    """The literal codes of refusals anywhere in the source."""
    calls = (node for tree in trees() for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {
        call.args[0].value
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id in ("Rejected", "InvalidCommand") and call.args
        if isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, str)
    }


def test_every_refusal_has_a_code_of_the_set() -> None:
    found = given_codes()
    assert len(found) > 40
    assert found <= set(CODES)


def test_every_code_is_given_somewhere() -> None:
    literals = {
        node.value
        for tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert set(CODES) <= literals


def test_every_code_has_a_meaning() -> None:
    for code, meaning in CODES.items():
        assert code.replace("_", "").isalpha()
        assert code.islower()
        assert meaning.endswith(".")

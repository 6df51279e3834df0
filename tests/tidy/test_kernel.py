"""The kernel checks itself: a kind of operation is told by its row, and what must hold is asserted."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ringlog.kernel.operations import kinds
from tests.tidy.files import python_files, shown, text

KIND_NAMES = frozenset(kinds.KINDS)
ROWS = frozenset(name for name, value in vars(kinds).items() if isinstance(value, kinds.OperationKind))
RETELLS = "services/ringlog/sim/checks/"
"""The simulator's own record of movements shares nothing with the kernel, so that it can contradict it."""


def _attribute(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "kind"


def _told(node: ast.expr) -> bool:
    """True for what names a kind: one of their strings, a constant of ``kinds``, or several of these."""
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(_told(element) for element in node.elts)
    if isinstance(node, ast.Constant):
        return node.value in KIND_NAMES
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return name in ROWS


def kind_tests(tree: ast.AST) -> Iterator[str]:
    """Every place where an operation's kind is compared with one of the known ones."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = (node.left, *node.comparators)
            if any(map(_told, sides)) and any(
                _attribute(one) for side in sides for one in (side, *getattr(side, "elts", ()))
            ):
                yield f"line {node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Match) and _attribute(node.subject):
            cases = [found.value for found in ast.walk(node) if isinstance(found, ast.MatchValue)]
            if any(map(_told, cases)):
                yield f"line {node.lineno}: match {ast.unparse(node.subject)}"


def _parsed(*folders: str, naming: str = "") -> Iterator[tuple[str, ast.Module]]:
    for path in python_files(*folders):
        content = text(path) or ""
        if naming in content:
            yield shown(path), ast.parse(content)


def test_no_module_compares_the_kind_of_an_operation() -> None:
    found = {name: list(kind_tests(tree)) for name, tree in _parsed("services", "streaming", "bench", naming=".kind")}
    assert {name: tests for name, tests in found.items() if tests and not name.startswith(RETELLS)} == {}


def test_a_comparison_would_be_seen() -> None:
    for offence in (
        "operation.kind == 'join'",
        "operation.kind in (JOIN, MOVE)",
        "kinds.ALTER in (holder.kind, operation.kind)",
        "match operation.kind:\n    case 'leave':\n        pass",
    ):
        assert list(kind_tests(ast.parse(offence))), offence
    for innocent in ("event.kind == 'crash'", "kind_of(operation) is JOIN", "operation.kind in PLANNED"):
        assert not list(kind_tests(ast.parse(innocent))), innocent


ASSERTIONS_PER_FUNCTION = 0.145
"""What must hold is asserted, before and after. The floor may only rise."""


def test_the_kernel_asserts_what_must_hold() -> None:
    functions = assertions = 0
    for name, tree in _parsed("services"):
        for node in ast.walk(tree) if name.startswith("services/ringlog/kernel/") else ():
            functions += isinstance(node, ast.FunctionDef)
            assertions += isinstance(node, ast.Assert)
    assert assertions / functions >= ASSERTIONS_PER_FUNCTION, f"{assertions} assertions in {functions} functions"

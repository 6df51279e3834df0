"""Rules for kernel code: kinds are decided by their table row, and invariants are asserted."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from ringlog.kernel.model import zones
from ringlog.kernel.operations import kinds
from ringlog.kernel.ownership import kinds as strategies
from ringlog.kernel.tablets import stages
from tests.tidy.files import python_files, shown, text

NAMES = frozenset((*kinds.KINDS, *strategies.STRATEGIES, *stages.KINDS, *zones.MODES))
"""Names of the kinds of operations, replication strategies, tablet transitions and zone modes."""
CONSTANTS = frozenset(
    name
    for module in (kinds, strategies, stages, zones)
    for name, value in vars(module).items()
    if isinstance(value, kinds.OperationKind | strategies.Strategy | stages.TransitionKind)
    or name in ("STRONG", "HIGH_AVAILABILITY")
)
RETELLS = "services/ringlog_sim/checks/", "services/ringlog_testing/placement/"
"""The separate model of movements shares no code with the kernel, so that it can contradict the kernel."""


def _attribute(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in ("kind", "mode", "strategy")


def _named(node: ast.expr) -> bool:
    """Return whether an expression names a kind: a string, a constant or its name, or several of them."""
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(_named(element) for element in node.elts)
    if isinstance(node, ast.Constant):
        return node.value in NAMES
    if isinstance(node, ast.Attribute) and node.attr == "name":
        return _named(node.value)
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return name in CONSTANTS


def kind_tests(tree: ast.AST) -> Iterator[str]:
    """Yield every comparison of a kind or mode with a known one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = (node.left, *node.comparators)
            if any(map(_named, sides)) and any(
                _attribute(one) for side in sides for one in (side, *getattr(side, "elts", ()))
            ):
                yield f"line {node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Match) and _attribute(node.subject):
            cases = [found.value for found in ast.walk(node) if isinstance(found, ast.MatchValue)]
            if any(map(_named, cases)):
                yield f"line {node.lineno}: match {ast.unparse(node.subject)}"


def _parsed(*folders: str, below: str = "", naming: str = "") -> Iterator[tuple[str, ast.Module]]:
    for path in python_files(*folders):
        if shown(path).startswith(below) and naming in (content := text(path) or ""):
            yield shown(path), ast.parse(content)


@pytest.mark.parametrize("naming", [".kind", ".mode", ".strategy"])
def test_no_module_compares_a_kind_that_has_a_row(naming: str) -> None:
    found = {name: list(kind_tests(tree)) for name, tree in _parsed("services", "streaming", "bench", naming=naming)}
    assert {name: tests for name, tests in found.items() if tests and not name.startswith(RETELLS)} == {}


def test_a_comparison_is_found() -> None:
    for offence in (
        "operation.kind == 'join'",
        "operation.kind in (JOIN, MOVE)",
        "kinds.ALTER in (holder.kind, operation.kind)",
        "match operation.kind:\n    case 'leave':\n        pass",
        "transition.kind == INTRANODE.name",
        "step.kind not in (stages.MIGRATION.name, 'repair')",
        "zone.mode != HIGH_AVAILABILITY",
        "replication.strategy == 'simple'",
        "setting.strategy not in (strategies.TABLETS.name, ZONE)",
    ):
        assert list(kind_tests(ast.parse(offence))), offence
    for innocent in (
        "event.kind == 'crash'",
        "kind_of(operation) is JOIN",
        "operation.kind in PLANNED",
        "zone.mode in MODES",
    ):
        assert not list(kind_tests(ast.parse(innocent))), innocent


ASSERTIONS_PER_FUNCTION = 0.245
"""Assertions of preconditions and postconditions. The floor may only rise."""


def test_the_kernel_asserts_its_invariants() -> None:
    functions = assertions = 0
    for _, tree in _parsed("services", below="services/ringlog/kernel/"):
        for node in ast.walk(tree):
            functions += isinstance(node, ast.FunctionDef)
            assertions += isinstance(node, ast.Assert)
    assert assertions / functions >= ASSERTIONS_PER_FUNCTION, f"{assertions} assertions in {functions} functions"

"""The walk in docs/architecture.md names functions that are there, in their files."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
STEP = re.compile(r"^\| (\d+) \| `([a-z_/]+\.py)` \| `(\w+)` \|", re.MULTILINE)


def test_each_step_of_the_walk_is_a_function_of_its_file() -> None:
    steps = STEP.findall((ROOT / "docs/architecture.md").read_text(encoding="utf-8"))
    assert [int(number) for number, _, _ in steps] == list(range(1, len(steps) + 1))
    assert len(steps) > 20
    for _, path, name in steps:
        tree = ast.parse((ROOT / "services/ringlog" / path).read_text(encoding="utf-8"))
        assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, f"{path}: {name}"

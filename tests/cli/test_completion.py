"""Completion of names is fast and silent, and matches the arguments of the real commands."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import typer

from ringlog.cli import completion
from ringlog.cli.completion import ARGUMENTS, FLAGS, OPTIONS, names
from ringlog.cli.main import app
from ringlog.runtime.context import ClusterContext, store_cluster
from tests.cli.test_commands import nothing_is_known

__all__ = ["nothing_is_known"]

KINDS = {"replaced": "node", "full_name": "table"} | dict.fromkeys(
    ("node", "operation", "table", "zone", "keyspace"), ""
)
NEW = {"keyspace create", "zone create", "cluster create", "cluster found", "node run", "cluster certificates"}
"""Commands whose first argument is a new name."""


def test_arguments_and_flags_match_the_commands() -> None:
    root: Any = typer.main.get_command(app)
    found: dict[str, tuple[str, ...]] = {}
    for group in {path.split()[0] for path in ARGUMENTS}:
        for verb, command in root.get_command(None, group).commands.items():
            path = f"{group} {verb}"
            given = [one.name for one in command.params if one.param_type_name == "argument"]
            subject = {"schema": "keyspace", "context": "cluster"}.get(group, group)
            kinds = [subject if name == "name" else name for name in given]
            found[path] = tuple(KINDS.get(kind) or kind for kind in kinds if kind in {*KINDS, "cluster"})
            if path in ARGUMENTS:
                flags = {name for one in command.params if getattr(one, "is_flag", False) for name in one.opts}
                values = {name for one in command.params if not getattr(one, "is_flag", False) for name in one.opts}
                assert (flags - FLAGS, values & FLAGS) == (set(), set()), path
    assert {path: kinds for path, kinds in found.items() if kinds and path not in NEW} == ARGUMENTS


def test_names_are_offered_where_one_is_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    for number, name in enumerate(("shop", "shop2", "$(reboot)", "till")):
        store_cluster(ClusterContext(f"b{number}:1", name, "redis://r", cluster_id=str(number)))
    monkeypatch.setattr(completion, "_ask", lambda _, context, kind: [f"{kind}.{context.cluster}"])
    assert names(["node", "leave", "--cluster"], "sh") == names(["cluster", "use"], "s") == ["shop", "shop2"]
    assert names(["cluster", "delete"], "$") == [], "a shell would run it"
    assert names(["node", "replace", "--json", "--tokens", "3", "n4"], "") == ["node.till"]
    assert names(["--cluster", "shop", "data", "--bootstrap", "b0:1", "read"], "") == ["keyspace.shop"]
    assert names(["node", "leave", "--cluster", "elsewhere"], "") == [], "its Redis is unknown"
    words = [["node", "leave"], ["node", "leave", "n1"], ["node", "down", "--reason"], ["keyspace", "create"], []]
    assert [names(one, "--" if index == 0 else "") for index, one in enumerate(words)] == [None] * len(words)
    assert set(OPTIONS.values()) <= {"cluster", "node", "table"}


@pytest.mark.parametrize("redis", ["redis://127.0.0.1:1", "junk"])
def test_an_unreachable_redis_completes_nothing(redis: str) -> None:
    store_cluster(ClusterContext("b:1", "shop", redis))
    given = {"COMP_WORDS": "ringlog node leave ", "COMP_CWORD": "3", "_RINGLOG_COMPLETE": "complete_bash"}
    ended = subprocess.run([sys.executable, "-m", "ringlog.cli"], env={**os.environ, **given}, capture_output=True)
    assert (ended.returncode, ended.stdout.strip(), ended.stderr) == (0, b"", b"")

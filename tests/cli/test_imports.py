"""Imports of the command line: the root command imports no sub-command, and ``ringlog status`` only its needs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import typer

from ringlog.cli.main import COMMANDS, LazyGroup, app

SLOW = {
    "confluent_kafka",
    "faust",
    "grpc",
    "httpx",
    "numpy",
    "pydantic",
    "redis",
    "fastavro",
    "immutables",
    "structlog",
}


def imported(code: str) -> set[str]:
    """Return the modules that a new interpreter has imported after ``code``."""
    script = f"{code}\nimport sys, json; print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(json.loads(run.stderr.splitlines()[-1]))


def test_the_help_imports_no_sub_command() -> None:
    asked = "from ringlog.cli.main import app\ntry: app(['--help'])\nexcept SystemExit: pass"
    found = imported(asked)
    assert "typer" in found
    assert found & (SLOW | {"rich", "pygments"}) == set()
    assert {name for name in found if name.startswith("ringlog.")} == {
        "ringlog.cli",
        "ringlog.cli.help",
        "ringlog.cli.main",
        "ringlog.errors",
        "ringlog.files",
        "ringlog.kernel",
        "ringlog.kernel.values",
        "ringlog.runtime",
        "ringlog.runtime.certificates",
        "ringlog.runtime.process",
        "ringlog.runtime.json_errors",
        "ringlog.runtime.kafka",
        "ringlog.runtime.kafka.config",
        "ringlog.runtime.kafka.oauth",
        "ringlog.runtime.kafka.options",
        "ringlog.runtime.kafka.security",
        "ringlog.runtime.kafka.properties",
        "ringlog.runtime.trust",
    }


def test_the_status_imports_no_servers_or_settings() -> None:
    assert imported("import ringlog.cli.status") & (SLOW | {"pygments"}) == {
        "confluent_kafka",
        "numpy",
        "fastavro",
        "immutables",
    }


def test_a_schema_is_read_on_first_use() -> None:
    """There are 174 schema files, each with a fingerprint."""
    read = "from ringlog_schemas import current\nimport sys; print(len(vars(current())['_found']), file=sys.stderr)"
    for module in ("ringlog.cli.status", "ringlog.agents.worker", "ringlog.node.process"):
        ended = subprocess.run(
            [sys.executable, "-c", f"import {module}\n{read}"], capture_output=True, text=True, check=True
        )
        assert int(ended.stderr) <= 2, module


@pytest.mark.parametrize("name", COMMANDS)
def test_the_root_help_has_the_first_line_of_each_command(name: str) -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, LazyGroup)
    command = group.get_command(None, name)
    own = " ".join((command.help or "").split("\n\n")[0].split())
    assert own.startswith(COMMANDS[name].help)

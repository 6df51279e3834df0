"""What the command line loads: its top nothing of the rooms, ``ringlog status`` no more than it needs."""

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


def loaded(code: str) -> set[str]:
    """The modules that a new interpreter has loaded after ``code``."""
    script = f"{code}\nimport sys, json; print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(json.loads(run.stderr.splitlines()[-1]))


def test_the_help_loads_no_sub_command() -> None:
    asked = "from ringlog.cli.main import app\ntry: app(['--help'])\nexcept SystemExit: pass"
    found = loaded(asked)
    assert "typer" in found
    assert found & (SLOW | {"rich", "pygments"}) == set()
    assert {name for name in found if name.startswith("ringlog.")} == {
        "ringlog.cli",
        "ringlog.cli.help",
        "ringlog.cli.main",
        "ringlog.files",
        "ringlog.runtime",
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


def test_the_status_loads_neither_servers_nor_what_reads_settings() -> None:
    assert loaded("import ringlog.cli.status") & (SLOW | {"pygments"}) == {
        "confluent_kafka",
        "numpy",
        "fastavro",
        "immutables",
    }


def test_a_schema_is_read_when_its_record_is_asked_for() -> None:
    """Of 174 files, and of their fingerprints."""
    read = "from ringlog_schemas import current\nimport sys; print(len(vars(current())['_found']), file=sys.stderr)"
    for module in ("ringlog.cli.status", "ringlog.agents.worker", "ringlog.node.process"):
        ended = subprocess.run(
            [sys.executable, "-c", f"import {module}\n{read}"], capture_output=True, text=True, check=True
        )
        assert int(ended.stderr) <= 2, module


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_says_of_a_command_how_its_own_help_begins(name: str) -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, LazyGroup)
    command = group.get_command(None, name)
    own = " ".join((command.help or "").split("\n\n")[0].split())
    assert own.startswith(COMMANDS[name].help)

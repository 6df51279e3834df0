"""Run the client of ``docs/build/golden``, which does not use Ringlog, against real agents."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.wire.golden_wire import FOLDER

from ringlog.stack import StackInfo

from .agents_world import AgentsWorld

pytestmark = pytest.mark.system


def test_a_program_without_ringlog_submits_and_learns_each_answer(
    world: AgentsWorld, stack: StackInfo, tmp_path: Path
) -> None:
    config = tmp_path / "client.properties"
    config.write_text(f"bootstrap.servers={stack.bootstrap_servers}\n")
    world.start_all("validator", "publisher")
    world.await_active("validator", "publisher")

    def submitted(kind: str, *earlier: str, **fields: object) -> tuple[list[str], str]:
        """Return the arguments that continue the request, and the answer."""
        command = [sys.executable, "-I", str(FOLDER / "submit.py"), str(config), world.cluster, kind]
        ended = subprocess.run(
            [*command, json.dumps(fields), *earlier], capture_output=True, text=True, check=True, timeout=120
        )
        line, answer = ended.stdout.splitlines()
        return line.removeprefix("to continue: ").split(), answer

    again, applied = submitted("Noop")
    assert applied.startswith("applied: epoch ")
    assert submitted("Noop", *again) == (again, applied), "a retry has no second effect"
    setting = {"settings": [{"name": "operations_kept_max", "value": 7}]}
    assert submitted("ChangeSettings", *again, **setting)[1].startswith("request_id_reused: ")
    assert submitted("ChangeSettings", **setting)[1].startswith("applied: ")
    wrong = {"settings": [{"name": "no_such_setting", "value": 1}]}
    assert submitted("ChangeSettings", **wrong)[1].startswith("rejected: unknown_setting: ")

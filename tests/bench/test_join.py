"""The benchmark of a join on the real stack, in a small cluster: it passes every stage and says what each took."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from ringlog.kernel.operations.stages import FINISHED, JOIN_STAGES
from tests.tidy.files import ROOT


@pytest.mark.system
def test_a_small_cluster_is_made_and_joined() -> None:
    command = [sys.executable, str(ROOT / "bench" / "join.py"), "9", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "invariant_broken" not in done.stderr + done.stdout
    assert "the goal is 5.0 s" in done.stdout
    found = json.loads(done.stdout.splitlines()[-1])
    before, *stages = (name for name in found["stages"] if name != "request")
    assert (before, stages) == ("tokens chosen", [stage for stage in JOIN_STAGES if stage != FINISHED])
    assert found["whole_s"] == pytest.approx(sum(found["stages"].values()))
    assert 0 < found["kernel_s"] < found["whole_s"]
    assert found["entries"] == 10
    # Nobody leaves a gate before it has spoken: each of the nodes, old and new, at three of them.
    assert found["acks"] >= 3 * 9
    assert found["processors"]["coordinator"] > 0

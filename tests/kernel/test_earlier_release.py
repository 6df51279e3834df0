"""The package of release 0.1.0 beside this one, on one log: it has our states until a command that it does not know.

Both as processes of one cluster: ``tests/system/test_upgrade.py``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from ringlog.kernel.commands.cluster import InitializeCluster, Noop
from ringlog.kernel.commands.nodes import RegisterNode, UpdateNode
from ringlog.kernel.fold import fold
from ringlog.kernel.outcome import OutcomeKind
from ringlog.kernel.state import EMPTY_STATE
from ringlog.kernel.values import Command
from ringlog.log.author import Author
from ringlog.runtime.clock import ManualClock
from ringlog.runtime.draw import SeededDraw
from tests.earlier import RELEASE, environment_of

NODE = "00000000-0000-4000-8000-000000000001"
KNOWN: tuple[Command, ...] = (
    InitializeCluster("shop", (("history_entries", 500),)),
    Noop(),
    RegisterNode("n1", NODE, "n1:1", "dc1", "r1", 2, 12, RELEASE, (), 1),
    Noop(),
)
LATER: tuple[Command, ...] = (UpdateNode(NODE, release="0.2.0"), Noop())
"""What the first node says that is upgraded; nothing follows for who does not know that."""
READER = """
import json, sys
import ringlog
from ringlog.kernel.fold import fold
from ringlog.kernel.state import EMPTY_STATE
from ringlog.wire.entries import decode_entry
state, told = EMPTY_STATE, []
for line in sys.stdin:
    folded = fold(state, decode_entry(bytes.fromhex(line)))
    state = folded.state
    told.append([folded.outcome.kind.value, folded.outcome.code, folded.outcome.detail, state.state_id])
    if told[-1][0] == "halt":
        break
print(json.dumps({"release": ringlog.__version__, "told": told}))
"""


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of the earlier release."""
    return environment_of(tmp_path_factory.mktemp("earlier"))


def test_it_has_our_states_until_a_command_that_it_does_not_know(earlier: dict[str, str]) -> None:
    author, state = Author("upgrade", ManualClock(), SeededDraw(b"upgrade")), EMPTY_STATE
    lines, ids = [], []
    for command in (*KNOWN, *LATER):
        made = author.entry(state, command)
        folded = fold(state, made.entry)
        assert folded.outcome.kind is OutcomeKind.APPLIED, folded.outcome
        state = folded.state
        lines.append(made.data.hex())
        ids.append(state.state_id)
    ended = subprocess.run(
        [sys.executable, "-c", READER],
        input="\n".join(lines),
        env=os.environ | earlier,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["release"] == RELEASE
    *applied, (outcome, code, detail, stays) = found["told"]
    assert [(one[0], one[3]) for one in applied] == [("applied", one) for one in ids[: len(KNOWN)]]
    assert (outcome, code, stays) == ("halt", "unknown_command", ids[len(KNOWN) - 1])
    assert "needs a later release" in detail

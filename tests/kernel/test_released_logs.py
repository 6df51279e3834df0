"""Logs that earlier releases wrote fold to the states that those releases had, entry for entry.

``tests/testdata/logs/<release>-<story>.txt`` has a line for each entry: its bytes in hex, and the first 16 digits of
the digest of the state that the release folded it to. The lines are never changed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ringlog.kernel.encoding import digest
from ringlog.kernel.fold import fold
from ringlog.kernel.operations.node_states import KEPT_AS, node_statuses
from ringlog.kernel.outcome import OutcomeKind
from ringlog.kernel.state import EMPTY_STATE
from ringlog.wire.entries import decode_entry

LOGS = sorted((Path(__file__).parents[1] / "testdata" / "logs").glob("*.txt"))


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_a_released_log_folds_to_the_same_states(path: Path) -> None:
    state = EMPTY_STATE
    for line in path.read_text(encoding="utf-8").splitlines():
        data, expected = line.split()
        folded = fold(state, decode_entry(bytes.fromhex(data)))
        assert folded.outcome.kind is OutcomeKind.APPLIED
        state = folded.state
        assert digest(state)[:16] == expected, f"epoch {state.epoch}"
        shown = {node: KEPT_AS[status.state] for node, status in node_statuses(state).items()}
        assert shown == {node.id: node.state for node in state.nodes.values()}, "equal under the renaming"
    assert state.epoch > 30

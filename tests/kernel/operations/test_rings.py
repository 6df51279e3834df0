"""The tokens that a generation must have its ends at, asked of lists and of arrays."""

from __future__ import annotations

import numpy as np

from ringlog.kernel.operations.rings import are_targets, target_tokens
from tests.kernel.operations.drive import joining
from tests.kernel.operations.test_rules import QUIET


def test_ends_are_the_targets_as_a_list_and_as_an_array() -> None:
    state, _ = joining(QUIET, "X", [150, -7])
    wanted = target_tokens(state)
    assert {150, -7, *QUIET.token_owners} == set(wanted)
    for ends, expected in (
        (wanted, True),
        (wanted[1:], False),
        ([*wanted, 9_999], False),
        ([*wanted[:-1], wanted[-1] + 1], False),
        (sorted(QUIET.token_owners), False),
    ):
        assert are_targets(state, ends) is expected
        assert are_targets(state, np.array(ends, dtype=np.int64)) is expected
        assert are_targets(QUIET, np.array(ends, dtype=np.int64)) is (ends == sorted(QUIET.token_owners))

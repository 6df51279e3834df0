"""Every history of the small switch model: with all rules nothing goes wrong, and each rule is needed."""

import pytest

from tests.kernel.generations.switch_model import CHASED, WRONG, Explorer


@pytest.mark.parametrize(
    ("writers", "restarts", "horizon"), [(("w",), 0, 3), (("w",), 1, 2), (("w",), 1, 3), (("v", "w"), 0, 3)]
)
def test_no_write_is_ever_routed_under_the_wrong_generation(
    writers: tuple[str, ...], restarts: int, horizon: int
) -> None:
    explorer = Explorer(writers=writers, restarts=restarts, horizon=horizon)
    assert explorer.explore() is None
    assert explorer.seen > 500, "the model has shrunk to nothing"


@pytest.mark.parametrize(
    ("rule", "horizon", "promise"),
    [
        ("above every horizon", 3, WRONG),
        ("frozen while prepared", 3, CHASED),
        ("floor", 3, WRONG),
        ("current incarnation only", 2, WRONG),
        ("folded horizon", 2, WRONG),
        ("lowering binds at once", 3, WRONG),
        ("registration folded first", 3, WRONG),
        ("knowledge and horizon of one state", 2, WRONG),
        ("knowledge and horizon of one state", 3, WRONG),
    ],
)
def test_each_rule_is_needed(rule: str, horizon: int, promise: str) -> None:
    """Without it the explorer finds a history in which the promise is broken."""
    assert Explorer(without=rule, horizon=horizon).explore() == promise

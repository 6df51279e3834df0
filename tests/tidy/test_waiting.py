"""The helper ``until`` of the tests: a wait ends by the cost of its checks, and not by a clock."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from tests.waiting import LOOK_COSTS_S_MAX, until

BUSY_S = 0.3
BUSY = f"import time\nwhile time.process_time() < {BUSY_S}: pass"


def checks_in(deadline_s: float, look: Callable[[], object]) -> int:
    """Return the number of checks until ``until`` fails; ``look`` is one check."""
    looks = 0

    def never() -> bool:
        nonlocal looks
        looks += 1
        look()
        return False

    with pytest.raises(AssertionError, match="for an event that never happens"):
        until(never, "an event that never happens", deadline_s)
    return looks


def compute() -> None:
    end = time.thread_time() + BUSY_S
    while time.thread_time() < end:
        pass


def run_a_command() -> None:
    subprocess.run([sys.executable, "-S", "-c", BUSY], check=True)


@pytest.mark.parametrize("look", [compute, run_a_command])
def test_an_expensive_check_counts_more(look: Callable[[], None]) -> None:
    assert 1 <= checks_in(3 * BUSY_S, look) <= 3


def test_idle_time_of_a_check_does_not_count() -> None:
    assert checks_in(0.5, lambda: threading.Event().wait(0.2)) >= 8


def test_a_finished_child_process_counts_as_one_check() -> None:
    before = "import time\nwhile time.process_time() < 3: pass"
    others = [subprocess.Popen([sys.executable, "-S", "-c", before])]
    assert checks_in(2 * LOOK_COSTS_S_MAX, lambda: others and others.pop().wait()) >= 3


def test_the_first_non_empty_answer_is_the_result() -> None:
    answers = iter([None, (), "", ("found",), ("later",)])
    assert until(lambda: next(answers), "an answer", look_s=0) == ("found",)

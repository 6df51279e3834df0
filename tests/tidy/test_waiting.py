"""A wait ends by what its looks cost, and by no clock: this is what the tests themselves wait with."""

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


def looks_in(deadline_s: float, look: Callable[[], object]) -> int:
    """How often ``until`` looks before it gives up; ``look`` is what each costs."""
    looks = 0

    def never() -> bool:
        nonlocal looks
        looks += 1
        look()
        return False

    with pytest.raises(AssertionError, match="for what never comes"):
        until(never, "what never comes", deadline_s)
    return looks


def compute() -> None:
    end = time.thread_time() + BUSY_S
    while time.thread_time() < end:
        pass


def run_a_command() -> None:
    subprocess.run([sys.executable, "-S", "-c", BUSY], check=True)


@pytest.mark.parametrize("look", [compute, run_a_command])
def test_a_dear_look_counts_what_it_costs(look: Callable[[], None]) -> None:
    assert 1 <= looks_in(3 * BUSY_S, look) <= 3


def test_what_a_look_waits_for_does_not_count() -> None:
    assert looks_in(0.5, lambda: threading.Event().wait(0.2)) >= 8


def test_a_process_that_ends_counts_for_one_look_whatever_it_has_used() -> None:
    before = "import time\nwhile time.process_time() < 3: pass"
    others = [subprocess.Popen([sys.executable, "-S", "-c", before])]
    assert looks_in(2 * LOOK_COSTS_S_MAX, lambda: others and others.pop().wait()) >= 3


def test_an_empty_answer_is_none_and_the_first_other_one_is_the_result() -> None:
    answers = iter([None, (), "", ("found",), ("later",)])
    assert until(lambda: next(answers), "an answer", look_s=0) == ("found",)

"""Reads and writes of registers in simulated clusters: histories that two checkers agree on, bugs that are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringlog.sim.histories import porcupine
from ringlog.sim.histories.check import check
from ringlog.sim.histories.events import Op
from ringlog.sim.histories.reader import read
from ringlog.sim.histories.verdict import Verdict
from ringlog.sim.mutants.plant import planted
from ringlog.sim.mutants.registers import MUTANTS
from ringlog.sim.recording import LOG
from ringlog.sim.search import reports, run_seed
from ringlog.stack.artifacts import cache_root

SEEDS = range(1, 6)


def test_histories_are_judged_alike_by_ours_and_by_porcupine(tmp_path: Path) -> None:
    for report in reports(SEEDS, "small", jobs=1, histories=tmp_path):
        assert (report.rule, report.detail, report.history) == ("", "", ())
    found: set[tuple[str, Op]] = set()
    program = porcupine.build(cache_root()) if porcupine.find_go() is not None else None
    for seed in SEEDS:
        path = tmp_path / f"small-{seed}.jsonl"
        history = read(path)
        found |= {(key, one.op) for key, operations in history.keys for one in operations}
        assert check(history).verdict is Verdict.LINEARIZABLE
        if program is not None:
            assert porcupine.ask(program, path).verdict is Verdict.LINEARIZABLE
    assert found >= {(LOG, Op.COMMIT), (LOG, Op.BARRIER), (LOG, Op.APPLIED), ("r0", Op.READ), ("r0", Op.WRITE)}


def test_a_history_that_is_recorded_changes_nothing(tmp_path: Path) -> None:
    assert run_seed(3, histories=tmp_path).digest == run_seed(3).digest


@pytest.mark.parametrize(
    ("name", "first"), [("no_read_repair", 50), ("acknowledged_before_drained", 1), ("quorum_of_half", 1)]
)
def test_bugs_on_this_path_are_found(name: str, first: int) -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    with planted(mutant):
        rules = {run_seed(seed).rule for seed in range(first, first + 8)}
    assert rules & {"linearizable", "write_lost", "ack_before_drained"}

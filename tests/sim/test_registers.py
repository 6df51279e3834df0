"""Register reads and writes in simulated clusters: two checkers agree on the histories, and planted bugs are found."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from ringlog.stack.artifacts import cache_root
from ringlog_sim.devices.listener import LOG
from ringlog_sim.mutants import MUTANTS
from ringlog_sim.mutants.plant import planted
from ringlog_sim.runner.run import run_script
from ringlog_sim.runner.script import PROFILES, draw_script
from ringlog_sim.runner.search import reports, run_seed
from ringlog_testing.histories import porcupine
from ringlog_testing.histories.check import check
from ringlog_testing.histories.events import Op
from ringlog_testing.histories.operations import read
from ringlog_testing.histories.verdict import Linearizability

SEEDS = range(1, 6)


def test_our_checker_and_porcupine_agree(tmp_path: Path) -> None:
    for report in reports(SEEDS, "small", jobs=1, histories=tmp_path):
        assert (report.rule, report.detail, report.history) == ("", "", ())
    found: set[tuple[str, Op]] = set()
    program = porcupine.build(cache_root()) if porcupine.find_go() is not None else None
    for seed in SEEDS:
        path = tmp_path / f"small-{seed}.jsonl"
        history = read(path)
        found |= {(key, one.op) for key, operations in history.keys for one in operations}
        assert check(history).verdict is Linearizability.LINEARIZABLE
        if program is not None:
            assert porcupine.ask(program, path).verdict is Linearizability.LINEARIZABLE
    assert found >= {(LOG, Op.COMMIT), (LOG, Op.BARRIER), (LOG, Op.APPLIED), ("r0", Op.READ), ("r0", Op.WRITE)}


def test_recording_does_not_change_the_run(tmp_path: Path) -> None:
    assert run_seed(3, histories=tmp_path).digest == run_seed(3).digest


@pytest.mark.parametrize(("name", "first"), [("no_read_repair", 221), ("quorum_of_half", 1)])
def test_bugs_on_this_path_are_found(name: str, first: int) -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    with planted(mutant):
        rules = {run_seed(seed).rule for seed in range(first, first + 8)}
    assert rules & {"linearizable", "write_lost"}


def test_registers_in_tablets_are_used_during_moves() -> None:
    drawn = (draw_script(seed, PROFILES["small"]) for seed in range(1, 310))
    scripts = [script for script in drawn if any(action.what == "tablets" for action in script.actions)]
    did: Counter[tuple[str, ...]] = Counter()
    for script in scripts:
        report = run_script(script, recording=True)
        assert not report.rule, report.detail
        did.update(report.did)
        did["in tablets",] += sum('"ok"' in line and "/r" in line for line in report.history)
    assert did["in tablets",] > 5 * len(scripts) > 50
    assert did["register", "stream kept"]


def test_an_outsider_changes_and_reads_nothing() -> None:
    did = sum((report.did for report in reports(SEEDS, "small", jobs=1)), Counter())
    sent = did["outsider", "read"] + did["outsider", "write"]
    refused = did["register", "read other_history"] + did["register", "write other_history"]
    assert 0 < refused <= sent


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("message_believed", "other_history"),
        ("ahead_of_the_log", "other_history"),
        ("other_history_taken", "other_history"),
    ],
)
def test_a_bug_that_trusts_an_outsider_is_found(name: str, rule: str) -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    with planted(mutant):
        assert rule in {run_seed(seed).rule for seed in range(1, 8)}

"""Each benchmark runs to its end on a small input and prints its measurements."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ringlog.console.table import VIEWS
from ringlog.kernel.operations.stages import FINISHED, JOIN_STAGES
from tests.tidy.files import ROOT


def test_the_small_version_prints_each_number(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "bench" / "registers.py"), str(tmp_path), "3000", "0.1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert "MISSED" not in done.stdout or done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0].startswith("plain syncs: ")
    assert [line.split("|")[1].strip() for line in lines[3:7]] == ["1", "4", "16", "64"]
    assert lines[8].startswith("3,000 registers, ")
    told = [line.split("|")[1].strip() for line in lines[12:17]]
    assert told[0] == "nothing else happens"
    assert told[1].startswith("a thread counts")
    assert told[2].startswith("the journal grows and an image is written")
    assert "registers are streamed in" in told[3]
    assert told[4].startswith("the epoch comes by which 1,")


# The growth benchmark in small: entries, snapshots, archive and truncations; only the archive grows.


@pytest.mark.soak(
    "tests/log/test_truncation.py, tests/node/test_log_copy.py and tests/log/test_archive.py, each for its part"
)
def test_only_the_archive_grows(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "bench" / "years.py"), "10000", str(tmp_path), "--every", "500"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    *table, end = done.stdout.splitlines()
    assert end.endswith("; flat")
    assert len(table) == 11
    archive = [float(line.split(" | ")[3]) for line in table[1:]]
    assert archive == sorted(archive)
    assert archive[-1] > archive[0]


# The join benchmark on the real stack, with a small cluster: it passes each stage and prints the times.


@pytest.mark.system
def test_a_small_cluster_gets_a_node() -> None:
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
    # No node leaves a barrier without its acknowledgement: each node, old and new, at three barriers.
    assert found["acks"] >= 3 * 9
    assert found["processors"]["coordinator"] > 0


# The mixes of the CDC job, and the readers of its log, on a broker and Spark of their own.


@pytest.mark.soak("a benchmark that fails to run is noticed when it is run")
@pytest.mark.parametrize(
    ("command", "names"),
    [
        (("cdc_job.py", "3000", "1000", "--mixed"), {"50 tables", "1 to 32 cells", "a map", "all of these"}),
        (("cdc_reader.py", "3000"), {"bare count, 2 tasks", "ringlog-cdc, batch, 2 tasks", "plain client"}),
    ],
)
def test_shares_are_printed(command: tuple[str, ...], names: set[str]) -> None:
    words = [sys.executable, str(ROOT / "bench" / command[0]), *command[1:], "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shares = json.loads(done.stdout.splitlines()[-1])
    assert shares.keys() >= names
    assert all(share > 0 for share in shares.values())


# The benchmark of the console on a small cluster: each page has a line.


def test_each_page_is_measured() -> None:
    command = [sys.executable, str(ROOT / "bench" / "console.py"), "20", "200"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert [line.split()[0] for line in done.stdout.splitlines()[2:]] == list(VIEWS)


# The benchmark of a skewed load, with few writes.


def test_a_skewed_load_spreads() -> None:
    command = [sys.executable, str(ROOT / "bench" / "skew.py"), "300", "200"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert "MISSED" not in done.stdout or done.returncode == 1
    even, moved, split = [line.split() for line in done.stdout.splitlines()[1:4]]
    tablets, shards, throughput = ([row[place] for row in (even, moved, split)] for place in (-4, -2, -1))
    assert tablets[0] == tablets[1] == "32"
    assert int(tablets[2]) > 32
    assert float(throughput[0]) == 1
    assert float(throughput[2]) > 1
    assert float(shards[2].rstrip("%")) < float(shards[0].rstrip("%"))

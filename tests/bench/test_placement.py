"""The placement benchmark on small clusters: it prints its measurements, and its status reports exceeded limits."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from types import ModuleType

import pytest

from tests.tidy.files import ROOT

PATH = ROOT / "bench" / "placement.py"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the benchmark with tiny clusters and generous limits."""
    spec = importlib.util.spec_from_file_location("bench_placement", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "bench_placement", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "SIZES", ((9, 2, 1e6), (18, 2, 1e6), (36, 2, 1e6), (9, 8, 1e6)))
    monkeypatch.setattr(module, "LIFE", (12, 2, 1e6))
    monkeypatch.setattr(module, "LOOKUP_US", 1e6)
    monkeypatch.setattr(module, "LOOKUPS", 500)
    return module


def test_the_small_version_prints_each_number() -> None:
    done = subprocess.run([sys.executable, str(PATH), "0.02"], capture_output=True, text=True, check=False)
    assert "MISSED" not in done.stdout or done.returncode == 1
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0].split()[:3] == ["nodes", "tokens", "ranges"]
    assert [line.split()[:3] for line in lines[1:5]] == [
        ["9", "16", "144"],
        ["9", "16", "144"],
        ["20", "16", "320"],
        ["9", "16", "144"],
    ]
    assert "to the power of" in done.stdout
    assert "The log of 20 joins with 16 tokens each" in done.stdout


def test_the_status_reports_twice_the_limit(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The limit of growth is in the code, and a run of milliseconds does not measure growth.
    monkeypatch.setattr(bench, "MISSED", 1_000)
    assert bench.main() == 0
    assert "MISSED" not in capsys.readouterr().out
    monkeypatch.setattr(bench, "LIFE", (12, 2, 1e-9))
    assert bench.main() == 1
    assert "MISSED: life of 12 x 2" in capsys.readouterr().out


def test_the_exponent_is_the_power_of_the_size(bench: ModuleType) -> None:
    for power in (0.5, 1.0, 2.0):
        assert bench.slope([10, 100, 1000], [3 * n**power for n in (10, 100, 1000)]) == pytest.approx(power)


def test_times_fail_from_twice_their_limit(bench: ModuleType) -> None:
    assert [bench.Figure("x", value, 1.0).missed for value in (0.5, 1.5, 2.0, 2.1)] == [False, False, False, True]

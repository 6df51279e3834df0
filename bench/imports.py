"""The time until a program can use the class ``Client``, in an environment with the wheel and its base only.

    python bench/imports.py [ROUNDS]

Programs run in turn, so that they run under the same load. The goal is 300 ms on an idle machine. A loaded one shows it
as the ratio to ``import confluent_kafka, numpy``, which every client needs and which takes 70 to 90 ms when idle.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.stack.installed import build, clean, install

REFERENCE = "import confluent_kafka, numpy"
PROGRAMS = (REFERENCE, "import ringlog", "import ringlog; ringlog.Client", "from ringlog import commands")
CLOCK = "import time; wall, cpu = time.perf_counter(), time.process_time()\n{}\n"
CLOCK += "print(time.perf_counter() - wall, time.process_time() - cpu)"


def seconds(python: Path, program: str) -> tuple[float, float]:
    """Return wall and processor seconds of a program in a new process."""
    command = [str(python), "-I", "-c", CLOCK.format(program)]
    ended = subprocess.run(command, capture_output=True, text=True, env=clean(), check=True)
    wall, cpu = map(float, ended.stdout.split())
    return wall, cpu


def main() -> None:
    """Measure and print."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    with tempfile.TemporaryDirectory() as folder:
        python = install(Path(folder) / "base", build(Path(folder) / "dist")[-1])
        runs = [{program: seconds(python, program) for program in PROGRAMS} for _ in range(rounds + 1)][1:]
    print("program | wall ms | processor ms | ratio")
    for program in PROGRAMS:
        wall, cpu = (1e3 * statistics.median(run[program][which] for run in runs) for which in (0, 1))
        ratio = statistics.median(run[program][0] / run[REFERENCE][0] for run in runs)
        print(f"{program} | {wall:.0f} | {cpu:.0f} | {ratio:.2f}")


if __name__ == "__main__":
    main()
